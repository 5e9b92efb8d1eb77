"""Exact sums and products, and rounding them once, in any direction.

A float64 that was *rounded to odd* (where inexact, of the two neighbors the one with an odd last
bit) can be rounded again to a format of at most 51 bits as if it were exact: Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE
Transactions on Computers 57 (2008), theorem 2 and algorithm 5.

Tests: tests/ptxsim/test_ptx_arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ptxsim.types import BF16, F16, F32, F64, I64, U16, U32, Array

MODES = ("rn", "rz", "rm", "rp", "rna")
_TINY32 = np.float32(2.0**-126)
_CUT = (1 << 29) - 1  # the bits of a float64 that a float32 lacks
_TIE = 1 << 28
_SPLITTER = 134217729.0  # 2**27 + 1: Veltkamp's, cuts a float64 into two halves
_SMALL, _LARGE = 2.0**-960, 2.0**990  # outside, products of halves underflow or overflow


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """x + y and its rounding error (Knuth, TAOCP 2, 4.2.2); float64."""
    total = x + y
    rounded_y = total - x
    return total, (x - (total - rounded_y)) + (y - rounded_y)


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """x * y and its rounding error (Dekker 1971); float64, neither tiny nor huge."""
    product = x * y
    scaled = x * _SPLITTER
    x1 = scaled - (scaled - x)
    scaled = y * _SPLITTER
    y1 = scaled - (scaled - y)
    x2, y2 = x - x1, y - y1
    return product, x2 * y2 - (((product - x1 * y1) - x2 * y1) - x1 * y2)


def to_odd(total: Array, lost: Array) -> Array:
    """A float64 sum, rounded to nearest, as if rounded to odd."""
    bits = total.view(I64)
    inexact = (lost != 0) & np.isfinite(total) & (bits & 1 == 0)
    away = (lost > 0) == (total > 0)
    return np.where(inexact, bits + np.where(away, 1, -1), bits).view(F64)


def narrow(exact: Array, dtype: np.dtype, mode: str = "rn") -> Array:
    """A float64 that is exact or rounded to odd, rounded to a narrower format."""
    if mode == "rn":
        return _nearest(exact, dtype)
    result = _nearest(exact, dtype)
    back = result.astype(F64)
    return directed(result, (exact > back).astype(np.int8) - (exact < back), mode)


def directed(nearest: Array, lost: Array, mode: str) -> Array:
    """A result rounded to nearest, and the sign of exact minus it, in another direction."""
    if mode == "rn":
        return nearest
    dtype = nearest.dtype
    negative = np.signbit(nearest)
    down = lost < 0 if mode == "rm" else (lost < 0) & ~negative if mode == "rz" else None
    up = lost > 0 if mode == "rp" else (lost > 0) & negative if mode == "rz" else None
    result = nearest
    if down is not None:
        result = np.where(down, np.nextafter(nearest, dtype.type(-np.inf)), result)
    if up is not None:
        result = np.where(up, np.nextafter(nearest, dtype.type(np.inf)), result)
    return result


def _nearest(exact: Array, dtype: np.dtype) -> Array:
    if dtype == F64:
        return exact
    if dtype in (F32, F16):
        return exact.astype(dtype)
    if dtype == BF16:
        single = exact.astype(F32)
        return bf16_of(_odd32(single, exact - single))
    return exact.astype(F32).astype(dtype)


def _odd32(single: Array, lost: Array) -> Array:
    bits = single.view(np.int32)
    inexact = (lost != 0) & np.isfinite(single) & (bits & 1 == 0)
    away = ((lost > 0) == (single > 0)) | (single == 0)
    return np.where(inexact, bits + np.where(away, 1, -1).astype(np.int32), bits).view(F32)


def bf16_of(single: Array) -> Array:
    """A float32 rounded to the nearest bfloat16."""
    bits = single.view(U32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    rounded = np.where(np.isnan(single), 0x7FFF, rounded)
    return rounded.astype(U16).view(BF16)


def tf32_of(single: Array, mode: str) -> Array:
    """A float32 with 10 bits of fraction; ``rna`` rounds ties away from zero."""
    bits = single.view(U32)
    if mode == "rna":
        rounded = bits + 0x1000
    elif mode == "rz":
        rounded = bits
    else:
        rounded = bits + (0xFFF + (bits >> 13 & 1))
    return np.where(np.isfinite(single), rounded & np.uint32(0xFFFFE000), bits).astype(U32)


# --- x * y + z ---------------------------------------------------------------------------


def fma_function(dtype: np.dtype, mode: str) -> Callable[[Array, Array, Array], Array]:
    """x * y + z with one rounding."""
    if dtype == F64:
        return _fma64 if mode == "rn" else lambda x, y, z: _fma64_directed(x, y, z, mode)
    if dtype == F32 and mode == "rn":
        return _fma32
    return lambda x, y, z: narrow(_odd_fma(x, y, z), dtype, mode)


def _odd_fma(x: Array, y: Array, z: Array) -> Array:
    """The float64 of narrower operands, rounded to odd: their products are exact."""
    return to_odd(*two_sum(x.astype(F64) * y.astype(F64), z.astype(F64)))


def _fma32(x: Array, y: Array, z: Array) -> Array:
    total = x.astype(F64) * y.astype(F64) + z.astype(F64)
    result = total.astype(F32)
    # Rounding twice is wrong only where the first rounding ends at a tie of the second; ties of
    # subnormal results are elsewhere.
    unsure = (total.view(I64) & _CUT) == _TIE
    small = np.abs(result) < _TINY32
    if np.count_nonzero(small):
        unsure |= small & (total != 0)
    if np.count_nonzero(unsure):
        shape = result.shape
        whole = [v if v.shape == shape else np.broadcast_to(v, shape) for v in (x, y, z)]
        x, y, z = (v[unsure] for v in whole)
        result[unsure] = _odd_fma(x, y, z).astype(F32)
    return result


def _fma64(x: Array, y: Array, z: Array) -> Array:
    plain = x * y + z
    high, low = two_product(x, y)
    third, fourth = two_sum(z, low)
    sum_high, sum_low = two_sum(high, third)
    result = sum_high + to_odd(*two_sum(fourth, sum_low))
    result = np.where((low == 0) | (result == 0), high + z, result)
    result = np.where(np.isfinite(plain), result, plain)
    return _replace(result, _extreme(x, y, z, high), _exact_fma, x, y, z)


def _extreme(x: Array, y: Array, z: Array, product: Array) -> Array:
    """Mask of finite operands for which float64 is too narrow for the partial products."""
    sizes = [np.abs(value) for value in (x, y, z, product)]
    large = np.maximum(np.maximum(sizes[0], sizes[1]), np.maximum(sizes[2], sizes[3])) > _LARGE
    small = (sizes[3] < _SMALL) & (x != 0) & (y != 0)
    small = small | ((sizes[2] < _SMALL) & (z != 0))
    return (large | small) & np.isfinite(x) & np.isfinite(y) & np.isfinite(z)


def _replace(result: Array, where: Array, function: Callable[..., float], *args: Array) -> Array:
    """The result, with a Python function's values where a mask holds."""
    where = np.broadcast_to(where, result.shape)
    if not np.count_nonzero(where):
        return result
    operands = [np.broadcast_to(value, result.shape)[where].tolist() for value in args]
    result = result.copy()
    result[where] = [function(*values) for values in zip(*operands, strict=True)]
    return result


def _exact_fma(x: float, y: float, z: float) -> float:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return _float(exact) if exact else x * y + z


def _float(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def _fma64_directed(x: Array, y: Array, z: Array, mode: str) -> Array:
    nearest = _fma64(x, y, z)
    return directed(
        nearest,
        _signs(lambda x, y, z: Fraction(x) * Fraction(y) + Fraction(z), nearest, x, y, z),
        mode,
    )


def _signs(function: Callable[..., Fraction], nearest: Array, *args: Array) -> Array:
    """The signs of the exact results minus the rounded ones; 0 where nothing is finite."""
    finite = np.isfinite(nearest)
    for value in args:
        finite = finite & np.isfinite(value)
    operands = [np.broadcast_to(value, nearest.shape)[finite].tolist() for value in args]
    signs = np.zeros(nearest.shape, np.int8)
    rounded = nearest[finite].tolist()
    signs[finite] = [
        (exact > result) - (exact < result)
        for *values, result in zip(*operands, rounded, strict=True)
        for exact in [function(*values)]
    ]
    return signs


# --- the other operations ----------------------------------------------------------------

_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: Fraction(x) + Fraction(y),
    "sub": lambda x, y: Fraction(x) - Fraction(y),
    "mul": lambda x, y: Fraction(x) * Fraction(y),
    "div": lambda x, y: Fraction(x) / Fraction(y) if y else Fraction(0),
}
_NEAREST = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide}


def binary_function(name: str, dtype: np.dtype, mode: str) -> Callable[[Array, Array], Array]:
    """add, sub, mul or div with one rounding."""
    nearest = _NEAREST[name]
    if mode == "rn":
        return nearest
    if dtype == F64:
        return lambda x, y: _directed64(name, nearest(x, y), x, y, mode)
    return lambda x, y: narrow(_odd_binary(name, x.astype(F64), y.astype(F64)), dtype, mode)


def _directed64(name: str, nearest: Array, x: Array, y: Array, mode: str) -> Array:
    result = directed(nearest, _signs(_EXACT[name], nearest, x, y), mode)
    if name in ("add", "sub") and mode == "rm":  # x - x is -0 when rounding down
        opposite = np.signbit(x) != np.signbit(y if name == "add" else -y)
        result = np.where((result == 0) & opposite, -0.0, result)
    return result


def _odd_binary(name: str, x: Array, y: Array) -> Array:
    """The result of operands that were narrower, rounded to odd in float64."""
    if name in ("add", "sub"):
        return to_odd(*two_sum(x, y if name == "add" else -y))
    if name == "mul":
        return x * y
    quotient = x / y
    product, lost = two_product(quotient, y)
    remainder = (x - product) - lost
    return to_odd(quotient, np.where(np.isfinite(quotient), np.sign(remainder) * np.sign(y), 0.0))


def sqrt_function(dtype: np.dtype, mode: str) -> Callable[[Array], Array]:
    """The square root with one rounding."""
    if mode == "rn":
        return np.sqrt

    def run(x: Array) -> Array:
        nearest = np.sqrt(x)
        finite = np.isfinite(nearest) & (x > 0)
        signs = np.zeros(x.shape, np.int8)
        for index in np.flatnonzero(finite):
            square = Fraction(float(nearest[index])) ** 2
            exact = Fraction(float(x[index]))
            signs[index] = (exact > square) - (exact < square)
        return directed(nearest, signs, mode)

    del dtype
    return run
