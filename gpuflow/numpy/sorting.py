"""Sorting, argsort, and cumulative sums and products.

Tests: tests/numpy/test_numpy_sorting.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, DTypeLike
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.promotion import check_arraylike, convert, no_out, user_dtype
from gpuflow.numpy.reductions import sum_dtype
from gpuflow.numpy.shaping import ravel

# --- sorting -------------------------------------------------------------------------------


def _prepare(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    check(
        kind is None and order is None,
        lambda: (
            f"[{name}] kind and order must be None; got {kind!r} and {order!r}. "
            f"Fix: jnp.{name}(x, stable=True)."
        ),
    )
    (a,) = check_arraylike(name, a)
    if axis is None:
        return ravel(a), 0
    return a, canonicalize_axis(axis, aval_of(a).ndim, name)


def _keys(x: Any) -> list[Any]:
    """The keys of NumPy's order, the primary one first.

    Complex numbers with a nan in either component come after all others; ``lax.sort`` compares the
    real components first, whatever the imaginary ones are.
    """
    return [lax.ne(x, x), x] if dtypes.is_complex(aval_of(x).dtype) else [x]


@composite
def sort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Array:
    """Sort in ascending order along ``axis``, with nan last.

    Args:
        a: array of numbers or bools.
        axis: the axis along which to sort; None flattens the array first.
        stable: whether equal elements keep their order.
        descending: whether to sort in descending order, with nan first.

    Returns:
        An array of the dtype and shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        TypeError: if ``kind`` or ``order`` is given.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.sort(jnp.array([[3, 1, 2], [0, 5, 4]]))
        Array([[1, 2, 3],
               [0, 4, 5]], dtype=int32)
        >>> jnp.sort(jnp.array([3, 1, 2]), descending=True)
        Array([3, 2, 1], dtype=int32)
    """
    a, dim = _prepare("sort", a, axis, kind, order)
    keys = _keys(a)
    out = lax.sort(keys, dim, stable, len(keys))[-1]
    return lax.rev(out, (dim,)) if descending else out


@composite
def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    *,
    kind: None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return the indices that sort in ascending order along ``axis``.

    With ``descending``, a ``stable`` sort also keeps the order of equal elements.

    Args:
        a: array of numbers or bools; nan is sorted last.
        axis: the axis along which to sort; None flattens the array first.
        stable: whether equal elements keep their order.
        descending: whether to sort in descending order, with nan first.
        dtype: dtype of the indices; the default integer dtype by default.

    Returns:
        Indices along ``axis``, of the shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        TypeError: if ``kind`` or ``order`` is given.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.argsort(jnp.array([30, 10, 20]))
        Array([1, 2, 0], dtype=int32)
        >>> jnp.argsort(jnp.array([1, 0, 1]), descending=True)
        Array([0, 2, 1], dtype=int32)
    """
    a, dim = _prepare("argsort", a, axis, kind, order)
    index = dtypes.default_int() if dtype is None else user_dtype(dtype, "argsort")
    positions = lax.iota(index, aval_of(a).shape, dim)
    reverse_first = descending and stable
    if reverse_first:
        # Reversing before and after the sort keeps the order of equal elements.
        a, positions = lax.rev(a, (dim,)), lax.rev(positions, (dim,))
    keys = _keys(a)
    permutation = lax.sort([*keys, positions], dim, stable, len(keys))[-1]
    return lax.rev(permutation, (dim,)) if descending else permutation


@composite
def lexsort(keys: ArraysLike, axis: int = -1) -> Array:
    """Return the indices that sort by several keys; the last one is primary.

    Args:
        keys: sequence of arrays of one shape, or an array with one key per row.
        axis: the axis along which to sort.

    Returns:
        Indices along ``axis``, an integer array of the shape of a key.

    Raises:
        TypeError: if there are no keys.
        ValueError: if the axis does not exist.

    Example:
        >>> first, last = jnp.array([2, 1, 3]), jnp.array([1, 1, 0])
        >>> jnp.lexsort((first, last))  # by last, and by first where those are equal
        Array([2, 1, 0], dtype=int32)
    """
    many = as_items("lexsort", "keys", keys)
    check(
        len(many) > 0,
        lambda: "[lexsort] there must be a key; got none. Fix: jnp.lexsort([x]).",
    )
    many = check_arraylike("lexsort", *many)
    aval = aval_of(many[0])
    if aval.ndim == 0:
        return lax.full((), 0, dtypes.default_int())
    dim = canonicalize_axis(axis, aval.ndim, "lexsort")
    positions = lax.iota(dtypes.default_int(), aval.shape, dim)
    ordered = [key for x in many[::-1] for key in _keys(x)]
    return lax.sort([*ordered, positions], dim, True, len(ordered))[-1]


# --- cumulative sums and products ----------------------------------------------------------


@composite
def cumsum(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """Return the cumulative sum along an axis.

    Args:
        a: array; bools are summed in the default integer dtype, other dtypes in their own.
        axis: the axis of accumulation; None flattens the array first.
        dtype: dtype of the sum.

    Returns:
        An array of the shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.cumsum(jnp.array([1, 2, 3]))
        Array([1, 3, 6], dtype=int32)
    """
    return _cumulative("cumsum", lax.cumsum, a, axis, dtype, out)


@composite
def cumprod(
    a: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None, out: None = None
) -> Array:
    """Return the cumulative product along an axis.

    Args:
        a: array; bools are multiplied in the default integer dtype, other dtypes in their own.
        axis: the axis of accumulation; None flattens the array first.
        dtype: dtype of the product.

    Returns:
        An array of the shape of ``a``, or a vector if ``axis`` is None.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.cumprod(jnp.array([1, 2, 3, 4]))
        Array([ 1,  2,  6, 24], dtype=int32)
    """
    return _cumulative("cumprod", lax.cumprod, a, axis, dtype, out)


def _cumulative(
    name: str, op: Callable[..., Any], a: Any, axis: int | None, dtype: Any, out: Any
) -> Any:
    no_out(name, out)
    (a,) = check_arraylike(name, a)
    if axis is None or aval_of(a).ndim == 0:
        a = ravel(a)
    dim = 0 if axis is None else canonicalize_axis(axis, aval_of(a).ndim, name)
    input_dtype = aval_of(a).dtype
    out_dtype = input_dtype if dtype is None else user_dtype(dtype, name)
    if dtypes.is_bool(out_dtype):
        result = op(convert(as_bool(a), dtypes.default_int()), dim)
        return result if dtype is None else as_bool(result)
    return op(lax.convert_element_type(a, out_dtype), dim)


@composite
def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Return the cumulative sum along an axis.

    Args:
        x: array; small integers and bools are summed in the default integer dtype.
        axis: the axis of accumulation; optional for vectors.
        dtype: dtype of the sum.
        include_initial: whether to prepend a 0.

    Returns:
        An array of the shape of ``x``; ``include_initial`` adds one element along ``axis``.

    Raises:
        ValueError: if the rank is 0, or it is 2 or more and ``axis`` is not given.

    Example:
        >>> jnp.cumulative_sum(jnp.array([1, 2, 3]), include_initial=True)
        Array([0, 1, 3, 6], dtype=int32)
    """
    return _with_initial("cumulative_sum", lax.cumsum, 0, x, axis, dtype, include_initial)


@composite
def cumulative_prod(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> Array:
    """Return the cumulative product along an axis.

    Args:
        x: array; bools are multiplied in the default integer dtype.
        axis: the axis of accumulation; optional for vectors.
        dtype: dtype of the product.
        include_initial: whether to prepend a 1.

    Returns:
        An array of the shape of ``x``; ``include_initial`` adds one element along ``axis``.

    Raises:
        ValueError: if the rank is 0, or it is 2 or more and ``axis`` is not given.

    Example:
        >>> jnp.cumulative_prod(jnp.array([1, 2, 3]), include_initial=True)
        Array([1, 1, 2, 6], dtype=int32)
    """
    return _with_initial("cumulative_prod", lax.cumprod, 1, x, axis, dtype, include_initial)


def _with_initial(
    name: str,
    op: Callable[..., Any],
    first: int,
    x: Any,
    axis: int | None,
    dtype: Any,
    include_initial: bool,
) -> Any:
    (x,) = check_arraylike(name, x)
    aval = aval_of(x)
    check(
        aval.ndim == 1 or (aval.ndim > 1 and axis is not None),
        lambda: (
            f"[{name}] the array must be a vector, or have an axis to run along; got {aval} "
            f"and axis {axis}. Fix: axis=0."
        ),
        ValueError,
    )
    dim = canonicalize_axis(0 if axis is None else axis, aval.ndim, name)
    if dtype is None and name == "cumulative_sum":
        dtype = sum_dtype(name, aval.dtype, None)
    out = _cumulative(name, op, x, dim, dtype, None)
    if not include_initial:
        return out
    edge = [1 if d == dim else n for d, n in enumerate(aval.shape)]
    return lax.concatenate([lax.full(edge, first, aval_of(out).dtype), out], dim)
