"""lgamma and digamma in kernels of the CPU, beside mpmath."""

import mpmath
import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax
from gpuflow.targets.cpu.codegen import gamma

RANDOM = np.random.default_rng(0)
POINTS = np.concatenate(
    [
        RANDOM.uniform(-20, 20, 400),
        10.0 ** RANDOM.uniform(-30, 30, 200),
        -(10.0 ** RANDOM.uniform(-30, 1, 100)),
        # Both zeros of lgamma, from both sides, and where one formula follows another.
        *[root + sign * 10.0 ** RANDOM.uniform(-6, -1, 50) for root in (1, 2) for sign in (-1, 1)],
        [0.5, 1.5, 2.5, 7.999999, 8.0, -0.5, -0.4999999, -1.5],
    ]
)


def _lgamma(x):
    return float(mpmath.re(mpmath.loggamma(mpmath.mpf(float(x)))))


def test_constants():
    with mpmath.workdps(30):
        for k in (2, 3, 9, 28):
            want = float(mpmath.zeta(k) - 1)
            assert abs(gamma._zeta_above_one(k) - want) <= 2e-16 * want


def test_lgamma_in_float32_is_rounded_once():
    x = POINTS.astype(np.float32)
    x = x[(x > 0) | (x != np.floor(x))]
    want = np.array([_lgamma(v) for v in x])
    out = np.asarray(gf.jit(lax.lgamma)(x))
    assert np.all(np.abs(out - want) <= 0.51 * np.spacing(np.abs(want).astype(np.float32)))


def test_lgamma_in_float64():
    x = POINTS[(POINTS > 0) | (np.floor(POINTS) != POINTS)]
    with mpmath.workdps(40):
        want = np.array([_lgamma(v) for v in x])
    with gf.enable_x64(True):
        out = np.asarray(gf.jit(lax.lgamma)(x))
    # At its zeros left of -2 the error is absolute: two logarithms cancel.
    bound = np.where(x > -2, 4 * np.spacing(np.abs(want)), 1e-14 + 8 * np.spacing(np.abs(want)))
    assert np.all(np.abs(out - want) <= bound)


def test_digamma():
    x = POINTS[(POINTS > 0) | (np.abs(POINTS - np.rint(POINTS)) > 1e-3)]
    with mpmath.workdps(40):
        want = np.array([float(mpmath.digamma(mpmath.mpf(v))) for v in x])
    with gf.enable_x64(True):
        out = np.asarray(gf.jit(lax.digamma)(x))
    np.testing.assert_allclose(out, want, rtol=4e-15, atol=4e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_values(dtype):
    inf, nan = np.inf, np.nan
    x = [0.0, -0.0, -1.0, -2.0, inf, -inf, nan, 1.0, 2.0]
    with gf.enable_x64(True):
        x = gf.numpy.asarray(x, dtype)
        out = np.asarray(gf.jit(lax.lgamma)(x)).astype(float)
        slope = np.asarray(gf.jit(lax.digamma)(x)).astype(float)
    np.testing.assert_array_equal(out, [inf, inf, inf, inf, inf, inf, nan, 0, 0])
    np.testing.assert_array_equal(slope[:7], [-inf, inf, nan, nan, inf, nan, nan])


def test_far_away():
    with gf.enable_x64(True):
        x = np.array([1e305, 3e305, 1e308, -1e300, -1e16])
        out = np.asarray(gf.jit(lax.lgamma)(x))
    assert np.isfinite(out[0]) and np.all(out[1:] == np.inf)
