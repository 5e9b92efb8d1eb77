"""Comparisons, logic, bits, and choices by condition."""

from __future__ import annotations

from typing import Any, overload

import ml_dtypes
import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, Binary, Unary
from gpuflow.numpy.arguments import as_array
from gpuflow.numpy.elementary import imag, real
from gpuflow.numpy.positions import positions
from gpuflow.numpy.promotion import (
    check_arraylike,
    check_strict,
    convert,
    equal_ranks,
    no_out,
    promote_args,
    promote_args_inexact,
    promote_args_numeric,
    promote_dtypes,
    promote_shapes,
)
from gpuflow.numpy.ufuncs import Ufunc, make_binary, make_unary
from gpuflow.ops.elementwise.select import where as select_where


def _ordering(name: str, op: Ufunc, strict_op: Ufunc, doc: str) -> Binary:
    """An order comparison; complex numbers compare by real part, then imaginary part."""

    def compare(x: Any, y: Any) -> Any:
        if not dtypes.is_complex(aval_of(x).dtype):
            return op(x, y)
        equal_real = lax.eq(real(x), real(y))
        by_imag = lax.bitwise_and(equal_real, op(imag(x), imag(y)))
        return lax.bitwise_or(strict_op(real(x), real(y)), by_imag)

    return make_binary(name, compare, doc)


equal = make_binary("equal", lax.eq, "Elementwise ``x == y``.")
not_equal = make_binary("not_equal", lax.ne, "Elementwise ``x != y``.")
less = _ordering("less", lax.lt, lax.lt, "Elementwise ``x < y``.")
less_equal = _ordering("less_equal", lax.le, lax.lt, "Elementwise ``x <= y``.")
greater = _ordering("greater", lax.gt, lax.gt, "Elementwise ``x > y``.")
greater_equal = _ordering("greater_equal", lax.ge, lax.gt, "Elementwise ``x >= y``.")


# --- logic on truth values -----------------------------------------------------------------


def as_bool(x: Any) -> Any:
    """Whether elements differ from 0."""
    dtype = aval_of(x).dtype
    return x if dtypes.is_bool(dtype) else lax.ne(x, convert(0, dtype))


def _logical(name: str, op: Ufunc, doc: str) -> Any:
    def promote(name: str, *operands: Any) -> list[Any]:
        operands = check_arraylike(name, *operands)
        check_strict(*operands)
        return promote_shapes(name, [as_bool(x) for x in operands])

    maker = make_unary if op is lax.bitwise_not else make_binary
    return composite(maker(name, op, doc, promote))


logical_and = _logical("logical_and", lax.bitwise_and, "Whether both elements are nonzero.")
logical_or = _logical("logical_or", lax.bitwise_or, "Whether an element is nonzero.")
logical_xor = _logical("logical_xor", lax.bitwise_xor, "Whether just one element is nonzero.")
logical_not: Unary = _logical("logical_not", lax.bitwise_not, "Whether elements are zero.")

bitwise_and = make_binary("bitwise_and", lax.bitwise_and, "Elementwise ``x & y``.")
bitwise_or = make_binary("bitwise_or", lax.bitwise_or, "Elementwise ``x | y``.")
bitwise_xor = make_binary("bitwise_xor", lax.bitwise_xor, "Elementwise ``x ^ y``.")
bitwise_not = make_unary("bitwise_not", lax.bitwise_not, "Elementwise ``~x``.")
bitwise_invert = invert = bitwise_not
left_shift = make_binary(
    "left_shift", lax.shift_left, "Elementwise ``x << y``; of bools int32.", promote_args_numeric
)
bitwise_left_shift = left_shift


@composite
def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise ``x >> y``; the sign is kept. Bools become int32."""
    x, y = promote_args_numeric("right_shift", x, y)
    signed = not dtypes.is_unsigned(aval_of(x).dtype)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(x, y)


bitwise_right_shift = right_shift


# --- classes of numbers --------------------------------------------------------------------


def _classify(name: str, on_floats: Ufunc, on_others: bool, both: Ufunc, doc: str) -> Unary:
    """A test of floats; integers all give ``on_others``, complex parts are joined by ``both``."""

    def test(x: Any) -> Any:
        dtype = aval_of(x).dtype
        if dtypes.is_complex(dtype):
            return both(test(real(x)), test(imag(x)))
        if dtypes.is_floating(dtype):
            return on_floats(x)
        same = lax.eq(x, x)
        return same if on_others else lax.bitwise_not(same)

    return composite(make_unary(name, test, doc))


def _is_infinite(x: Any) -> Any:
    return lax.eq(lax.abs(x), convert(np.inf, aval_of(x).dtype))


isnan = _classify("isnan", lambda x: lax.ne(x, x), False, lax.bitwise_or, "Whether nan.")
isfinite = _classify(
    "isfinite", lax.is_finite, True, lax.bitwise_and, "Whether neither infinite nor nan."
)
isinf = _classify("isinf", _is_infinite, False, lax.bitwise_or, "Whether infinite.")


@composite
def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether plus infinity; not for complex numbers."""
    return _is_infinity("isposinf", x, out, np.inf)


@composite
def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Whether minus infinity; not for complex numbers."""
    return _is_infinity("isneginf", x, out, -np.inf)


def _is_infinity(name: str, x: Any, out: Any, infinity: float) -> Any:
    no_out(name, out)
    (x,) = promote_args(name, x)
    dtype = aval_of(x).dtype
    check(
        not dtypes.is_complex(dtype),
        lambda: f"[{name}] operands must be real; got {aval_of(x)}. Fix: use x.real and x.imag.",
        ValueError,
    )
    if not dtypes.is_inexact(dtype):
        return lax.full(aval_of(x).shape, False, dtypes.bool_)
    return lax.eq(x, convert(infinity, dtype))



# --- choices -------------------------------------------------------------------------------


@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /) -> Array: ...
@overload
def where(
    condition: ArrayLike, /, *, size: int | None = None,
    fill_value: ArrayLike | tuple[ArrayLike, ...] | None = None,
) -> tuple[Array, ...]: ...  # fmt: skip
@composite
def where(
    condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """``x`` where ``condition`` holds, else ``y``; both are evaluated.

    Args:
        condition: array of any dtype; not bool: whether it differs from 0.
        x: array or number.
        y: array or number.
        size: without ``x`` and ``y``, how many positions to return, as for ``nonzero``.
        fill_value: and what to fill up with.

    Returns:
        An array of the common shape, and of the common dtype of ``x`` and ``y``. Without them the
        positions of elements that are not 0, one array for each axis.

    Raises:
        TypeError: one of ``x`` and ``y`` alone.
        ValueError: ``size`` with both.
        ConcretizationTypeError: positions in a traced array without ``size``.
    """
    if x is None and y is None:
        return positions("where", as_array("where", condition), size, fill_value)
    if x is None or y is None or size is not None or fill_value is not None:
        is_short = x is None or y is None
        raise (TypeError if is_short else ValueError)(
            "[where] three arguments, or one with size and fill_value, are needed; got "
            f"{'two' if is_short else 'size or fill_value with three'}. "
            "Fix: jnp.where(c, x, y)."
        )
    condition, x, y = check_arraylike("where", condition, x, y)
    x, y = promote_dtypes(x, y)
    condition, x, y = equal_ranks("where", (as_bool(condition), x, y))
    return select_where(condition, x, y)


@composite
def clip(
    arr: ArrayLike | None, /, min: ArrayLike | None = None, max: ArrayLike | None = None, *,
    a_min: ArrayLike | None = None, a_max: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """Limit elements to ``[min, max]``; either may be None.

    Args:
        arr: array of real numbers.
        min: lower bound, a number or an array that broadcasts.
        max: upper bound; it wins where the bounds cross.

    Raises:
        ValueError: complex numbers.
    """
    low = a_min if min is None else min
    high = a_max if max is None else max
    arr, low, high = (
        v if v is None else check_arraylike("clip", v)[0] for v in (arr, low, high)
    )
    for value in (arr, low, high):
        if value is not None and dtypes.is_complex(aval_of(value).dtype):
            raise ValueError(
                f"[clip] the array and its bounds must be real; got {aval_of(value)}. "
                "Fix: clip x.real and x.imag."
            )
    if low is not None:
        arr = lax.max(*promote_args("clip", low, arr))
    if high is not None:
        arr = lax.min(*promote_args("clip", high, arr))
    return lax.asarray(arr)


@composite
def nan_to_num(
    x: ArrayLike, copy: bool = True, nan: ArrayLike = 0.0, posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:  # fmt: skip
    """Replace nan and infinities; by default by 0 and the largest finite numbers.

    The real and the imaginary parts of complex numbers are replaced each by itself.
    """
    del copy
    (x,) = check_arraylike("nan_to_num", x)
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        parts = (lax.real(x), lax.imag(x))
        return lax.complex(*[nan_to_num(p, nan=nan, posinf=posinf, neginf=neginf) for p in parts])
    if not dtypes.is_floating(dtype):
        return x
    limits = ml_dtypes.finfo(dtype)
    x = where(isnan(x), convert(nan, dtype), x)
    x = where(isposinf(x), convert(float(limits.max) if posinf is None else posinf, dtype), x)
    return where(isneginf(x), convert(float(limits.min) if neginf is None else neginf, dtype), x)


# --- comparisons with tolerance ------------------------------------------------------------


@composite
def isclose(
    a: ArrayLike, b: ArrayLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Array:
    """Whether ``abs(a - b) <= atol + rtol * abs(b)``, elementwise; equal infinities are close."""
    a, b = check_arraylike("isclose", a, b)
    a, b = promote_shapes("isclose", promote_dtypes(a, b))
    dtype = aval_of(a).dtype
    if not dtypes.is_inexact(dtype):
        a, b = promote_args_inexact("isclose", a, b)
    out = lax.bitwise_or(_is_near(a, b, rtol, atol), lax.eq(a, b))
    if equal_nan:
        out = lax.bitwise_or(out, lax.bitwise_and(isnan(a), isnan(b)))
    return out


def _is_near(a: Any, b: Any, rtol: float, atol: float) -> Any:
    size = lax.abs(b)
    real_dtype = aval_of(size).dtype
    bound = lax.add(convert(atol, real_dtype), lax.mul(convert(rtol, real_dtype), size))
    return lax.bitwise_and(isfinite(b), lax.le(lax.abs(lax.sub(a, b)), bound))
