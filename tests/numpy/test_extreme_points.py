"""Functions at the ends of the range of each dtype, against NumPy and SciPy.

Points are 0, -0.0, 1, infinities, nan, the largest, smallest normal and smallest subnormal numbers,
their roots, and the arguments at which exponentials over- and underflow. The reference is computed
at the same points in float64, for float64 in long double where NumPy has it. All functions of a
dtype are one program under jit; those of float32 and float64 also run eagerly.
"""

from __future__ import annotations

import ml_dtypes
import mpmath as mp
import numpy as np
import pytest
import scipy.special as sp
import scipy.stats

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn
from gpuflow.scipy import special, stats

INF = np.inf
NUMPY_UNARY = [
    "abs", "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin",
    "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh",
    "arctanh", "floor", "ceil", "trunc", "rint", "sign", "square", "reciprocal", "deg2rad",
    "rad2deg", "i0",
]  # fmt: skip
NUMPY_BINARY = [
    "add", "subtract", "multiply", "divide", "power", "arctan2", "hypot", "logaddexp",
    "logaddexp2", "maximum", "minimum", "fmax", "fmin", "copysign", "remainder", "fmod",
    "heaviside", "float_power",
]  # fmt: skip
SCIPY_UNARY = [
    "erf",
    "erfc",
    "erfinv",
    "erfcx",
    "gamma",
    "digamma",
    "expit",
    "logit",
    "entr",
    "ndtri",
    "i0e",
    "i1e",
    "exp1",
    "dawsn",
]
SCIPY_BINARY = [
    "xlogy",
    "xlog1py",
]


def _by_mpmath(function):
    """Of numbers that are not far out, where SciPy has lost digits in float64."""

    def evaluate(x):
        with mp.workdps(40), np.errstate(over="ignore"):
            return np.longdouble(mp.nstr(function(mp.mpf(float(x))), 25))

    return np.vectorize(evaluate, otypes=[np.longdouble])


def _below_order(function, limit):
    """An incomplete gamma function; SciPy's is nan at the largest orders, instead of its limit."""

    def reference(a, x):
        far = (a > 1e300) & np.isfinite(a) & (x >= 0) & (x < a)
        return np.where(far, limit, function(a, x))

    return reference


def _near(exact, other):
    def function(x):
        near = np.abs(x) < 500
        return np.where(near, exact(np.where(near, x, 0)), other(x.astype(np.float64)))

    return function


_ndtr = _near(_by_mpmath(mp.ncdf), sp.ndtr)
_log_ndtr = _near(
    _by_mpmath(lambda x: mp.log(mp.ncdf(x)) if x < 0 else mp.log1p(-mp.ncdf(-x))), sp.log_ndtr
)


def _log_gamma(x):
    whole = x <= 0 and x == mp.floor(x)
    return mp.inf if whole else mp.log(abs(mp.gamma(x)))


_lgamma = _near(_by_mpmath(_log_gamma), lambda x: np.where(x == -INF, INF, sp.gammaln(x)))


def _product(x, weight):
    """Whose limit at -inf is 0."""
    return np.where(x == -INF, 0, x * weight)


def _squareplus(x):
    root = np.hypot(x, 2)
    return np.where(x < 0, 2 / (root - x), (x + root) / 2)


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": sp.expit,
    "softplus": lambda x: np.logaddexp(x, 0),
    "silu": lambda x: _product(x, sp.expit(x)),
    "log_sigmoid": lambda x: -np.logaddexp(-x, 0),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "soft_sign": lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_silu": lambda x: _product(x, np.clip(x / 6 + 0.5, 0, 1)),
    "squareplus": _squareplus,
    "mish": lambda x: _product(x, np.tanh(np.logaddexp(x, 0))),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
}
UNARY = {
    **{f"jnp.{n}": (getattr(jnp, n), getattr(np, n), 4) for n in NUMPY_UNARY},
    **{f"nn.{n}": (getattr(nn, n), f, 6) for n, f in ACTIVATIONS.items()},
    **{f"special.{n}": (getattr(special, n), getattr(sp, n), 40) for n in SCIPY_UNARY},
    # SciPy before 1.17 has nan at infinity.
    "special.expi": (special.expi, lambda x: np.where(x == INF, INF, sp.expi(x)), 40),
    "special.ndtr": (special.ndtr, _ndtr, 40),
    "special.log_ndtr": (special.log_ndtr, _log_ndtr, 40),
    "lax.logistic": (lax.logistic, sp.expit, 4),
    "lax.rsqrt": (lax.rsqrt, lambda x: 1 / np.sqrt(x), 4),
    "lax.lgamma": (lax.lgamma, _lgamma, 40),
    # The operand of erfc is rounded, whose square the result is the exponential of.
    "gelu": (lambda x: nn.gelu(x, approximate=False), lambda x: _product(x, _ndtr(x)), 1000),
}
BINARY = {
    **{f"jnp.{n}": (getattr(jnp, n), getattr(np, n), 4) for n in NUMPY_BINARY},
    **{f"special.{n}": (getattr(special, n), getattr(sp, n), 60) for n in SCIPY_BINARY},
    "special.gammainc": (special.gammainc, _below_order(sp.gammainc, 0), 60),
    "special.gammaincc": (special.gammaincc, _below_order(sp.gammaincc, 1), 60),
}
# Where the result is a small difference of large terms, so many eps of the largest operand.
CANCELLING = {"jnp.logaddexp", "jnp.logaddexp2", "lax.lgamma"}
# Known to be wrong: infinite here, as in SciPy.
MISSES = {("lax.lgamma", 5e-324), ("lax.lgamma", -5e-324)}


def _points(dtype):
    limits = ml_dtypes.finfo(dtype)
    largest, tiny = float(limits.max), float(limits.tiny)
    one_sided = [0, 0.5, 1, 2, 10, 30, 100, 1e3, INF, largest, tiny, 1.01 * largest**0.5,
                 float(limits.smallest_subnormal), float(limits.eps), 0.7 * tiny**0.5]  # fmt: skip
    others = [
        np.nan,
        3,
        1 - float(limits.epsneg),
        1 + float(limits.eps),
        np.log(largest),
        np.log(tiny),
    ]
    return np.array([*one_sided, *(-v for v in map(float, one_sided)), *others]).astype(dtype)


def _reference(function, operands, dtype):
    wide = np.longdouble if dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        try:
            return function(*[x.astype(wide) for x in operands])
        except TypeError:  # SciPy has few functions of long doubles
            return function(*[x.astype(np.float64) for x in operands])


def _wrong(name, got, exact, operands, dtype, units):
    """The points at which a result is not the exact number, up to roundings and underflow."""
    limits = ml_dtypes.finfo(dtype)
    largest, tiny, eps = (float(v) for v in (limits.max, limits.tiny, limits.eps))
    got, exact = np.asarray(got).astype(np.longdouble), np.asarray(exact, np.longdouble)
    with np.errstate(all="ignore"):
        size = np.abs(exact)
        allowed = units * eps * size + np.where(size < 2 * tiny, tiny, 0)
        if name in CANCELLING:
            allowed = allowed + eps * np.max(np.abs(np.array(operands, np.float64)), 0)
        close = np.abs(got - exact) <= allowed
        overflows = (size > 0.98 * largest) & (got == np.sign(exact) * INF)
        same = (np.isnan(got) & np.isnan(exact)) | (got == exact)
        bad = ~(close | overflows | same)
    rows = [
        (name, *(float(x[k]) for x in operands), float(got[k]), float(exact[k]))
        for k in np.flatnonzero(bad)
    ]
    return [row for row in rows if row[:2] not in MISSES]


def _takes(function, operands):
    """Whether a function has this dtype at all: some of JAX's have only float32 and float64."""
    try:
        gf.eval_shape(function, *operands)
    except TypeError:
        return False
    return True


def _sweep(table, operands, dtype):
    arrays = [jnp.asarray(x) for x in operands]
    taken = {name: row for name, row in table.items() if _takes(row[0], arrays)}
    assert len(taken) > 0.6 * len(table)
    compiled = gf.jit(lambda *xs: {name: row[0](*xs) for name, row in taken.items()})(*arrays)
    wrong = []
    for name, (function, reference, units) in taken.items():
        exact = _reference(reference, operands, dtype)
        wrong += _wrong(name, compiled[name], exact, operands, dtype, units)
        if dtype.itemsize > 2:
            wrong += _wrong(name, function(*arrays), exact, operands, dtype, units)
    assert wrong == []


DTYPES = [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_functions_of_one_operand(dtype):
    with gf.enable_x64(dtype == np.float64):
        _sweep(UNARY, [_points(dtype)], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_functions_of_two_operands(dtype):
    """At all pairs, equal ones too."""
    with gf.enable_x64(dtype == np.float64):
        pairs = [x.ravel() for x in np.meshgrid(_points(dtype), _points(dtype))]
        _sweep(BINARY, pairs, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_scalars_and_empty_arrays(dtype):
    with gf.enable_x64(dtype == np.float64):
        names = ["exp", "log1p", "tanh", "sinc", "abs", "square"]
        x = np.array(0.5, dtype)
        for name in names:
            function = getattr(jnp, name)
            expected = function(x[None])[0]
            for call in (function, gf.jit(function)):
                # Kernels and the library's functions round differently.
                rounding = 4 * float(jnp.finfo(dtype).eps)
                np.testing.assert_allclose(float(call(x)), float(expected), rtol=rounding)
                assert call(x).shape == ()
                assert call(x[None][:0]).shape == (0,)
        for name in ("sum", "prod", "any", "all", "logaddexp.reduce"):
            function = jnp.logaddexp.reduce if "." in name else getattr(jnp, name)
            empty = np.zeros((0, 3), dtype)
            want = (
                np.logaddexp.reduce(np.zeros((0, 3)))
                if "." in name
                else getattr(np, name)(np.zeros((0, 3)), axis=0)
            )
            for call in (
                lambda x, f=function: f(x, axis=0),
                gf.jit(lambda x, f=function: f(x, axis=0)),
            ):
                np.testing.assert_array_equal(np.asarray(call(empty), np.float64), want)
        for function in (jnp.mean, jnp.var, jnp.std, jnp.nanmean, jnp.median):
            assert np.isnan(float(function(jnp.zeros(0, dtype))))


def test_gamma_next_to_its_pole():
    """gamma(-tiny) is representable, and was -inf."""
    tiny = np.float32(np.finfo(np.float32).tiny)
    for call in (special.gamma, gf.jit(special.gamma), gf.vmap(special.gamma)):
        np.testing.assert_allclose(call(np.array([tiny, -tiny])), [1 / tiny, -1 / tiny], rtol=1e-6)


COMPLEX_UNARY = [
    "abs", "sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "sign", "angle",
]  # fmt: skip


def _complex_points():
    """Pairs of real and imaginary parts; of subnormal numbers complex64 keeps few digits."""
    limits = np.finfo(np.float32)
    sizes = [
        0,
        0.5,
        1,
        2,
        30,
        100,
        1e3,
        limits.max,
        limits.tiny,
        1.01 * limits.max**0.5,
        0.7 * limits.tiny**0.5,
        limits.eps,
        1 - limits.epsneg,
        1 + limits.eps,
    ]
    parts = np.float32([*sizes, *(-float(v) for v in sizes)])
    z = np.empty((parts.size, parts.size), np.complex64)
    z.real, z.imag = parts[:, None], parts
    return z.ravel()


def _wrong_parts(got, exact):
    """Where a part is neither near the exact one, by the size of the number, nor overflows."""
    limits = np.finfo(np.float32)
    got, exact = np.asarray(got, np.complex128), np.asarray(exact, np.complex128)
    with np.errstate(all="ignore"):
        allowed = 16 * limits.eps * np.minimum(np.abs(exact), limits.max) + limits.tiny
        bad = np.zeros(got.shape, bool)
        for a, b in ((got.real, exact.real), (got.imag, exact.imag)):
            overflows = (np.abs(b) > 0.98 * limits.max) & (np.abs(a) > 0.96 * limits.max)
            same = (a == b) | (np.isnan(a) & np.isnan(b)) | (overflows & (np.sign(a) == np.sign(b)))
            bad |= ~(same | (np.abs(a - b) <= allowed))
    return bad


@pytest.mark.parametrize("jitted", [False, True])
def test_functions_of_complex_numbers(jitted):
    """Against NumPy in complex128, where all that complex64 has is moderate."""
    z = _complex_points()
    names = COMPLEX_UNARY

    def run(z):
        return {name: getattr(jnp, name)(z) for name in names}

    with np.errstate(all="ignore"):
        results = (gf.jit(run) if jitted else run)(jnp.asarray(z))
        wrong = []
        for name, got in results.items():
            exact = getattr(np, name)(z.astype(np.complex128))
            for k in np.flatnonzero(_wrong_parts(got, exact)):
                wrong.append((name, z[k], np.asarray(got)[k], exact[k]))
    assert wrong == []


def _exact_parts(name, z):
    """Of a finite z other than 0, by mpmath."""
    function = {"square": lambda v: v * v, "sqrt": mp.sqrt, "log": mp.log}[name]
    exact = function(mp.mpc(float(z.real), float(z.imag)))
    below_cut = z.real < 0 and z.imag == 0 and np.signbit(z.imag) and name != "square"
    return exact.real, -exact.imag if below_cut else exact.imag


def _is_part(got, exact, limits):
    if abs(exact) > float(limits.max):
        return np.isinf(got) and got * exact > 0
    allowed = 8 * float(limits.eps) * abs(exact) + 2 * mp.mpf(float(limits.smallest_subnormal))
    return np.isfinite(got) and abs(mp.mpf(float(got)) - exact) <= allowed


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_at_the_ends_of_the_range(dtype):
    """Differences of squares that overflow had the wrong sign, or were nan; moduli of subnormal
    numbers have one digit."""
    limits = np.finfo(dtype)
    least, big = limits.smallest_subnormal, limits.max
    sizes = [0, least, 5 * least, limits.tiny, 1, big**0.5, 1.1 * big**0.5, 0.7 * big, big]
    parts = np.array([*sizes, *(-v for v in sizes)], limits.dtype)
    z = np.empty((parts.size, parts.size), dtype)
    z.real, z.imag = parts[:, None], parts
    z = z[z != 0]
    wrong = []
    with gf.enable_x64(dtype == np.complex128), mp.workdps(60):
        for name in ("square", "sqrt", "log"):
            exact = [_exact_parts(name, v) for v in z]
            for jitted in (False, True):
                call = gf.jit(getattr(jnp, name)) if jitted else getattr(jnp, name)
                wrong += [
                    (name, jitted, v, got)
                    for v, got, (a, b) in zip(z, np.asarray(call(z)), exact, strict=True)
                    if not (_is_part(got.real, a, limits) and _is_part(got.imag, b, limits))
                ]
    assert wrong == []


def test_sign_of_infinite_complex_numbers():
    """One infinite part decides, as in NumPy; two have no direction."""
    for call in (jnp.sign, gf.jit(jnp.sign)):
        z = np.array([INF + 1j, -INF - 5j, complex(2, INF), complex(-2, -INF), INF])
        np.testing.assert_array_equal(call(z), [1, -1, 1j, -1j, 1])
        assert np.isnan(call(np.array([complex(INF, INF), complex(INF, np.nan)]))).all()
        slope = gf.jvp(call, (np.complex64(INF + 1j),), (np.complex64(1 + 1j),))[1]
        assert slope == 0


DENSITIES = {
    "norm": [()],
    "cauchy": [()],
    "logistic": [()],
    "expon": [()],
    "t": [(3.0,), (1e10,), (1e-3,)],
    "gamma": [(2.5,), (1e-3,), (1e8,)],
    "pareto": [(2.0,)],
}


@pytest.mark.parametrize("name", DENSITIES)
def test_log_densities(name):
    """At infinity, where SciPy has nan for gamma, they are -inf."""
    limits = np.finfo(np.float32)
    sizes = [0, 0.5, 1, 2, 30, 1e3, 1e8, limits.max, limits.tiny, 1e-20, limits.max**0.5, np.inf]
    x = np.float32([*sizes, *(-float(v) for v in sizes), np.nan])
    for parameters in DENSITIES[name]:
        narrow = np.float32(parameters)
        got = np.asarray(gf.jit(getattr(stats, name).logpdf)(x, *narrow), np.float64)
        with np.errstate(all="ignore"):
            exact = getattr(scipy.stats, name).logpdf(x.astype(float), *narrow.astype(float))
        exact = np.where(np.isinf(x) & np.isnan(exact), -INF, exact)
        exact = np.where(np.abs(exact) > limits.max, np.sign(exact) * INF, exact)
        np.testing.assert_allclose(got, exact, rtol=2e-5, atol=2e-6, err_msg=str(parameters))
