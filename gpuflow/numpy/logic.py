"""Comparisons, logic, bits, and choices by condition.

Tests: tests/numpy/test_numpy_array_api.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

from typing import Any, overload

import ml_dtypes
import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.removed import note_removed
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
from gpuflow.numpy.ufuncs import Ufunc, described, make_binary, make_unary
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


equal = make_binary(
    "equal",
    lax.eq,
    described(
        "Elementwise ``x == y``.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape.",
        ">>> jnp.equal(jnp.array([1, 2, 3]), jnp.array([1.0, 0.0, 3.0]))",
        "Array([ True, False,  True], dtype=bool)",
    ),
)
not_equal = make_binary(
    "not_equal",
    lax.ne,
    described(
        "Elementwise ``x != y``; True for nan.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape.",
        ">>> x = jnp.array([1.0, jnp.nan])",
        ">>> jnp.not_equal(x, x)",
        "Array([False,  True], dtype=bool)",
    ),
)
less = _ordering(
    "less",
    lax.lt,
    lax.lt,
    described(
        "Elementwise ``x < y``; complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape; False if an element is nan.",
        ">>> jnp.less(jnp.array([1, 2, 3]), 2)",
        "Array([ True, False, False], dtype=bool)",
    ),
)
less_equal = _ordering(
    "less_equal",
    lax.le,
    lax.lt,
    described(
        "Elementwise ``x <= y``; complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape; False if an element is nan.",
        ">>> jnp.less_equal(jnp.array([1, 2, 3]), 2)",
        "Array([ True,  True, False], dtype=bool)",
    ),
)
greater = _ordering(
    "greater",
    lax.gt,
    lax.gt,
    described(
        "Elementwise ``x > y``; complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape; False if an element is nan.",
        ">>> jnp.greater(jnp.array([1, 2, 3]), 2)",
        "Array([False, False,  True], dtype=bool)",
    ),
)
greater_equal = _ordering(
    "greater_equal",
    lax.ge,
    lax.gt,
    described(
        "Elementwise ``x >= y``; complex numbers are compared by real part first.",
        "x, y: arrays that broadcast.",
        "bool array of the common shape; False if an element is nan.",
        ">>> jnp.greater_equal(jnp.array([1, 2, 3]), 2)",
        "Array([False,  True,  True], dtype=bool)",
    ),
)


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


logical_and = _logical(
    "logical_and",
    lax.bitwise_and,
    described(
        "Elementwise logical and: whether both elements are nonzero.",
        "x, y: arrays of any dtypes that broadcast.",
        "bool array of the common shape.",
        ">>> jnp.logical_and(jnp.array([0, 1, 2]), jnp.array([True, True, False]))",
        "Array([False,  True, False], dtype=bool)",
    ),
)
logical_or = _logical(
    "logical_or",
    lax.bitwise_or,
    described(
        "Elementwise logical or: whether at least one element is nonzero.",
        "x, y: arrays of any dtypes that broadcast.",
        "bool array of the common shape.",
        ">>> jnp.logical_or(jnp.array([0, 1, 0]), jnp.array([True, True, False]))",
        "Array([ True,  True, False], dtype=bool)",
    ),
)
logical_xor = _logical(
    "logical_xor",
    lax.bitwise_xor,
    described(
        "Elementwise logical exclusive or: whether exactly one element is nonzero.",
        "x, y: arrays of any dtypes that broadcast.",
        "bool array of the common shape.",
        ">>> jnp.logical_xor(jnp.array([0, 1, 0]), jnp.array([True, True, False]))",
        "Array([ True, False, False], dtype=bool)",
    ),
)
logical_not: Unary = _logical(
    "logical_not",
    lax.bitwise_not,
    described(
        "Elementwise logical not: whether elements are zero.",
        "x: array of any dtype.",
        "bool array of the shape of ``x``.",
        ">>> jnp.logical_not(jnp.array([0, 1, 2]))",
        "Array([ True, False, False], dtype=bool)",
    ),
)

bitwise_and = make_binary(
    "bitwise_and",
    lax.bitwise_and,
    described(
        "Elementwise ``x & y``.",
        "x, y: arrays of integers or bools that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.bitwise_and(jnp.array([5, 6, 7]), 3)",
        "Array([1, 2, 3], dtype=int32)",
        raises="TypeError: if an operand is float or complex.",
    ),
)
bitwise_or = make_binary(
    "bitwise_or",
    lax.bitwise_or,
    described(
        "Elementwise ``x | y``.",
        "x, y: arrays of integers or bools that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.bitwise_or(jnp.array([4, 1]), 3)",
        "Array([7, 3], dtype=int32)",
        raises="TypeError: if an operand is float or complex.",
    ),
)
bitwise_xor = make_binary(
    "bitwise_xor",
    lax.bitwise_xor,
    described(
        "Elementwise ``x ^ y``.",
        "x, y: arrays of integers or bools that broadcast.",
        "An array of the common shape and dtype.",
        ">>> jnp.bitwise_xor(jnp.array([5, 6]), 3)",
        "Array([6, 5], dtype=int32)",
        raises="TypeError: if an operand is float or complex.",
    ),
)
bitwise_not = make_unary(
    "bitwise_not",
    lax.bitwise_not,
    described(
        "Elementwise ``~x``: all bits inverted; logical not for bools.",
        "x: array of integers or bools.",
        "An array of the shape and dtype of ``x``.",
        ">>> jnp.bitwise_not(jnp.array([0, 5]))",
        "Array([-1, -6], dtype=int32)",
        ">>> jnp.bitwise_not(jnp.array([True, False]))",
        "Array([False,  True], dtype=bool)",
        raises="TypeError: if an operand is float or complex.",
    ),
)
bitwise_invert = invert = bitwise_not
left_shift = make_binary(
    "left_shift",
    lax.shift_left,
    described(
        "Elementwise ``x << y``.",
        "x: array of integers; bools become int32.\ny: number of bits, an array of integers that "
        "broadcasts with ``x``.",
        "An array of the common shape and dtype; 0 where all bits are shifted out.",
        ">>> jnp.left_shift(jnp.array([1, 3]), 2)",
        "Array([ 4, 12], dtype=int32)",
        raises="TypeError: if an operand is float or complex.",
    ),
    promote_args_numeric,
)
bitwise_left_shift = left_shift


@composite
def right_shift(x: ArrayLike, y: ArrayLike, /) -> Array:
    """Elementwise ``x >> y``; the sign is kept.

    Args:
        x: array of integers; bools become int32.
        y: number of bits, an array of integers that broadcasts with ``x``.

    Returns:
        An array of the common shape and dtype.

    Raises:
        TypeError: if an argument is a float or complex array.

    Example:
        >>> jnp.right_shift(jnp.array([12, -12]), 2)
        Array([ 3, -3], dtype=int32)
    """
    x, y = promote_args_numeric("right_shift", x, y)
    signed = not dtypes.is_unsigned(aval_of(x).dtype)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(x, y)


bitwise_right_shift = right_shift


# --- classes of numbers --------------------------------------------------------------------


def _classify(name: str, on_floats: Ufunc, on_others: bool, both: Ufunc, doc: str) -> Unary:
    """A test of floats; integers give ``on_others``, ``both`` combines complex components."""

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


isnan = _classify(
    "isnan",
    lambda x: lax.ne(x, x),
    False,
    lax.bitwise_or,
    described(
        "Elementwise test for nan, in either component of complex numbers.",
        "x: array of numbers or bools.",
        "bool array of the shape of ``x``.",
        ">>> jnp.isnan(jnp.array([1.0, jnp.nan, jnp.inf]))",
        "Array([False,  True, False], dtype=bool)",
    ),
)
isfinite = _classify(
    "isfinite",
    lax.is_finite,
    True,
    lax.bitwise_and,
    described(
        "Elementwise test for neither infinite nor nan, in both components of complex numbers.",
        "x: array of numbers or bools.",
        "bool array of the shape of ``x``.",
        ">>> jnp.isfinite(jnp.array([1.0, jnp.nan, jnp.inf]))",
        "Array([ True, False, False], dtype=bool)",
    ),
)
isinf = _classify(
    "isinf",
    _is_infinite,
    False,
    lax.bitwise_or,
    described(
        "Elementwise test for infinities of either sign, in either component of complex numbers.",
        "x: array of numbers or bools.",
        "bool array of the shape of ``x``.",
        ">>> jnp.isinf(jnp.array([1.0, jnp.nan, -jnp.inf]))",
        "Array([False, False,  True], dtype=bool)",
    ),
)


@composite
def isposinf(x: ArrayLike, /, out: None = None) -> Array:
    """Return whether elements are plus infinity.

    Args:
        x: array of real numbers or bools.

    Returns:
        bool array of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.isposinf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
        Array([ True, False, False], dtype=bool)
    """
    return _is_infinity("isposinf", x, out, np.inf)


@composite
def isneginf(x: ArrayLike, /, out: None = None) -> Array:
    """Return whether elements are minus infinity.

    Args:
        x: array of real numbers or bools.

    Returns:
        bool array of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.isneginf(jnp.array([jnp.inf, -jnp.inf, 1.0]))
        Array([False,  True, False], dtype=bool)
    """
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
    condition: ArrayLike,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayLike | tuple[ArrayLike, ...] | None = None,
) -> tuple[Array, ...]: ...
@composite
def where(
    condition: Any,
    x: Any = None,
    y: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """Return ``x`` where ``condition`` is True, else ``y``; both are evaluated.

    Args:
        condition: array of any dtype; numbers are True unless they are 0.
        x: array or scalar.
        y: array or scalar.
        size: without ``x`` and ``y``, the static number of indices, as for ``nonzero``.
        fill_value: without ``x`` and ``y``, the value of padding indices.

    Returns:
        An array of the common shape, and of the common dtype of ``x`` and ``y``. Without them, the
        indices of nonzero elements, one array for each axis.

    Raises:
        TypeError: if only one of ``x`` and ``y`` is given.
        ValueError: if ``size`` is given with ``x`` and ``y``.
        ConcretizationTypeError: if indices of a traced array are requested without ``size``.

    Example:
        >>> x = jnp.array([-1, 2, -3])
        >>> jnp.where(x > 0, x, 0)
        Array([0, 2, 0], dtype=int32)
        >>> jnp.where(x < 0)
        (Array([0, 2], dtype=int32),)
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
    arr: ArrayLike | None,
    /,
    min: ArrayLike | None = None,
    max: ArrayLike | None = None,
    *,
    a_min: ArrayLike | None = None,
    a_max: ArrayLike | None = None,
) -> Array:
    """Limit elements to ``[min, max]``; either may be None.

    Args:
        arr: array of real numbers.
        min: lower bound, a scalar or an array that broadcasts.
        max: upper bound, in the same form; it wins if it is below the lower bound.
        a_min, a_max: other names of ``min`` and ``max``.

    Returns:
        An array of the common shape and dtype; nan for nan.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.clip(jnp.array([-1, 2, 9]), 0, 5)
        Array([0, 2, 5], dtype=int32)
    """
    if a_min is not None or a_max is not None:
        note_removed("jnp.clip(a_min=, a_max=)", "jnp.clip(x, min=, max=)")
    low = a_min if min is None else min
    high = a_max if max is None else max
    arr, low, high = (v if v is None else check_arraylike("clip", v)[0] for v in (arr, low, high))
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
    x: ArrayLike,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Array:
    """Replace nan and infinities; by default by 0 and the largest finite numbers.

    Real and imaginary parts of complex numbers are replaced separately.

    Args:
        x: array; integers and bools are returned unchanged.
        copy: no effect: arrays are immutable.
        nan: the replacement of nan.
        posinf: the replacement of plus infinity; None: the largest number of the dtype.
        neginf: the replacement of minus infinity; None: the least number of the dtype.

    Returns:
        An array of the shape and dtype of ``x``.

    Example:
        >>> jnp.nan_to_num(jnp.array([1.0, jnp.nan, -jnp.inf]), nan=7.0, neginf=-9.0)
        Array([ 1.,  7., -9.], dtype=float32)
    """
    del copy
    (x,) = check_arraylike("nan_to_num", x)
    dtype = aval_of(x).dtype
    if dtypes.is_complex(dtype):
        re_im = (lax.real(x), lax.imag(x))
        return lax.complex(*[nan_to_num(p, nan=nan, posinf=posinf, neginf=neginf) for p in re_im])
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
    """Return whether ``abs(a - b) <= atol + rtol * abs(b)``, elementwise; infinities may be equal.

    Args:
        a, b: arrays that broadcast.
        rtol: relative tolerance.
        atol: absolute tolerance.
        equal_nan: whether nan counts as close to nan.

    Returns:
        bool array of the common shape.

    Example:
        >>> jnp.isclose(jnp.array([1.0, 1.1, jnp.inf]), jnp.array([1.000001, 1.0, jnp.inf]))
        Array([ True, False,  True], dtype=bool)
    """
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
