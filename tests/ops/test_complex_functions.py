"""Complex functions far out, against mpmath: no rounding before the angle is reduced."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp

RNG = np.random.default_rng(0)
NEAR, FAR = 10.0 ** np.arange(-10.0, 2.0, 3), 10.0 ** np.array([-30.0, -3, 0, 1, 3, 5, 8, 20])
SIZES = np.array([(a, b) for a in NEAR for b in FAR]) * RNG.uniform(0.5, 1, (32, 2))
SIZES *= RNG.choice([-1, 1], SIZES.shape)
POINTS = np.concatenate([SIZES[:, 0] + 1j * SIZES[:, 1], SIZES[:, 1] + 1j * SIZES[:, 0]])
LARGEST = np.array([complex(1, 3e38), 1e300j, 1023.9 + 0.9j, -1022 + 1e9j, 127.9 + 1j, -125 + 5j])

FUNCTIONS = {
    "exp": mp.exp, "exp2": lambda z: mp.power(2, z), "expm1": mp.expm1, "log": mp.log,
    "log2": lambda z: mp.log(z) / mp.log(2), "log10": mp.log10, "log1p": lambda z: mp.log(1 + z),
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "sinh": mp.sinh, "cosh": mp.cosh,
    "tanh": mp.tanh, "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arcsinh": mp.asinh,
    "arccosh": mp.acosh, "arctanh": mp.atanh, "sqrt": mp.sqrt, "reciprocal": lambda z: 1 / z,
    "sinc": lambda z: mp.sin(mp.pi * z) / (mp.pi * z), "square": lambda z: z * z, "abs": abs,
}  # fmt: skip


def _compare(function, reference, points, dtype):
    with mp.workdps(400), np.errstate(over="ignore"):
        points = points.astype(dtype)
        points = points[np.isfinite(points)]
        exact = [mp.mpc(reference(mp.mpc(z.real.item(), z.imag.item()))) for z in points]
        largest, least = mp.mpf(float(np.finfo(dtype).max) / 4), float(np.finfo(dtype).tiny)
        chosen = [k for k, z in enumerate(exact) if least < abs(z) < largest]
        assert len(chosen) > 1
        for call in (function, gf.jit(function)):
            got = np.asarray(call(points))
            for k in chosen:
                error = abs(mp.mpc(complex(got[k])) - exact[k]) / abs(exact[k])
                # Normwise: a component may be many times smaller than the number.
                assert error < 20 * np.finfo(dtype).eps, (points[k], got[k], complex(exact[k]))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_far_out(name, dtype):
    """exp2 rounded b * log(2), so that 2**(1e5 j) was wrong in the third digit."""
    with gf.enable_x64(dtype == "complex128"):
        _compare(getattr(jnp, name), FUNCTIONS[name], POINTS, dtype)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_exp2_at_the_ends_of_the_range(dtype):
    with gf.enable_x64(dtype == "complex128"):
        _compare(jnp.exp2, FUNCTIONS["exp2"], LARGEST, dtype)
        inf, nan = np.inf, np.nan
        special = [(-inf, 1), (3, 0), (3, -0.0), (1, nan), (1, inf)]
        got = np.asarray(jnp.exp2(np.array([complex(*z) for z in special], dtype)))
        expected = np.array([0, 8, 8, complex(nan, nan), complex(nan, nan)], dtype)
        np.testing.assert_array_equal(got, expected)
        assert np.signbit(got.imag[2])


def test_powers_of_single_precision():
    points = POINTS[np.abs(POINTS.imag) < 1e6]
    _compare(
        lambda z: jnp.power(jnp.complex64(3), z), lambda z: mp.power(3, z), points, "complex64"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sinc_of_large_numbers(dtype):
    """It vanishes at integers, and between them pi * x must not be rounded."""
    with gf.enable_x64(dtype == "float64"):
        x = jnp.asarray([1.0, -2.0, 100.0, 1000.5, 0.25, 100.25, -12.75], dtype)
        for call in (jnp.sinc, gf.jit(jnp.sinc), gf.vmap(jnp.sinc)):
            got = np.asarray(call(x), np.float64)
            exact = [float(mp.sinpi(float(v)) / (mp.pi * float(v))) for v in x]
            np.testing.assert_allclose(
                got, exact, rtol=4 * float(jnp.finfo(dtype).eps), atol=1e-300
            )
