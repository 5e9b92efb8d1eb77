"""Powers with complex exponents: ``2**(a + b i) = 2**a (cos(b ln 2) + i sin(b ln 2))``.

The angle in revolutions is ``b ln(2) / (2 pi)``, of which only the fraction is needed. Rounding the
product would lose all of its digits for a large ``b``, so it is formed from an integer and those
bits of the constant that contribute to the fraction:

    b = m 2**e       fraction(b c) = fraction(m fraction(2**e c))

Source: M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions, 1983.

Tests: tests/ops/test_complex_functions.py.
"""

from __future__ import annotations

from math import log, pi
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule

if TYPE_CHECKING:
    import decimal
else:
    decimal = LazyModule("decimal")

_LOG_2 = log(2.0)
# Bits of the integer m, of its lower half, of a chunk of the constant, and the number of chunks.
_BITS, _LOW, _CHUNK, _CHUNKS = 53, 27, 24, 5
# From an exponent of 1 on, b is an integer times at least 2**-52; the largest float64 is below
# 2**1024.
_FIRST, _LAST = 1 - _BITS, 1024 - _BITS


@cache
def _chunks() -> Any:
    """``fraction(2**e c)`` in chunks of 24 bits, for each e from ``_FIRST`` to ``_LAST``."""
    bits = _LAST + _CHUNK * _CHUNKS
    with decimal.localcontext() as context:
        context.prec = bits // 3 + 10
        constant = decimal.Decimal(2).ln() / (2 * _decimal_pi())
        scaled = int(constant * 2**bits)
    rows = []
    for exponent in range(_FIRST, _LAST + 1):
        fraction = scaled << exponent if exponent > 0 else scaled >> -exponent
        fraction = (fraction % (1 << bits)) >> (bits - _CHUNK * _CHUNKS)
        shifts = range(_CHUNK * (_CHUNKS - 1), -1, -_CHUNK)
        rows.append([(fraction >> shift) % (1 << _CHUNK) for shift in shifts])
    return np.array(rows, np.float64) * 0.5 ** (_CHUNK * np.arange(1, _CHUNKS + 1))


def _decimal_pi() -> decimal.Decimal:
    """Pi to the precision of the context, by Machin's formula."""

    def arctan_of_inverse(n: int) -> decimal.Decimal:
        power = total = decimal.Decimal(1) / n
        k = 1
        while abs(power) > total.scaleb(-2 * total.adjusted() - 400):
            power, k = -power / (n * n), k + 2
            total += power / k
        return total

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))


def _revolutions(xp: Any, b: Any) -> Any:
    """The fraction of ``b ln(2) / (2 pi)``, between -1/2 and 1/2, for finite b of at least 1."""
    mantissa, exponent = xp.frexp(b)
    integer = xp.ldexp(mantissa, _BITS)
    high = xp.floor(integer * 0.5**_LOW)
    low = integer - high * 2.0**_LOW
    rows = xp.asarray(_chunks())[exponent - _BITS - _FIRST]
    total = xp.zeros_like(b)
    for k in range(_CHUNKS - 1, -1, -1):
        # Each product has at most 51 bits, and is exact.
        for half in (low, high * 2.0**_LOW):
            product = half * rows[..., k]
            total = total + (product - xp.rint(product))
    return total - xp.rint(total)


def power(xp: Any, x: Any, y: Any) -> Any:
    """``x**y``, real or complex."""
    # The angle y log(x) of a large exponent has no digits in single precision.
    wide = np.dtype(np.complex128) if x.dtype == np.complex64 else x.dtype
    return xp.power(x.astype(wide), y.astype(wide)).astype(x.dtype)


def exp2_of(xp: Any, x: Any) -> Any:
    """``2**x``; of complex numbers to a few roundings of float64, rounded to their dtype."""
    if not dtypes.is_complex(x.dtype):
        return xp.exp2(x)
    x = xp.asarray(x)
    a, b = x.real.astype(np.float64), x.imag.astype(np.float64)
    is_finite = xp.isfinite(a) & xp.isfinite(b)
    size = xp.abs(b)
    far = is_finite & (size >= 1)
    reduced = 2 * pi * xp.copysign(1.0, b) * _revolutions(xp, xp.where(far, size, 1.0))
    angle = xp.where(far, reduced, xp.where(is_finite, b, 0.0) * _LOG_2)
    # In two factors: a power may overflow although its product with a cosine does not.
    a = xp.where(is_finite, a, 0.0)
    half = xp.rint(0.5 * a)
    first, second = xp.exp2(a - half), xp.exp2(half)
    real, imag = first * xp.cos(angle) * second, first * xp.sin(angle) * second
    # exp has the values of infinite and nan components.
    special = xp.exp(x * x.dtype.type(_LOG_2))
    out = xp.empty_like(x)
    out.real[...] = xp.where(is_finite, real, special.real)
    out.imag[...] = xp.where(is_finite, xp.where(b == 0, b, imag), special.imag)
    return out
