"""Repetition, shifts and rotation: tile, repeat, roll, rot90.

Tests: tests/numpy/test_argument_kinds.py, tests/numpy/test_numpy_properties.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import (
    are_several,
    as_integer,
    canonicalize_axes,
    canonicalize_axis,
    known_index,
)
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.core.types import Array, ArrayLike, Axes, ShardingLike
from gpuflow.numpy.arguments import known
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.promotion import check_arraylike
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel
from gpuflow.numpy.ufuncs import remainder
from gpuflow.ops.effects.device_put import in_sharding


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if are_several(value) else (value,)


@composite
def tile(A: ArrayLike, reps: int | Sequence[int]) -> Array:
    """Repeat the whole array ``reps[d]`` times along axis d; missing axes are added in front.

    Args:
        A: array.
        reps: an int or a sequence of ints; if there are fewer than axes, leading axes have 1.

    Returns:
        An array of the dtype of ``A``.

    Example:
        >>> jnp.tile(jnp.array([1, 2]), 2)
        Array([1, 2, 1, 2], dtype=int32)
        >>> jnp.tile(jnp.array([1, 2]), (2, 1))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    (A,) = check_arraylike("tile", A)
    counts = [as_index(n) for n in _as_tuple(reps)]
    old = aval_of(A).shape
    rank = max(len(old), len(counts))
    counts = [1] * (rank - len(counts)) + counts
    sizes = (1,) * (rank - len(old)) + old
    # Each repeated axis becomes two, (count, size), which a reshape then merges.
    wide = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    operand_axes = [2 * d + 1 for d in range(rank - len(old), rank)]
    tiled = lax.broadcast_in_dim(A, wide, operand_axes)
    return lax.reshape(tiled, [c * n for c, n in zip(counts, sizes, strict=True)])


def repeat(
    a: ArrayLike,
    repeats: ArrayLike,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Repeat each element ``repeats`` times.

    Args:
        a: array.
        repeats: an int, or one int for each index along ``axis``.
        axis: the axis; None flattens the array first.
        total_repeat_length: static size of the result along ``axis``, required for traced repeats:
            extra elements are dropped, missing ones repeat the last element.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array of the dtype and rank of ``a``, or a vector.

    Raises:
        ConcretizationTypeError: if repeats are traced and ``total_repeat_length`` is not given.
        TypeError: if ``repeats`` is a scalar that is negative or not an integer.
        ValueError: if ``repeats`` is a sequence with such an element or of another length, or the
            total is negative.

    Example:
        >>> jnp.repeat(jnp.array([1, 2]), 2)
        Array([1, 1, 2, 2], dtype=int32)
        >>> jnp.repeat(jnp.array([[1, 2]]), jnp.array([1, 3]), axis=1)
        Array([[1, 2, 2, 2]], dtype=int32)
    """
    if out_sharding is not None:
        out = repeat(a, repeats, axis, total_repeat_length=total_repeat_length)
        return in_sharding("repeat", out, out_sharding)
    (a,) = check_arraylike("repeat", a)
    if axis is None:
        a, axis = ravel(a), 0
    sizes = aval_of(a).shape
    dim = canonicalize_axis(axis, len(sizes), "repeat")
    total = total_repeat_length
    if total is not None:
        total = as_integer("repeat", "total_repeat_length", total)
        check(
            total >= 0,
            lambda: f"[repeat] total_repeat_length must not be negative; got {total}. Fix: 0.",
            ValueError,
        )
    traced = isinstance(repeats, Tracer) and repeats.concrete() is None
    if traced and total is not None:
        return _repeat_traced(a, repeats, dim, total)
    fix = "jnp.repeat(x, repeats, total_repeat_length=...)."
    counts = known("repeat", "repeats", repeats, fix)
    if dtypes.is_integer(counts.dtype) or dtypes.is_bool(counts.dtype):
        counts = counts.astype(np.int64)
    check(
        counts.dtype == np.int64 and counts.ndim <= 1 and bool((counts >= 0).all()),
        lambda: f"[repeat] repeats must be an int or ints, none negative; got {repeats!r}. Fix: 2.",
        TypeError if counts.ndim == 0 else ValueError,
    )
    if counts.size != 1 or total is not None:
        size = sizes[dim]
        check(
            counts.size in (1, size),
            lambda: (
                f"[repeat] there must be one number or {size}; got {counts.size}. "
                "Fix: one for each element of the axis."
            ),
            ValueError,
        )
        source = np.repeat(np.arange(size, dtype=np.int32), np.broadcast_to(counts, (size,)))
        if total is not None:
            more = np.full(max(total - source.size, 0), size - 1, np.int32)
            source = np.concatenate([source[:total], more])
        return moveaxis(lax.row_gather(moveaxis(a, dim, 0), source, "clip"), 0, dim)
    count = int(counts.reshape(()))
    wide = (*sizes[: dim + 1], count, *sizes[dim + 1 :])
    source_dims = [d for d in range(len(wide)) if d != dim + 1]
    merged = (*sizes[:dim], sizes[dim] * count, *sizes[dim + 1 :])
    return lax.reshape(lax.broadcast_in_dim(a, wide, source_dims), merged)


def _repeat_traced(a: Any, repeats: Any, dim: int, total: int) -> Any:
    size = aval_of(a).shape[dim]
    counts = broadcast_to(repeats, (size,)).astype(np.int32)
    ends = lax.cumsum(counts, 0)
    # Output index k holds the first element whose repeats end after k.
    before = lax.full((total,), 0, np.int32).at[ends].add(np.int32(1), mode="drop")
    source = lax.cumsum(before, 0)
    return moveaxis(lax.row_gather(moveaxis(a, dim, 0), source, "clip"), 0, dim)


@composite
def roll(a: ArrayLike, shift: ArrayLike | Sequence[int], axis: Axes = None) -> Array:
    """Shift elements along axes; elements that leave at the end re-enter at the front.

    Args:
        a: array.
        shift: number of positions to shift by, an int or one for each axis; they may be traced.
            Floats are truncated to integers, as in JAX.
        axis: an axis, a tuple of axes, or None to flatten the array first.

    Returns:
        An array of the shape and dtype of ``a``.

    Raises:
        ValueError: if the numbers of shifts and axes differ, or an axis does not exist.

    Example:
        >>> jnp.roll(jnp.arange(5), 2)
        Array([3, 4, 0, 1, 2], dtype=int32)
    """
    (a,) = check_arraylike("roll", a)
    if axis is None:
        return lax.reshape(roll(ravel(a), shift, 0), aval_of(a).shape)
    dims = _as_tuple(axis)
    if is_value(shift) and aval_of(shift).ndim:
        shift = tuple(asarray(shift))
    shifts = _as_tuple(shift)
    count = max(len(dims), len(shifts))
    shifts = shifts * count if len(shifts) == 1 else shifts
    dims = dims * count if len(dims) == 1 else dims
    check(
        len(dims) == len(shifts),
        lambda: (
            f"[roll] there must be one shift for each axis; got {len(shifts)} shifts and "
            f"{len(dims)} axes. Fix: shift=(1,) * {len(dims)}."
        ),
        ValueError,
    )
    for dim, step in zip(dims, shifts, strict=True):
        position = canonicalize_axis(dim, aval_of(a).ndim, "roll")
        if isinstance(step, Tracer):
            a = _roll_traced(a, step, position)
        else:
            a = _roll_one(a, _as_shift(step), position)
    return a  # type: ignore[return-value]


def _as_shift(step: Any) -> int:
    step = known_index(step)
    if not isinstance(step, int):
        step = asarray(np.asarray(step), np.int32)  # a host array, which is not traced
    return as_index(step)


def _roll_traced(a: Any, step: Any, dim: int) -> Any:
    size = aval_of(a).shape[dim]
    if not size:
        return a
    # One scalar remainder: processors have no vector instruction for it.
    step = remainder(lax.convert_element_type(step, np.int32), np.int32(size))
    indices = lax.iota(np.int32, (size,)) - step
    indices = lax.select(indices < 0, indices + np.int32(size), indices)
    return moveaxis(lax.row_gather(moveaxis(a, dim, 0), indices, "clip"), 0, dim)


def _roll_one(a: Any, step: int, dim: int) -> Any:
    sizes = list(aval_of(a).shape)
    step = step % sizes[dim] if sizes[dim] else 0
    if step == 0:
        return a
    middle = sizes[dim] - step
    zeros, low, high = [0] * len(sizes), list(sizes), [0] * len(sizes)
    low[dim], high[dim] = middle, middle
    head = lax.slice(a, zeros, low)
    tail = lax.slice(a, high, sizes)
    return concatenate([tail, head], dim)


@composite
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """Rotate the array by ``k`` right angles, from the first towards the second axis.

    Args:
        m: array of rank 2 or more.
        k: number of rotations by 90 degrees, an int; negative numbers rotate in the other
            direction.
        axes: the plane of the rotation.

    Returns:
        An array of the dtype of ``m``.

    Raises:
        ValueError: if the axes are equal or do not exist.

    Example:
        >>> jnp.rot90(jnp.array([[1, 2], [3, 4]]))
        Array([[2, 4],
               [1, 3]], dtype=int32)
    """
    (m,) = check_arraylike("rot90", m)
    rank = aval_of(m).ndim
    first, second = (canonicalize_axis(d, rank, "rot90") for d in axes)
    check(
        first != second,
        lambda: f"[rot90] the axes must differ; got {axes}. Fix: axes=(0, 1).",
        ValueError,
    )
    quarters = as_index(k) % 4
    if quarters == 0:
        return asarray(m)
    if quarters == 2:
        return lax.rev(m, (first, second))
    order = list(range(rank))
    order[first], order[second] = second, first
    if quarters == 1:
        return lax.transpose(lax.rev(m, (second,)), order)
    return lax.rev(lax.transpose(m, order), (second,))


def fliplr(m: ArrayLike) -> Array:
    """Reverse the second axis.

    Args:
        m: array of rank 2 or more.

    Returns:
        An array of the shape and dtype of ``m``.

    Raises:
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.fliplr(jnp.array([[1, 2], [3, 4]]))
        Array([[2, 1],
               [4, 3]], dtype=int32)
    """
    (m,) = check_arraylike("fliplr", m)
    return lax.rev(m, canonicalize_axes(1, aval_of(m).ndim, "fliplr"))


def flipud(m: ArrayLike) -> Array:
    """Reverse the first axis.

    Args:
        m: array of rank 1 or more.

    Returns:
        An array of the shape and dtype of ``m``.

    Raises:
        ValueError: if the rank is 0.

    Example:
        >>> jnp.flipud(jnp.array([[1, 2], [3, 4]]))
        Array([[3, 4],
               [1, 2]], dtype=int32)
    """
    (m,) = check_arraylike("flipud", m)
    return lax.rev(m, canonicalize_axes(0, aval_of(m).ndim, "flipud"))
