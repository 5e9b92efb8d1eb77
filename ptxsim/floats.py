"""Float instructions.

add, sub, mul, div.rn, fma, sqrt.rn and rcp.rn are rounded once, as in hardware. Instructions named
``approx`` or ``full`` are modeled by the exact result rounded to nearest, from which a GPU may
differ by the last digits stated in the PTX manual; ``rcp.approx.ftz.f64`` gives the upper 32 bits,
as a GPU does. The bits of a NaN are not modeled.

Tests: tests/ptxsim/test_ptx_arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxsim import rounding
from ptxsim.frame import Step
from ptxsim.instruction_table import compute, instruction
from ptxsim.site import Site
from ptxsim.types import BOOL, F16, F32, F64, PACKED, TYPES, U64, Array, bits

_TINY = {F32: np.float32(2.0**-126), F16: np.float16(2.0**-14)}


# --- modifiers ---------------------------------------------------------------------------


def flush(x: Array) -> Array:
    """Flush subnormal values to zeros of their sign."""
    tiny = _TINY.get(x.dtype)
    if tiny is None:
        return x
    small = np.abs(x) < tiny
    if not np.count_nonzero(small):
        return x
    return np.where(small, np.copysign(x.dtype.type(0), x), x)


def saturate(x: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    return np.where(x > zero, np.where(x < one, x, one), zero).astype(x.dtype)


def relu(x: Array) -> Array:
    """Clamp to at least 0; NaN stays."""
    return np.where(x < x.dtype.type(0), x.dtype.type(0), x).astype(x.dtype)


def finished(site: Site, function: Callable[..., Array]) -> Callable[..., Array]:
    """A function with its modifiers applied: .ftz, .sat, .relu."""
    flushes = site.has("ftz")
    last = saturate if site.has("sat") else relu if site.has("relu") else None
    if flushes:
        inner = function
        function = lambda *args: flush(inner(*(flush(x) for x in args)))  # noqa: E731
    if last is None:
        return function
    return lambda *args: last(function(*args))


def packed(
    function: Callable[..., Array], element: np.dtype, pair: np.dtype
) -> Callable[..., Array]:
    """A function of scalars as one of packed pairs."""

    def run(*operands: Array) -> Array:
        pairs = [np.ascontiguousarray(x).view(element).reshape(-1, 2) for x in operands]
        result = function(*pairs)
        return np.ascontiguousarray(result.view(bits(result.dtype))).reshape(-1).view(pair)

    return run


def mode_of(site: Site) -> str:
    """The rounding mode of the instruction; to nearest by default."""
    return site.one_of(rounding.MODES, "rn")


def float_step(
    site: Site, count: int, function_of: Callable[[np.dtype], Callable[..., Array]]
) -> Step:
    """The step of an instruction on ``count`` operands of one float type, packed or not."""
    name = site.type_name()
    element = PACKED.get(name)
    if element is None:
        dtype = TYPES[name]
        return compute(site, finished(site, function_of(dtype)), [dtype] * count, dtype)
    pair = TYPES[name]
    function = packed(finished(site, function_of(element)), element, pair)
    return compute(site, function, [pair] * count, pair)


# --- arithmetic; integers.py has the integer forms -----------------------------------------


def binary(site: Site, name: str) -> Step:
    """add, sub, mul."""
    mode = mode_of(site)
    return float_step(site, 2, lambda dtype: rounding.binary_function(name, dtype, mode))


def division(site: Site) -> Step:
    """div.rn, .approx, .full."""
    return binary(site, "div")


def multiply_add(site: Site) -> Step:
    """fma, mad."""
    mode, oob = mode_of(site), site.has("oob")
    if oob:
        site.refuse("must not have .oob")
    return float_step(site, 3, lambda dtype: rounding.fma_function(dtype, mode))


@instruction("fma")
def _fma(site: Site) -> Step:
    return multiply_add(site)


def extreme(site: Site, largest: bool) -> Step:
    """min, max, with two operands or three."""
    function: Any = _maximum if largest else _minimum
    if site.has("NaN"):
        function = _maximum_nan if largest else _minimum_nan
    if site.has("abs"):
        function = _by_size(function, site.has("xorsign"))
    if site.count() == 4:
        two = function
        return float_step(site, 3, lambda dtype: lambda x, y, z: two(two(x, y), z))
    return float_step(site, 2, lambda dtype: function)


def _by_size(function: Any, xorsign: bool) -> Callable[[Array, Array], Array]:
    """The extreme of the magnitudes, with the exclusive or of the signs for ``xorsign``."""

    def run(x: Array, y: Array) -> Array:
        size = function(np.abs(x), np.abs(y))
        return np.where(np.signbit(x) != np.signbit(y), -size, size) if xorsign else size

    return run


def _maximum(x: Array, y: Array) -> Array:
    return _positive_zero(np.fmax(x, y), x, y)


def _maximum_nan(x: Array, y: Array) -> Array:
    return _positive_zero(np.maximum(x, y), x, y)


def _minimum(x: Array, y: Array) -> Array:
    return -_positive_zero(np.fmax(-x, -y), -x, -y)


def _minimum_nan(x: Array, y: Array) -> Array:
    return -_positive_zero(np.maximum(-x, -y), -x, -y)


def _positive_zero(result: Array, x: Array, y: Array) -> Array:
    """Of two zeros the positive one is the larger; NumPy takes any."""
    zero = result == 0
    if not np.count_nonzero(zero):
        return result
    return np.where(zero & (x == y), x + y, result).astype(result.dtype)


def negative(site: Site) -> Step:
    """neg: the sign bit."""
    return float_step(site, 1, lambda dtype: np.negative)


def magnitude(site: Site) -> Step:
    """abs: the sign bit."""
    return float_step(site, 1, lambda dtype: np.abs)


@instruction("copysign")
def _copysign(site: Site) -> Step:
    """``copysign d, a, b``: the sign of a, the size of b."""
    return float_step(site, 2, lambda dtype: lambda sign, size: np.copysign(size, sign))


# --- functions ---------------------------------------------------------------------------


def _through64(function: Callable[[Array], Array]) -> Callable[[np.dtype], Callable[..., Array]]:
    """A function rounded once, to nearest, except for rare ties of the float64 error."""

    def of(dtype: np.dtype) -> Callable[..., Array]:
        if dtype == F64:
            return function
        return lambda x: rounding.narrow(function(x.astype(F64)), dtype)

    return of


_APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


@instruction(*_APPROXIMATE)
def _function(site: Site) -> Step:
    return float_step(site, 1, _through64(_APPROXIMATE[site.instruction.opcode]))


@instruction("sqrt")
def _sqrt(site: Site) -> Step:
    mode = mode_of(site)
    return float_step(site, 1, lambda dtype: rounding.sqrt_function(dtype, mode))


@instruction("rcp")
def _reciprocal(site: Site) -> Step:
    mode = mode_of(site)
    if site.has("approx") and site.type_name() == "f64":
        upper = U64.type(0xFFFFFFFF00000000)
        return compute(site, lambda x: ((1 / x).view(U64) & upper).view(F64), [F64], F64)
    one = {F32: np.ones(1, F32), F64: np.ones(1, F64)}

    def of(dtype: np.dtype) -> Callable[..., Array]:
        divide = rounding.binary_function("div", dtype, mode)
        return lambda x: divide(one[dtype], x)

    return float_step(site, 1, of)


@instruction("testp")
def _test(site: Site) -> Step:
    dtype = site.dtype()
    tiny = np.finfo(dtype).tiny
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (np.abs(x) < tiny) & (x != 0),
    }
    return compute(site, tests[site.one_of(tuple(tests), "finite")], [dtype], BOOL)
