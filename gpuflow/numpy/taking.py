"""``take`` and ``take_along_axis``: elements by position along one axis.

Tests: tests/numpy/test_out_of_range.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.bounds import note_positions
from gpuflow.numpy.index_plan import normal_entry, wrap_negative
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    no_out,
)
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel
from gpuflow.ops.elementwise.select import where as select_where


@composite
def take(
    a: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: Any = None,
) -> Array:
    """Return the elements, or slices along ``axis``, at indices.

    Args:
        a: array.
        indices: integer array of any shape; negative ones count from the end.
        axis: the axis; None flattens the array first.
        mode: handling of out-of-bounds indices: ``"fill"`` (the default) gives nan, or the smallest
            integer; ``"clip"`` clamps; ``"wrap"`` takes them modulo the size.
        unique_indices: no effect; whether indices are guaranteed to be distinct.
        indices_are_sorted: no effect; whether indices are guaranteed to be in ascending order.
        fill_value: the value that replaces nan.

    Returns:
        An array of the dtype of ``a``; the axes of ``indices`` replace ``axis``.

    Raises:
        TypeError: if the indices are not integers.
        ValueError: if the mode is unknown.
        IndexError: if elements are taken from an empty axis.
        NotImplementedError: if ``mode`` is ``"raise"``.

    Example:
        >>> x = jnp.array([10.0, 20.0, 30.0])
        >>> jnp.take(x, jnp.array([2, -3, 7]))
        Array([30., 10., nan], dtype=float32)
        >>> jnp.take(x, jnp.array([2, -3, 7]), mode="clip")
        Array([30., 10., 30.], dtype=float32)
    """
    del unique_indices, indices_are_sorted
    no_out("take", out)
    check(
        mode in (None, "fill", "clip", "wrap"),
        lambda: f"[take] mode must be 'fill', 'clip' or 'wrap'; got {mode!r}. Fix: mode='clip'.",
        NotImplementedError if mode == "raise" else ValueError,
    )
    a, indices = check_arraylike("take", a, indices)
    if axis is None:
        a, axis = ravel(a), 0
    dim = canonicalize_axis(axis, aval_of(a).ndim, "take")
    size = aval_of(a).shape[dim]
    if dtypes.is_bool(aval_of(indices).dtype):
        # As in NumPy, bools are the indices 0 and 1, not a mask.
        indices = convert(indices, dtypes.int32)
    if isinstance(indices, int):
        (entry,) = (dtypes.index_dtype(abs(indices)).type(indices),)
    else:
        (entry,) = normal_entry(indices)
    check(
        size > 0 or aval_of(entry).size == 0,
        lambda: (
            f"[take] an axis without elements has nothing to take; got {aval_of(a)} along "
            f"axis {axis} and indices {aval_of(entry)}. Fix: check the shape, or take no elements."
        ),
        IndexError,
    )
    dtype = aval_of(entry).dtype
    if mode == "wrap":
        modulo = lax.rem(entry, convert(size, dtype))
        wrapped = lax.add(modulo, convert(size, dtype))
        entry = select_where(lax.lt(modulo, convert(0, dtype)), wrapped, modulo)
    elif mode != "clip":
        entry = wrap_negative(entry, size)
    note_positions(aval_of(a).shape, dim, entry)
    fills = mode in (None, "fill")
    x = moveaxis(a, dim, 0)
    rows = lax.row_gather(x, entry, "fill" if fills else "clip")
    rank = aval_of(entry).ndim
    if fill_value is not None and fills:
        in_bounds = lax.broadcast_in_dim(_in_bounds(entry, size), aval_of(rows).shape, range(rank))
        rows = select_where(in_bounds, rows, convert(fill_value, aval_of(rows).dtype))
    return moveaxis(rows, tuple(range(rank)), tuple(range(dim, dim + rank)))


def _in_bounds(positions: Any, size: int) -> Any:
    dtype = aval_of(positions).dtype
    above = lax.ge(positions, convert(0, dtype))
    return lax.bitwise_and(above, lax.lt(positions, convert(size, dtype)))


@composite
def take_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    axis: int | None = -1,
    mode: str | None = None,
    fill_value: Any = None,
    *,
    wrap_negative_indices: bool = True,
) -> Array:
    """Return one element for each element of ``indices`` along ``axis``; other axes correspond.

    Args:
        arr: array.
        indices: integer array of the same rank.
        axis: the axis to index; None flattens the array first.
        mode: ``"fill"`` (the default, also ``"drop"``) or ``"clip"``. With ``"promise_in_bounds"``
            all indices are in [0, size); others read the nearest element and have no gradient.
            ``"one_hot"`` multiplies by one-hot rows, which gives 0 out of bounds.
        fill_value: the value that replaces nan.
        wrap_negative_indices: whether negative indices count from the end.

    Returns:
        An array of the dtype of ``arr``, of the shape of ``indices`` along ``axis``; other axes
        broadcast.

    Raises:
        TypeError: if the indices are not integers, or have another rank.
        ValueError: if the mode is unknown, or shapes do not broadcast.

    Example:
        >>> x = jnp.array([[30, 10, 20], [5, 7, 6]])
        >>> jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)
        Array([[10, 20, 30],
               [ 5,  6,  7]], dtype=int32)
    """
    arr, indices = check_arraylike("take_along_axis", arr, indices)
    if axis is None:
        arr, axis = ravel(arr), 0
    dim = canonicalize_axis(axis, aval_of(arr).ndim, "take_along_axis")
    size = aval_of(arr).shape[dim]
    check(
        aval_of(arr).ndim == aval_of(indices).ndim and dtypes.is_integer(aval_of(indices).dtype),
        lambda: (
            "[take_along_axis] indices must be integers of the array's rank; "
            f"got {aval_of(arr)} and {aval_of(indices)}. Fix: jnp.expand_dims(indices, axis)."
        ),
    )
    check(
        mode in (None, "fill", "drop", "clip", "promise_in_bounds", "one_hot"),
        lambda: (
            f"[take_along_axis] mode must be 'fill', 'clip' or 'one_hot'; got {mode!r}. "
            "Fix: mode='clip'."
        ),
        ValueError,
    )
    if wrap_negative_indices and mode != "promise_in_bounds":
        indices = wrap_negative(indices, size)
    note_positions(aval_of(arr).shape, dim, indices)
    x, index = moveaxis(arr, dim, -1), moveaxis(indices, dim, -1)
    shapes = aval_of(x).shape[:-1], aval_of(index).shape[:-1]
    lead = broadcast_shapes(*shapes, name="take_along_axis")
    x = broadcast_to(x, (*lead, size))
    index = broadcast_to(index, (*lead, aval_of(index).shape[-1]))
    if mode == "one_hot":
        return moveaxis(_by_products(x, index), -1, dim)
    fills = mode in (None, "fill", "drop")
    rows = lax.row_gather(x, index, "fill" if fills else mode, batch_dims=len(lead))
    if fill_value is not None and fills:
        rows = select_where(_in_bounds(index, size), rows, convert(fill_value, aval_of(rows).dtype))
    return moveaxis(rows, -1, dim)


def _by_products(x: Any, index: Any) -> Any:
    """``x[..., index]`` as products with one-hot rows; leading axes are batch axes."""
    aval = aval_of(x)
    rank = aval.ndim
    counts = lax.iota(aval_of(index).dtype, (*aval_of(index).shape, aval.shape[-1]), rank)
    rows = lax.convert_element_type(lax.eq(lax.expand_dims(index, (rank,)), counts), aval.dtype)
    batch = tuple(range(rank - 1))
    return lax.dot_general(
        rows,
        x,
        (((rank,), (rank - 1,)), (batch, batch)),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=aval.dtype,
    )
