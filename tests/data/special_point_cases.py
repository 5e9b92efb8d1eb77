"""Elementwise functions and the points at which they are compared with JAX.

Read by make_special_points.py, which runs them under JAX, and by tests/ops/test_special_points.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

INF, NAN = float("inf"), float("nan")

# Infinities, nan, both zeros, borders of domains and of overflow, and numbers between.
REAL = np.array(
    [INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0, 1.5, -2.5, 1e-5,
     -1e-5, 1e-30, -1e-30, 20.0, -20.0, 88.0, -88.0, 100.0, -100.0, 1e10, -1e10, 3e38, -3e38],
    np.float32,
)  # fmt: skip
_FEW = np.array(
    [INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -1.5, 100.0, 1e-5], np.float32
)
PAIRS = tuple(np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(_FEW, _FEW, indexing="ij"))
_PARTS = np.array([INF, -INF, NAN, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-5, 100.0], np.float32)
COMPLEX = np.array([complex(a, b) for a in _PARTS for b in _PARTS], np.complex64)


def _names(text: str) -> list[str]:
    return text.split()


_NUMPY_UNARY = _names("""
abs acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cbrt ceil conj
cos cosh deg2rad degrees exp exp2 expm1 fabs floor i0 isfinite isinf isnan isneginf isposinf log
log10 log1p log2 logical_not nan_to_num negative positive rad2deg radians reciprocal rint round
sign signbit sin sinc sinh spacing sqrt square tan tanh trunc unwrap angle frexp modf real
""")
_LAX_UNARY = _names("""
abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv
erfc exp exp2 expm1 floor is_finite lgamma log log1p logistic neg reciprocal round rsqrt sign sin
sinh sqrt square tan tanh
""")
_NN_UNARY = _names("""
celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp log_sigmoid
mish relu relu6 selu sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus swish
tanh
""")
_SPECIAL_UNARY = _names("""
dawsn digamma entr erf erfc erfcx erfinv expit factorial gamma gammaln gammasgn i0 i0e
i1 i1e log_ndtr loggamma logit ndtr ndtri spence
""")
_NUMPY_BINARY = _names("""
add arctan2 copysign divide divmod equal float_power floor_divide fmax fmin fmod greater
greater_equal heaviside hypot isclose less less_equal logaddexp logaddexp2 logical_and logical_or
logical_xor maximum minimum mod multiply nextafter not_equal power remainder subtract true_divide
""")
_LAX_BINARY = _names("""
add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub igamma igammac
""")
_SPECIAL_BINARY = _names("""
beta betaln boxcox boxcox1p gammainc gammaincc kl_div owens_t poch rel_entr xlog1py xlogy zeta
""")
_COMPLEX_UNARY = _names("""
abs arccos arccosh arcsin arcsinh arctan arctanh conj cos cosh exp exp2 expm1 log log10 log1p log2
negative reciprocal sign sin sinh sqrt square tan tanh angle isfinite isinf isnan nan_to_num round
sinc
""")
_LAX_COMPLEX = _names("""
abs acos acosh asin asinh atan atanh cos cosh exp exp2 expm1 log log1p logistic neg reciprocal
rsqrt sign sin sinh sqrt square tan tanh
""")


def unary() -> list[str]:
    """Functions of one real array, as ``module.name``."""
    return [
        *(f"jnp.{n}" for n in _NUMPY_UNARY),
        *(f"lax.{n}" for n in _LAX_UNARY),
        *(f"nn.{n}" for n in _NN_UNARY),
        *(f"special.{n}" for n in _SPECIAL_UNARY),
    ]


def binary() -> list[str]:
    """Functions of two real arrays."""
    return [
        *(f"jnp.{n}" for n in _NUMPY_BINARY),
        *(f"lax.{n}" for n in _LAX_BINARY),
        *(f"special.{n}" for n in _SPECIAL_BINARY),
    ]


def complex_unary() -> list[str]:
    """Functions of one complex array."""
    return [*(f"jnp.{n}" for n in _COMPLEX_UNARY), *(f"lax.{n}" for n in _LAX_COMPLEX)]


def operands(kind: str) -> tuple[np.ndarray, ...]:
    """The arrays that functions of a kind are called with."""
    if kind == "unary":
        return (REAL,)
    if kind == "binary":
        return PAIRS
    return (COMPLEX,)


KINDS: dict[str, Callable[[], list[str]]] = {
    "unary": unary,
    "binary": binary,
    "complex_unary": complex_unary,
}


def results(
    function: Callable[..., Any],
    given: tuple[np.ndarray, ...],
    jvp: Any,
    vjp: Any,
    wrap: Callable[[Any], Any] = lambda f: f,
) -> dict[str, list[np.ndarray]]:
    """Values, and of real functions the derivatives by each operand, forward and in reverse.

    Args:
        function: of the operands.
        given: the operands.
        jvp, vjp: the transformations.
        wrap: around each whole computation, such as jit.
    """

    def flat(value: Any) -> list[Any]:
        if isinstance(value, tuple | list):
            return [part for item in value for part in flat(item)]
        return [value]

    by_way = {"value": [np.asarray(v) for v in flat(wrap(function)(*given))]}
    if any(v.dtype.kind != "f" for v in [*by_way["value"], *given]):
        return by_way
    for place in range(len(given)):

        def forward(*xs: Any, place: int = place) -> Any:
            def one(x: Any) -> Any:
                return flat(function(*xs[:place], x, *xs[place + 1 :]))

            return jvp(one, (xs[place],), (np.ones_like(given[place]),))[1]

        by_way[f"forward {place}"] = [np.asarray(v) for v in wrap(forward)(*given)]

    def backward(*xs: Any) -> Any:
        outs, pull = vjp(lambda *ys: flat(function(*ys)), *xs)
        return pull([np.ones(out.shape, out.dtype) for out in outs])

    for place, cotangent in enumerate(wrap(backward)(*given)):
        by_way[f"reverse {place}"] = [np.asarray(cotangent)]
    return by_way
