"""NumPy definitions of scalar functions that NumPy lacks, or defines differently.

Each works on arrays of one compute dtype and of one shape, and gives arrays of the result dtype.
Dtypes are checked, and warnings silenced, by the caller: ``kir.scalar.ScalarFunction``.

Tests: tests/kir/test_kir_scalar.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import ml_dtypes
import numpy as np

Array = np.ndarray


def _load_scipy_special() -> ModuleType:
    """Import scipy.special: slow to load, and only the definitions of erf and gamma need it."""
    import scipy.special

    return scipy.special


def scipy_special(name: str) -> Callable[[Array], Array]:
    """A scipy.special function of one argument, evaluated in float64 and rounded once."""

    def evaluate(x: Array) -> Array:
        function = getattr(_load_scipy_special(), name)
        return np.asarray(function(x.astype(np.float64))).astype(x.dtype)

    return evaluate


def maximum(x: Array, y: Array) -> Array:
    """Maximum that propagates nan and orders -0.0 below 0.0."""
    result = np.maximum(x, y)
    if x.dtype.kind != "f":
        return result
    return np.where((x == 0) & (y == 0), x + y, result)


def minimum(x: Array, y: Array) -> Array:
    """Minimum that propagates nan and orders -0.0 below 0.0."""
    result = np.minimum(x, y)
    if x.dtype.kind != "f":
        return result
    return np.where((x == 0) & (y == 0), -((-x) + (-y)), result)


def divide(x: Array, y: Array) -> Array:
    """Float: true division. Integer: truncated; x / 0 is all ones, INT_MIN / -1 is INT_MIN."""
    if x.dtype.kind == "f":
        return np.true_divide(x, y)
    all_ones = ~np.zeros((), x.dtype)
    if x.dtype.kind == "u":
        return np.where(y == 0, all_ones, x // np.where(y == 0, 1, y).astype(x.dtype))
    # -1 is taken out too: its quotient is the negation, which wraps as defined.
    nonzero_y = np.where((y == 0) | (y == -1), 1, y).astype(x.dtype)
    floor_quotient = x // nonzero_y
    inexact = floor_quotient * nonzero_y != x
    truncated = floor_quotient + (inexact & ((x < 0) != (nonzero_y < 0))).astype(x.dtype)
    return np.where(y == 0, all_ones, np.where(y == -1, -x, truncated))


def remainder(x: Array, y: Array) -> Array:
    """Remainder with the sign of the dividend; integer x rem 0 is x, INT_MIN rem -1 is 0."""
    if x.dtype.kind == "f":
        return np.fmod(x, y)
    return np.where(y == 0, x, x - divide(x, y) * y)


def round_away(x: Array) -> Array:
    """Round to the nearest integer, halves away from zero."""
    truncated = np.trunc(x)
    rounds_up = np.abs(x - truncated) >= 0.5
    return np.copysign(np.where(rounds_up, np.abs(truncated) + 1, np.abs(truncated)), x).astype(
        x.dtype
    )


def sign(x: Array) -> Array:
    """-1, 0 or 1; a zero keeps its sign and nan stays."""
    return np.where(x == 0, x, np.sign(x)).astype(x.dtype)


def absolute(x: Array) -> Array:
    """Absolute value; INT_MIN stays."""
    return np.abs(x)


def negative(x: Array) -> Array:
    """Negation; integers wrap."""
    return np.negative(x)


def rsqrt(x: Array) -> Array:
    """Reciprocal square root."""
    return 1 / np.sqrt(x)


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow, evaluated in float64."""
    wide = x.astype(np.float64)
    small = np.exp(-np.abs(wide))
    return np.where(wide >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z with the exact product, within one ulp; a printer may round the product as well.

    Source: Dekker (1971), A floating-point technique for extending the available precision.
    """
    if x.dtype == np.float32:
        # A product of two float32 is exact in float64.
        return (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(x.dtype)
    product = x * y
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    total = product + z
    recovered_z = total - product
    lost_bits = (product - (total - recovered_z)) + (z - recovered_z)
    corrected = total + (lost_bits + error)
    return np.where(np.isfinite(corrected) & (lost_bits + error != 0), corrected, total)


def _halves(x: Array) -> tuple[Array, Array]:
    """A float64 as a sum of two: the high 26 bits of its significand, and the low 27.

    So a product with a high half is exact in float64.
    """
    low_bits = np.uint64(2**27 - 1)
    high = (np.ascontiguousarray(x).reshape(x.shape).view(np.uint64) & ~low_bits).view(np.float64)
    return high, x - high


def lgamma(x: Array) -> Array:
    """Logarithm of the absolute value of the gamma function; inf at its poles and at -inf."""
    return np.where(np.isinf(x), np.abs(x), scipy_special("gammaln")(x))


def erf_inv(x: Array) -> Array:
    """The inverse of erf. scipy.special.erfinv loses the sign of zero."""
    return np.where(x == 0, x, scipy_special("erfinv")(x))


def digamma(x: Array) -> Array:
    """Digamma function; nan at its poles."""
    is_pole = (x <= 0) & (x == np.floor(x))
    return np.where(is_pole, np.nan, scipy_special("psi")(x)).astype(x.dtype)


def shift_left(x: Array, y: Array) -> Array:
    """x << y; 0 where y as an unsigned number is at least the width."""
    in_range, count = _shift_count(x, y)
    return np.where(in_range, x << count, 0).astype(x.dtype)


def shift_right_logical(x: Array, y: Array) -> Array:
    """x >> y with zeros shifted in; 0 where y is at least the width."""
    in_range, count = _shift_count(x, y)
    unsigned = _unsigned(x)
    shifted = (unsigned >> count.astype(unsigned.dtype)).view(x.dtype)
    return np.where(in_range, shifted, 0).astype(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    """x >> y with the sign bit shifted in; all sign bits where y is at least the width."""
    in_range, count = _shift_count(x, y)
    signed = np.ascontiguousarray(x).reshape(x.shape).view(f"i{x.itemsize}")
    bits = np.where(in_range, count.astype(signed.dtype), 8 * x.itemsize - 1)
    return (signed >> bits.astype(signed.dtype)).view(x.dtype)


def _shift_count(x: Array, y: Array) -> tuple[Array, Array]:
    """Whether the shift is below the width, and a count that NumPy accepts everywhere."""
    in_range = _unsigned(y) < 8 * x.itemsize
    return in_range, np.where(in_range, y, 0).astype(x.dtype)


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.itemsize}")


def population_count(x: Array) -> Array:
    """The number of bits that are set."""
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def clz(x: Array) -> Array:
    """The number of leading zero bits; the width for 0."""
    width = 8 * x.itemsize
    if width < 64:  # a float64 holds it, whose exponent counts the bits from the first one
        return (width - np.frexp(_unsigned(x).astype(np.float64))[1]).astype(x.dtype)
    bits = _bits(x)
    return np.where(bits.any(axis=-1), np.argmax(bits, axis=-1), width).astype(x.dtype)


def _bits(x: Array) -> Array:
    """The bits of each element along a new last axis, most significant first."""
    shifts = np.arange(8 * x.itemsize - 1, -1, -1, dtype=f"u{x.itemsize}")
    return (_unsigned(x)[..., None] >> shifts) & np.array(1, shifts.dtype)


def rounding(storage: str) -> Callable[[Array], Array]:
    """A function that rounds float32 to a narrower float type and widens it again.

    Args:
        storage: a name in ``kir.scalar.NARROW_DTYPES``.
    """
    narrow = np.dtype(np.float16 if storage == "float16" else getattr(ml_dtypes, storage))

    def evaluate(x: Array) -> Array:
        return x.astype(narrow).astype(np.float32)

    return evaluate


def bitcast(target: str) -> Callable[[Array], Array]:
    """A function that reads the same bits as another dtype of the same width.

    Args:
        target: a compute dtype but bool.
    """

    def evaluate(x: Array) -> Array:
        return np.ascontiguousarray(x).reshape(x.shape).view(target)

    return evaluate


def threefry2x32(k0: Array, k1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds on uint32 arrays: the two words of each random block.

    Args:
        k0, k1: the key.
        x0, x1: the counter.

    Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3.
    """
    key_words = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = x0 + key_words[0], x1 + key_words[1]
    for group in range(5):
        for rotation in rotations[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + key_words[(group + 1) % 3]
        x1 = x1 + key_words[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def cast(x: Array, dtype: str) -> Array:
    """Convert between compute dtypes as defined by ``nodes.Cast``.

    Args:
        x: array of a compute dtype.
        dtype: the compute dtype to convert to.

    Returns:
        Array of ``dtype``: float to integer truncates and saturates and nan gives 0; integers
        wrap; to bool is ``x != 0``; to float rounds to nearest, ties to even.
    """
    target = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype == "bool":
            return x != 0
        if x.dtype.kind != "f" or target.kind == "f":
            return x.astype(target)
        return _saturate(x.astype(np.float64), target)


def _saturate(x: Array, target: np.dtype) -> Array:
    bounds = np.iinfo(target)
    # The power of two above the maximum is a float even where the maximum is not.
    too_large = x >= float(bounds.max + 1)
    too_small = x < float(bounds.min)
    in_range = np.where(too_large | too_small | np.isnan(x), 0.0, x)
    result = np.trunc(in_range).astype(target)
    result = np.where(too_large, np.array(bounds.max, target), result)
    return np.where(too_small, np.array(bounds.min, target), result)
