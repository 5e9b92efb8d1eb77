"""Elementwise functions at infinities, nan, zeros and borders: as stored from JAX 0.10.

Values and both derivatives of the real functions of lax, numpy, nn and scipy.special, forward and
in reverse; values of the complex ones where their operand is finite. What differs from JAX by
intent is listed with its reason, and compared where JAX gives a number.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
import gpuflow.scipy.special
from gpuflow import lax

DATA = Path(__file__).parents[1] / "data"
sys.path.insert(0, str(DATA))
import special_point_cases as cases  # noqa: E402

STORED = json.loads((DATA / "special_points.json").read_text())
MODULES = {"jnp": jnp, "lax": lax, "nn": gpuflow.nn, "special": gpuflow.scipy.special}

# XLA's functions are good to about 1e-5, and its derivatives, which subtract from 1 what is near 1,
# to 1e-6 absolutely.
RELATIVE, ABSOLUTE = 2e-4, 2e-6

# Where JAX has nan, these have the limit, or what SciPy has.
LIMITS = {
    "jnp.i0", "lax.digamma", "lax.lgamma", "special.dawsn", "special.digamma", "special.erfcx",
    "special.factorial", "special.gammaln", "special.i1", "jnp.floor_divide", "jnp.divmod",
    "jnp.angle", "jnp.arctan2", "lax.atan2", "jnp.power", "jnp.float_power", "lax.pow",
    "special.xlogy", "special.xlog1py", "nn.gelu", "nn.hard_silu", "nn.hard_swish", "nn.mish",
    "nn.silu", "nn.swish", "nn.soft_sign", "nn.sparse_plus", "nn.squareplus",
}  # fmt: skip
# These are not compared.
OTHERS = {
    **dict.fromkeys(
        ("jnp.logaddexp", "jnp.logaddexp2"), "JAX's weight of 1 beside infinity is exp(1)"
    ),
    **dict.fromkeys(
        ("jnp.acosh", "jnp.arccosh", "lax.acosh"), "JAX's derivative below 1 is a number"
    ),
    "nn.squareplus": "JAX's square overflows, of negative numbers to infinity",
    "jnp.sinc": "JAX's derivative near 0 divides rounding errors by x",
    "lax.bessel_i1e": "JAX's derivative at nan is 0.5",
    "special.i1e": "JAX's derivative at nan is 0.5",
    "lax.igamma": "of two infinities nan, as in SciPy",
    "special.gammainc": "of two infinities nan, as in SciPy",
    "special.owens_t": "the derivative at an infinite h and a = 0 is nan",
    "jnp.hypot": "the derivative at the origin is 0; JAX has that of a maximum of equals, 0.5",
    "special.i0": "JAX's derivative at 0 is 1, of an even function",
    "special.spence": "JAX's forward derivative of a selection of branches is 0",
    "special.ndtri": "JAX's derivative at 0 and 1 is 0; it is infinite",
    "special.loggamma": "JAX's forward derivative at 0 is 0; it is infinite",
    "special.log_ndtr": "JAX's derivative of large negative numbers is 1; it is their negative",
    "special.entr": "nan below 0 in both modes; JAX has it in reverse only",
    "special.gamma": "the reciprocal of 1e-30 with either sign is infinite",
    "special.igammac": "JAX has lost 10 % at (1e-5, 0.5)",
    "lax.igammac": "JAX has lost 10 % at (1e-5, 0.5)",
    "special.gammaincc": "JAX has lost 10 % at (1e-5, 0.5)",
    "special.poch": "JAX subtracts logarithms that cancel",
    "special.beta": "JAX subtracts logarithms that cancel",
    "special.betaln": "JAX subtracts logarithms that cancel",
    "special.zeta": "JAX's derivatives outside of the domain are those of a series cut off",
    "special.kl_div": "outside of the domain, where it is infinite, its derivative is 0",
    "special.rel_entr": "as SciPy, infinite only where a number is negative",
    "special.boxcox": "derivatives at infinity are those of the limit",
    "special.boxcox1p": "derivatives at infinity are those of the limit",
}
REAL_CASES = [
    (kind, name) for kind in ("unary", "binary") for name in STORED[kind] if name not in OTHERS
]


def function_of(name):
    module, _, attribute = name.partition(".")
    return getattr(MODULES[module], attribute)


def numbers(text):
    flags = {"True": 1.0, "False": 0.0}
    return np.array([flags[t] if t in flags else float(t) for t in text.split()])


def disagreements(got, want, excuse_nan):
    """Where results are not those of JAX."""
    nan = np.isnan(want) & ~np.isnan(got) if not excuse_nan else np.zeros(want.shape, bool)
    lost = np.isnan(got) & ~np.isnan(want)
    with np.errstate(invalid="ignore"):
        far = ~np.isclose(got, want, RELATIVE, ABSOLUTE) & ~np.isnan(got) & ~np.isnan(want)
    # sinh(100) overflows in JAX also where its product with a small sine does not.
    far &= ~(np.isinf(want) & (np.sign(got) == np.sign(want)) & (np.abs(got) > 1e38))
    return nan | lost | far


@together(by="kind", size=29)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(("kind", "name"), REAL_CASES)
def test_real(kind, name, jitted):
    operands = cases.operands(kind)
    wrap = gpuflow.jit if jitted else lambda f: f
    got = cases.results(function_of(name), operands, gpuflow.jvp, gpuflow.vjp, wrap)
    for key, outs in STORED[kind][name].items():
        for value, (dtype, text) in zip(got[key], outs, strict=True):
            assert value.dtype.name == dtype
            result, want = value.reshape(-1).astype(float), numbers(text)
            bad = disagreements(result, want, name in LIMITS)
            where = [tuple(float(x[k]) for x in operands) for k in np.flatnonzero(bad)]
            assert not bad.any(), (key, where, result[bad], want[bad])


# XLA flips the sign of one side of a cut for -0, which NumPy and C99 do not.
CUTS = ("acos", "arccos", "acosh", "arccosh", "asin", "arcsin", "asinh", "arcsinh", "atan",
        "arctan", "atanh", "arctanh", "sqrt", "rsqrt", "reciprocal")  # fmt: skip


@together(size=29)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", STORED["complex_unary"])
def test_complex(name, jitted):
    (x,) = cases.operands("complex_unary")
    (out,) = STORED["complex_unary"][name]["value"]
    function = function_of(name)
    value = np.asarray((gpuflow.jit(function) if jitted else function)(x))
    assert value.dtype.name == out[0]
    want = numbers(out[1])
    if value.dtype.kind == "c":
        want = want.reshape(-1, 2)
        value = np.stack([value.real, value.imag], -1)
    else:
        want, value = want[:, None], value.astype(float)[:, None]
    finite = np.isfinite(x)
    if name.partition(".")[2] in CUTS:
        finite &= ~(np.signbit(x.real) & (x.real == 0)) & ~(np.signbit(x.imag) & (x.imag == 0))
    bad = disagreements(value, want, excuse_nan=True).any(-1) & finite
    assert not bad.any(), (x[bad], value[bad], want[bad])


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_small_complex_numbers(jitted):
    """log1p and expm1 keep the digits of small numbers, in both parts: against their series."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=500) + 1j * rng.normal(size=500)) * 10.0 ** rng.uniform(-7, -3, 500)
    x = x.astype(np.complex64)
    z = x.astype(np.complex128)
    # The next term is below 1e-9 of the first.
    series = {
        "log1p": z - z**2 / 2 + z**3 / 3 - z**4 / 4,
        "expm1": z + z**2 / 2 + z**3 / 6 + z**4 / 24,
    }
    for name, want in series.items():
        function = getattr(lax, name)
        got = np.asarray((gpuflow.jit(function) if jitted else function)(x))
        # The real part of log1p may cancel: relative to the larger of x ** 2 and itself.
        scale = np.maximum(np.abs(want.real), np.abs(z) ** 2)
        assert np.all(np.abs(got.real - want.real) <= 3e-7 * scale)
        assert np.all(np.abs(got.imag - want.imag) <= 3e-7 * np.abs(want.imag))


def test_expm1_of_large_real_numbers_is_real():
    x = np.array([100, np.inf, -np.inf, np.nan], np.complex64)
    for function in (lax.expm1, gpuflow.jit(lax.expm1)):
        got = np.asarray(function(x))
        assert not got.imag.any()
        np.testing.assert_array_equal(got.real, [np.inf, np.inf, -1, np.nan])


def test_softplus_at_its_ends():
    derivatives = gpuflow.vmap(gpuflow.grad(gpuflow.nn.softplus))(
        jnp.array([np.inf, -np.inf, np.nan, 0.0])
    )
    np.testing.assert_array_equal(derivatives, [1, 0, np.nan, 0.5])


def test_sinc_of_large_numbers():
    """The series around 0 overflowed where it was not taken, and made the derivative nan."""
    for x in (1e8, 1e10, 1e30):
        assert abs(gpuflow.grad(jnp.sinc)(x)) <= 1.1 / x


def test_boxcox_of_a_logarithm():
    x = np.array([np.inf, 0.0, 2.0], np.float32)
    np.testing.assert_allclose(
        gpuflow.scipy.special.boxcox(x, 0.0), [np.inf, -np.inf, np.log(2)], rtol=1e-6
    )
    assert gpuflow.grad(gpuflow.scipy.special.factorial)(0.0) == pytest.approx(-0.5772157, rel=1e-5)
