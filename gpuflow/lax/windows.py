"""Functions of gpuflow.lax that read and write windows: at static and at dynamic indices.

Tests: tests/lax/test_lax_shapes.py, tests/numpy/test_argument_kinds.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import (
    are_dimensions,
    as_integer,
    as_integers,
    as_items,
    as_truth,
    canonicalize_axis,
)
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import ArrayLike, ArraysLike
from gpuflow.lax.shapes import asarray, expand_dims
from gpuflow.ops.define import types_text
from gpuflow.ops.elementwise.arithmetic import add, rem
from gpuflow.ops.elementwise.comparison import lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing import dynamic_slices
from gpuflow.ops.indexing.dimension_numbers import GatherDimensionNumbers
from gpuflow.ops.indexing.gather import gather
from gpuflow.ops.layout import slicing
from gpuflow.ops.layout.axes import squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.runtime.array import Array

_MAX_FUSED_SLICES = 64


@explained
def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """Return the element at a Python int along ``axis``; negative indices count from the end.

    Args:
        operand: array of any dtype.
        index: a Python int.
        axis: the dimension.
        keepdims: whether the axis stays, with size 1.

    Returns:
        An array of the dtype of ``operand``.

    Raises:
        IndexError: if the index is out of range.

    Example:
        >>> lax.index_in_dim(jnp.array([[1, 2], [3, 4]]), -1, keepdims=False)
        Array([3, 4], dtype=int32)
    """
    dim = canonicalize_axis(axis, aval_of(operand).ndim, "index_in_dim")
    size = aval_of(operand).shape[dim]
    index = as_integer("index_in_dim", "the index", index)
    check(
        -size <= index < size,
        lambda: (
            f"[index_in_dim] the index must be in [{-size}, {size}); got {index}. Fix: check the "
            "size of the axis."
        ),
        IndexError,
    )
    start = index % size
    out = slicing.slice_in_dim(operand, start, start + 1, 1, dim)
    return out if keepdims else squeeze(out, (dim,))


def _starts(name: str, start_indices: Any, rank: int) -> list[Any]:
    """Starts as a list of scalars of one dtype; an array of them is unstacked."""
    if isinstance(start_indices, (list, tuple)):
        avals = [aval_of(start) for start in start_indices]
        check(
            len({aval.dtype for aval in avals}) < 2,
            lambda: (
                f"[{name}] starts must have one dtype, and Python's ints have the default one; got "
                f"{types_text(avals)}. Fix: convert them, or pass an array of starts."
            ),
        )
        return list(start_indices)
    return [index_in_dim(start_indices, k, 0, keepdims=False) for k in range(rank)]


Choice = bool | Sequence[bool]


def dynamic_slice(
    operand: ArrayLike,
    start_indices: ArrayLike | Sequence[ArrayLike],
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: Choice = True,
) -> Array:
    """Return a window of static size at a dynamic start index, clamped to the bounds.

    Args:
        operand: array of any dtype and rank r.
        start_indices: r integer scalars of one dtype, or a vector of them; negative ones count from
            the end.
        slice_sizes: r sizes.
        allow_negative_indices: whether negative starts count from the end; a bool, or one for each
            dimension. If False, starts below 0 are clamped to 0 at run time.

    Returns:
        An array of shape ``slice_sizes`` and the dtype of ``operand``.

    Raises:
        TypeError: if start indices are not integers, or differ in dtype.
        ValueError: if the number of starts or sizes does not match, or a static start is negative
            without ``allow_negative_indices``.

    Example:
        >>> f = gf.jit(lambda x, start: lax.dynamic_slice(x, (start,), (2,)))
        >>> f(jnp.arange(5), 1), f(jnp.arange(5), 9)
        (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    starts = _within("dynamic_slice", start_indices, operand, allow_negative_indices)
    return _sliced(operand, starts, slice_sizes, allow_negative_indices)


@composite
def _sliced(operand: ArrayLike, starts: ArraysLike, sizes: Sequence[int], allowed: Choice) -> Array:
    starts = _wrapped("dynamic_slice", starts, operand, allowed)
    return dynamic_slices.dynamic_slice(operand, starts, sizes)


def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: ArrayLike | Sequence[ArrayLike],
    *,
    allow_negative_indices: Choice = True,
) -> Array:
    """Replace a window of ``operand`` at a dynamic start index, clamped to the bounds.

    Args:
        operand: array of any dtype and rank r.
        update: array of the same dtype and rank, at most as large as ``operand``.
        start_indices: r integer scalars of one dtype, or a vector of them.
        allow_negative_indices: whether negative starts count from the end; a bool, or one for each
            dimension. If False, starts below 0 are clamped to 0 at run time.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if start indices are not integers or differ in dtype, or the update has another
            dtype or is too large.
        ValueError: if the number of starts does not match, or a static start is negative without
            ``allow_negative_indices``.

    Example:
        >>> lax.dynamic_update_slice(jnp.zeros(5), jnp.ones(2), (3,))
        Array([0., 0., 0., 1., 1.], dtype=float32)
    """
    starts = _within("dynamic_update_slice", start_indices, operand, allow_negative_indices)
    return _updated(operand, update, starts, allow_negative_indices)


@composite
def _updated(operand: ArrayLike, update: ArrayLike, starts: ArraysLike, allowed: Choice) -> Array:
    starts = _wrapped("dynamic_update_slice", starts, operand, allowed)
    return dynamic_slices.dynamic_update_slice(operand, update, starts)


def _choices(op: str, operand: Any, allowed: Choice) -> list[bool]:
    """For each dimension, whether its start may count from the end."""
    rank = aval_of(operand).ndim
    choices = [allowed] * rank
    if not isinstance(allowed, bool):
        choices = list(as_items(op, "allow_negative_indices", allowed))
    check(
        len(choices) == rank,
        lambda: (
            f"[{op}] allow_negative_indices must be a bool or have one for each dimension; got "
            f"{allowed} for {aval_of(operand)}. Fix: allow_negative_indices=False."
        ),
        ValueError,
    )
    return choices


def _within(op: str, starts: Any, operand: Any, allowed: Choice) -> Any:
    """Starts with Python ints clamped near the operand's bounds."""
    starts = tuple(starts) if isinstance(starts, range) else starts
    if not isinstance(starts, (list, tuple)) or not any(isinstance(s, int) for s in starts):
        return starts
    shape = aval_of(operand).shape
    if len(starts) != len(shape):
        return starts  # the op raises the error
    per_dim = zip(starts, shape, _choices(op, operand, allowed), strict=True)
    return [_start_within(op, start, size, operand, choice) for start, size, choice in per_dim]


def _start_within(op: str, start: Any, size: int, operand: Any, allowed: bool) -> Any:
    """A start; a Python int is clamped near the bounds, where it selects the same window."""
    if not isinstance(start, int) or isinstance(start, bool):
        return start
    check(
        allowed or start >= 0,
        lambda: (
            f"[{op}] starts must not be negative with allow_negative_indices=False; got "
            f"{start} for {aval_of(operand)}. Fix: allow_negative_indices=True."
        ),
        ValueError,
    )
    return min(max(start, -size), size)


def _wrapped(op: str, starts: Any, operand: Any, allowed: Choice) -> list[Any]:
    """Starts with negative ones wrapped, unless the operation does that."""
    shape = aval_of(operand).shape
    starts = _starts(op, starts, len(shape))
    if len(starts) != len(shape):
        return starts  # the op raises the error
    choices = _choices(op, operand, allowed)
    return [
        _from_the_end(start, size) if choice else start
        for start, size, choice in zip(starts, shape, choices, strict=True)
    ]


def _from_the_end(start: Any, size: int) -> Any:
    aval = aval_of(start)
    if dtypes.is_extended(aval.dtype) or aval.dtype.kind != "i":
        return start
    if isinstance(start, int):
        index = start + size if start < 0 else start
        return index if abs(index) < 2**31 else dtypes.index_dtype(abs(index)).type(index)
    if isinstance(start, np.integer) and start >= 0:
        return start
    start = asarray(start)
    is_negative = start < 0
    if size > np.iinfo(aval.dtype).max:  # an addition in uint32 wraps to what int64 gives
        start = convert_element_type(start, dtypes.index_dtype(size))
    dtype = aval_of(start).dtype
    return start + convert_element_type(is_negative, dtype) * np.asarray(size, dtype)


@explained
def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Compute ``dynamic_slice`` along one axis.

    Args:
        operand: array of any dtype.
        start_index: an integer scalar; it is clamped so that the window is in bounds.
        slice_size: size of the slice.
        axis: the axis.
        allow_negative_indices: whether negative starts count from the end.

    Returns:
        An array of the dtype of ``operand``, with size ``slice_size`` along ``axis``.

    Raises:
        TypeError: if the start is not an integer.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.dynamic_slice_in_dim(jnp.arange(6).reshape(3, 2), 1, 2)
        Array([[2, 3],
               [4, 5]], dtype=int32)
    """
    return _sliced_along(
        "dynamic_slice_in_dim", operand, start_index, slice_size, axis, True, allow_negative_indices
    )


def _sliced_along(
    op: str, operand: Any, start: Any, size: int, axis: int, keepdims: bool, allowed: bool
) -> Array:
    shape = aval_of(operand).shape
    dim = canonicalize_axis(axis, len(shape), op)
    allowed = as_truth(op, "allow_negative_indices", allowed)
    start = _start_within("dynamic_slice", start, shape[dim], operand, allowed)
    return _slice_along(operand, start, size, dim, keepdims, allowed)


@composite
def _slice_along(
    operand: ArrayLike, start: ArrayLike, size: int, dim: int, keepdims: bool, allowed: bool
) -> Array:
    sizes = list(aval_of(operand).shape)
    sizes[dim] = size
    out = _sliced(operand, _only(operand, dim, start), sizes, allowed)
    return out if keepdims else squeeze(out, (dim,))


@explained
def dynamic_index_in_dim(
    operand: ArrayLike,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Return the element at a dynamic index along ``axis``.

    Args:
        operand: array of any dtype.
        index: an integer scalar; it is clamped to the bounds.
        axis: the axis.
        keepdims: whether the axis stays, with size 1.
        allow_negative_indices: whether negative starts count from the end.

    Returns:
        An array of the dtype of ``operand``.

    Raises:
        TypeError: if the index is not an integer.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.dynamic_index_in_dim(jnp.arange(6).reshape(3, 2), 1, keepdims=False)
        Array([2, 3], dtype=int32)
    """
    return _sliced_along(
        "dynamic_index_in_dim", operand, index, 1, axis, keepdims, allow_negative_indices
    )


@explained
def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Compute ``dynamic_update_slice`` along one axis.

    Args:
        operand: array of any dtype.
        update: array of the same dtype and rank, at most as large as ``operand``.
        start_index: an integer scalar; it is clamped so that the window is in bounds.
        axis: the axis of the start index; the start is 0 along other axes.
        allow_negative_indices: whether negative starts count from the end.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if the start is not an integer, or the update has another dtype or is too large.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.dynamic_update_slice_in_dim(jnp.zeros(5), jnp.ones(2), 1, axis=0)
        Array([0., 1., 1., 0., 0.], dtype=float32)
    """
    return _updated_along(
        "dynamic_update_slice_in_dim",
        operand,
        update,
        start_index,
        axis,
        False,
        allow_negative_indices,
    )


def _updated_along(
    op: str, operand: Any, update: Any, start: Any, axis: int, is_element: bool, allowed: bool
) -> Array:
    shape = aval_of(operand).shape
    dim = canonicalize_axis(axis, len(shape), op)
    allowed = as_truth(op, "allow_negative_indices", allowed)
    start = _start_within("dynamic_update_slice", start, shape[dim], operand, allowed)
    return _update_along(operand, update, start, dim, is_element, allowed)


@composite
def _update_along(
    operand: ArrayLike,
    update: ArrayLike,
    start: ArrayLike,
    dim: int,
    is_element: bool,
    allowed: bool,
) -> Array:
    if is_element and aval_of(update).ndim != aval_of(operand).ndim:
        update = expand_dims(update, (dim,))
    return _updated(operand, update, _only(operand, dim, start), allowed)


@explained
def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Array:
    """Replace the element at a dynamic index along ``axis``.

    Args:
        operand: array of any dtype.
        update: array of the same dtype, with size 1 along ``axis`` or without it.
        index: an integer scalar; it is clamped to the bounds.
        axis: the axis.
        allow_negative_indices: whether negative starts count from the end.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if the index is not an integer, or the update has another dtype or is too large.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.dynamic_update_index_in_dim(jnp.zeros((3, 2)), jnp.ones(2), 1, axis=0)
        Array([[0., 0.],
               [1., 1.],
               [0., 0.]], dtype=float32)
    """
    return _updated_along(
        "dynamic_update_index_in_dim", operand, update, index, axis, True, allow_negative_indices
    )


def _only(operand: Any, dim: int, start: Any) -> list[Any]:
    zero = 0 if isinstance(start, int) else np.zeros((), aval_of(start).dtype)[()]
    return [start if d == dim else zero for d in range(aval_of(operand).ndim)]


@composite
def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Gather elements of ``src`` at index vectors along ``axes``, which become one leading axis.

    Out-of-bounds indices are taken modulo the size of their axis.

    Args:
        src: array of any dtype.
        idxs: integer arrays of one shape, one for each of ``axes``.
        axes: dimensions of ``src``.

    Returns:
        An array with the dimension of the index vectors first.

    Example:
        >>> x, rows, columns = jnp.arange(6).reshape(3, 2), jnp.array([0, 2]), jnp.array([1, 1])
        >>> lax.index_take(x, (rows, columns), (0, 1))
        Array([1, 5], dtype=int32)
    """
    aval = aval_of(src)
    axes = as_integers("index_take", "axes", axes)
    check(
        are_dimensions(axes, aval.ndim) and len(idxs) == len(axes),
        lambda: (
            f"[index_take] there must be an index for each of some dimensions of {aval}; got "
            f"{len(idxs)} for axes {axes}. Fix: lax.index_take(x, (rows,), (0,))."
        ),
        ValueError,
    )
    wrapped = [_modulo(index, aval.shape[axis]) for index, axis in zip(idxs, axes, strict=True)]
    columns = [expand_dims(index, (aval_of(index).ndim,)) for index in wrapped]
    indices = concatenate(columns, aval_of(columns[0]).ndim - 1)
    dims = tuple(canonicalize_axis(axis, aval.ndim, "index_take") for axis in axes)
    sizes = [1 if d in dims else size for d, size in enumerate(aval.shape)]
    windows = aval.ndim - len(dims)
    lead = aval_of(indices).ndim - 1
    numbers = GatherDimensionNumbers(tuple(range(lead, lead + windows)), tuple(sorted(dims)), dims)
    return gather(src, indices, numbers, sizes, mode="clip")


def _modulo(index: Any, size: int) -> Any:
    """Indices in [0, size)."""
    dtype = aval_of(index).dtype
    modulo = rem(index, np.asarray(size, dtype))
    return where(lt(modulo, np.asarray(0, dtype)), add(modulo, np.asarray(size, dtype)), modulo)


def unstack(x: ArrayLike, axis: int = 0) -> list[Array]:
    """Return the slices along a dimension, without the dimension.

    Args:
        x: array of any dtype, of rank at least 1.
        axis: the dimension.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the dimension does not exist.

    Example:
        >>> lax.unstack(jnp.array([[1, 2], [3, 4]]))
        [Array([1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    dim = canonicalize_axis(axis, aval_of(x).ndim, "unstack")
    # A program of a thousand results takes longer to build than to run op by op.
    split_fn = _unstacked if aval_of(x).shape[dim] <= _MAX_FUSED_SLICES else _elements
    return split_fn(x, dim)


def _elements(x: ArrayLike, dim: int) -> list[Array]:
    count = aval_of(x).shape[dim]
    return [index_in_dim(x, k, dim, keepdims=False) for k in range(count)]


_unstacked = composite(_elements)
