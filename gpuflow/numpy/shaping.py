"""Shapes and axes: reshape, transpose, broadcast.

Axes of size 1 are added by broadcast_in_dim and dropped by squeeze, never by reshape, so that the
compiler can match the axes of operand and result.

Tests: tests/numpy/test_numpy_functions.py, tests/numpy/test_numpy_array_api.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.arguments import (
    are_several,
    as_integer,
    as_items,
    canonicalize_axes,
    canonicalize_axis,
    check_rank,
)
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, Axes, ShapeLike, ShardingLike
from gpuflow.numpy import promotion
from gpuflow.numpy.promotion import check_arraylike, is_arraylike
from gpuflow.ops.effects.device_put import in_sharding


def _with_shape(name: str, x: Any) -> tuple[Any, tuple[int, ...]]:
    (x,) = check_arraylike(name, x)
    return x, aval_of(x).shape


def _sizes(name: str, a: Any) -> tuple[int, ...]:
    """The shape of an array, a scalar, nested lists of scalars, or None, which has no axes.

    Objects with NumPy's shape and dtype have a shape too, as sparse matrices.
    """
    if a is None or isinstance(a, list | tuple):
        try:
            return np.shape(a)
        except ValueError:
            raise ValueError(
                f"[{name}] lists must hold rows of one length; got {brief(a)}. Fix: pad the rows."
            ) from None
    if not is_arraylike(a) and isinstance(getattr(a, "dtype", None), np.dtype):
        return np.shape(a)
    return _with_shape(name, a)[1]


def ndim(a: Any) -> int:
    """Return the number of axes.

    Args:
        a: array, scalar or nested lists of numbers.

    Returns:
        An int.

    Example:
        >>> jnp.ndim(jnp.ones((2, 3))), jnp.ndim([1, 2]), jnp.ndim(5)
        (2, 1, 0)
    """
    return len(_sizes("ndim", a))


def shape(a: Any) -> tuple[int, ...]:
    """Return the shape, the sizes of all axes.

    Args:
        a: array, scalar or nested lists of numbers.

    Returns:
        A tuple of ints.

    Example:
        >>> jnp.shape(jnp.ones((2, 3))), jnp.shape(5)
        ((2, 3), ())
    """
    return _sizes("shape", a)


def size(a: Any, axis: Axes = None) -> int:
    """Return the number of elements, or the size along ``axis``.

    Args:
        a: array, scalar or nested lists of numbers.
        axis: an axis, a tuple of axes, or None to reduce over all axes.

    Returns:
        An int.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> x = jnp.ones((2, 3))
        >>> jnp.size(x), jnp.size(x, 1)
        (6, 3)
    """
    sizes = _sizes("size", a)
    return prod(sizes[d] for d in canonicalize_axes(axis, len(sizes), "size"))


def as_shape(name: str, new_shape: Any) -> tuple[int, ...]:
    """A user's shape argument as a tuple: an int or a sequence of ints, also as an array."""
    is_class = isinstance(new_shape, type)
    if hasattr(new_shape, "__index__") and not is_class and not getattr(new_shape, "ndim", 0):
        return (as_index(new_shape),)
    try:
        sizes = tuple(as_index(n) for n in new_shape)
    except TypeError as error:
        if isinstance(error.__cause__, Exception) or "traced" in str(error):
            raise
        raise TypeError(
            f"[{name}] shape must be an int or a sequence of ints; got {brief(new_shape)}. "
            "Fix: jnp.zeros((3, 4))."
        ) from None
    check_rank(name, sizes)
    return sizes


# --- reshape and friends -------------------------------------------------------------------


def reshape(
    a: ArrayLike,
    shape: ShapeLike | None = None,
    order: str = "C",
    *,
    copy: bool | None = None,
    newshape: Any = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the elements in row-major order with another shape.

    Args:
        a: array.
        shape: an int or a sequence of ints; one entry may be -1.
        order: ``"C"``, or ``"F"`` for column-major order.
        copy: no effect: sharing of memory cannot be observed.
        newshape: another name of ``shape``.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array of the shape, with the elements of ``a``.

    Raises:
        TypeError: if the number of elements differs.
        ValueError: if the order is unknown.

    Example:
        >>> jnp.reshape(jnp.arange(6), (2, -1))
        Array([[0, 1, 2],
               [3, 4, 5]], dtype=int32)
        >>> jnp.reshape(jnp.arange(4), (2, 2), order="F")
        Array([[0, 2],
               [1, 3]], dtype=int32)
    """
    if out_sharding is not None:
        out = reshape(a, shape, order, copy=copy, newshape=newshape)
        return in_sharding("reshape", out, out_sharding)
    del copy
    requested = newshape if shape is None else shape
    if order != "C":
        _check_order(order, requested)
    a, old = _with_shape("reshape", a)
    sizes = _fill_in(old, as_shape("reshape", requested))
    if order == "F":
        flipped = reshape(transpose(a), sizes[::-1])
        return transpose(flipped)
    return lax.reshape(a, sizes)


def _check_order(order: Any, shape: Any) -> None:
    """Check the order of elements; for an integer, suggest a shape: it was meant as a size."""
    if isinstance(order, int):
        sizes = (*(shape if isinstance(shape, tuple | list) else (shape,)), order)
        raise TypeError(
            "[reshape] sizes must be one tuple; got them as separate arguments. Fix: "
            f"jnp.reshape(x, {sizes})."
        )
    check(
        order == "F",
        lambda: f"[reshape] order must be 'C' or 'F'; got {order!r}. Fix: order='C'.",
        ValueError,
    )


def _fill_in(old: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """``sizes`` with -1 replaced by the inferred size."""
    count, product = prod(old), prod(n for n in sizes if n != -1)
    unknown = sizes.count(-1)
    fits = product == count if unknown == 0 else product > 0 and count % product == 0
    if unknown > 1 or not fits or any(n < -1 for n in sizes):
        raise TypeError(
            f"[reshape] the sizes must hold {count} elements, with at most one -1; got shape "
            f"{sizes} for an array of shape {old}. Fix: use sizes whose product is {count}."
        )
    return tuple(count // product if n == -1 else n for n in sizes)


def ravel(a: ArrayLike, order: str = "C", *, out_sharding: ShardingLike = None) -> Array:
    """Flatten the array to a vector.

    Args:
        a: array.
        order: ``"C"``, or ``"F"`` for column-major order.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        A vector.

    Raises:
        ValueError: if the order is unknown.

    Example:
        >>> jnp.ravel(jnp.array([[1, 2], [3, 4]]))
        Array([1, 2, 3, 4], dtype=int32)
    """
    a, old = _with_shape("ravel", a)
    out = reshape(a, (-1,) if prod(old) else (0,), order)
    return in_sharding("ravel", out, out_sharding)


def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Insert axes of size 1 at the positions ``axis`` of the result.

    Args:
        a: array.
        axis: positions of the new axes in the result, an int or a sequence of ints.

    Returns:
        An array with the elements of ``a``.

    Raises:
        ValueError: if the result does not have the axis.

    Example:
        >>> x = jnp.array([1, 2])
        >>> jnp.expand_dims(x, 0).shape, jnp.expand_dims(x, (0, -1)).shape
        ((1, 2), (1, 2, 1))
    """
    a, old = _with_shape("expand_dims", a)
    count = len(axis) if are_several(axis) else 1
    return with_new_axes(a, old, canonicalize_axes(axis, len(old) + count, "expand_dims"))


def with_new_axes(x: Any, old: tuple[int, ...], new: Sequence[int]) -> Any:
    """``x``, of shape ``old``, with axes of size 1 that are ``new`` in the result."""
    sizes = iter(old)
    full = tuple(1 if d in new else next(sizes) for d in range(len(old) + len(new)))
    return lax.broadcast_in_dim(x, full, [d for d in range(len(full)) if d not in new])


def squeeze(a: ArrayLike, axis: Axes = None) -> Array:
    """Remove axes of size 1: all of them, or those in ``axis``.

    Args:
        a: array.
        axis: an axis, a tuple of axes, or None for all of size 1.

    Returns:
        An array with the elements of ``a``.

    Raises:
        ValueError: if an axis does not exist, or its size is not 1.

    Example:
        >>> jnp.squeeze(jnp.ones((1, 3, 1))).shape
        (3,)
    """
    a, old = _with_shape("squeeze", a)
    if axis is None:
        dims = tuple(d for d, n in enumerate(old) if n == 1)
    else:
        dims = canonicalize_axes(axis, len(old), "squeeze")
    return lax.squeeze(lax.asarray(a), dims)


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Permute the axes; by default reverse them.

    Args:
        a: array.
        axes: for each axis of the result, the axis of ``a``.

    Returns:
        An array of the dtype of ``a``.

    Raises:
        TypeError: if the axes are not a permutation.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.transpose(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 3],
               [2, 4]], dtype=int32)
        >>> jnp.transpose(jnp.ones((2, 3, 4)), (1, 0, 2)).shape
        (3, 2, 4)
    """
    a, old = _with_shape("transpose", a)
    rank = len(old)
    if axes is None:
        order = tuple(range(rank))[::-1]
    else:
        axes = as_items("transpose", "axes", axes)
        order = tuple(canonicalize_axis(d, rank, "transpose") for d in axes)
    return lax.transpose(a, order)


def permute_dims(a: ArrayLike, /, axes: Sequence[int]) -> Array:
    """Permute the axes.

    Args:
        a: array.
        axes: for each axis of the result, the axis of ``a``.

    Returns:
        An array of the dtype of ``a``.

    Raises:
        TypeError: if the axes are not a permutation.
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.permute_dims(jnp.ones((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    return transpose(a, axes)


def matrix_transpose(x: ArrayLike, /) -> Array:
    """Swap the last two axes.

    Args:
        x: matrices of shape (..., m, n).

    Returns:
        Matrices of shape (..., n, m).

    Raises:
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.matrix_transpose(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    x, old = _with_shape("matrix_transpose", x)
    rank = len(old)
    check(
        rank >= 2,
        lambda: f"[matrix_transpose] the array must have two axes; got rank {rank}. Fix: x[None].",
        ValueError,
    )
    return swapaxes(x, -1, -2)


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Array:
    """Swap two axes.

    Args:
        a: array.
        axis1, axis2: the axes.

    Returns:
        An array of the dtype of ``a``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.swapaxes(jnp.ones((2, 3, 4)), 0, 2).shape
        (4, 3, 2)
    """
    a, old = _with_shape("swapaxes", a)
    rank = len(old)
    first, second = (canonicalize_axis(d, rank, "swapaxes") for d in (axis1, axis2))
    order = list(range(rank))
    order[first], order[second] = second, first
    return lax.transpose(a, order)


@explained
def moveaxis(a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Move axes to other positions; the others keep their order.

    Args:
        a: array.
        source: an axis or a sequence of axes.
        destination: the position of each of them in the result.

    Returns:
        An array of the dtype of ``a``.

    Raises:
        ValueError: if axes do not exist, are repeated, or differ in number.

    Example:
        >>> jnp.moveaxis(jnp.ones((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    a, old = _with_shape("moveaxis", a)
    rank = len(old)
    sources, targets = (
        [canonicalize_axis(d, rank, "moveaxis") for d in _as_list(v)] for v in (source, destination)
    )
    check(
        len(sources) == len(targets) == len(set(sources)) == len(set(targets)),
        lambda: (
            "[moveaxis] source and destination must be equally many distinct axes; "
            f"got {source} and {destination}. Fix: name one destination for each source."
        ),
        ValueError,
    )
    order = [d for d in range(rank) if d not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return lax.transpose(a, order)


@explained
def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Array:
    """Move one axis before another.

    Args:
        a: array.
        axis: the axis to move.
        start: the axis before which it is moved; the rank moves it to the end.

    Returns:
        An array of the dtype of ``a``.

    Raises:
        ValueError: if the axes do not exist.

    Example:
        >>> jnp.rollaxis(jnp.ones((2, 3, 4)), 2).shape
        (4, 2, 3)
    """
    a, old = _with_shape("rollaxis", a)
    rank = len(old)
    origin = canonicalize_axis(axis, rank, "rollaxis")
    target = as_integer("rollaxis", "start", start)
    check(
        -rank <= target <= rank,
        lambda: f"[rollaxis] start must be in [{-rank}, {rank}]; got {target}. Fix: start=0.",
        ValueError,
    )
    target = target + rank if target < 0 else target
    order = [d for d in range(rank) if d != origin]
    order.insert(target - 1 if target > origin else target, origin)
    return lax.transpose(a, order)


def _as_list(value: Any) -> list[int]:
    return list(value) if are_several(value) else [value]


def flip(m: ArrayLike, axis: Axes = None) -> Array:
    """Reverse the order of elements along ``axis``; by default along all axes.

    Args:
        m: array.
        axis: an axis, a tuple of axes, or None to reduce over all axes.

    Returns:
        An array of the shape and dtype of ``m``.

    Raises:
        ValueError: if the axis does not exist.

    Example:
        >>> jnp.flip(jnp.array([[1, 2], [3, 4]]), axis=1)
        Array([[2, 1],
               [4, 3]], dtype=int32)
    """
    m, old = _with_shape("flip", m)
    return lax.rev(lax.asarray(m), canonicalize_axes(axis, len(old), "flip"))


# --- broadcasting --------------------------------------------------------------------------


def broadcast_to(array: ArrayLike, shape: ShapeLike, *, out_sharding: ShardingLike = None) -> Array:
    """Broadcast an array to ``shape``: repeat axes of size 1, and add leading axes.

    Args:
        array: array.
        shape: an int or a sequence of ints.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array of that shape.

    Raises:
        ValueError: if the array does not broadcast to the shape.

    Example:
        >>> jnp.broadcast_to(jnp.array([1, 2]), (2, 2))
        Array([[1, 2],
               [1, 2]], dtype=int32)
    """
    array, old = _with_shape("broadcast_to", array)
    new = as_shape("broadcast_to", shape)
    lead = len(new) - len(old)
    fits = lead >= 0 and all(n in (1, m) for n, m in zip(old, new[max(lead, 0) :], strict=True))
    check(
        fits,
        lambda: (
            f"[broadcast_to] the array must broadcast to the shape; got shape {old} and {new}. "
            "Fix: sizes, aligned at the end, must be equal or 1."
        ),
        ValueError,
    )
    out = lax.broadcast_in_dim(array, new, range(lead, len(new)))
    return in_sharding("broadcast_to", out, out_sharding)


def broadcast_arrays(*args: ArrayLike) -> list[Array]:
    """Broadcast arrays to their common shape.

    Args:
        args: arrays.

    Returns:
        A list of arrays, each with its dtype.

    Raises:
        ValueError: if shapes do not broadcast.

    Example:
        >>> jnp.broadcast_arrays(jnp.array([1, 2]), jnp.array([[3], [4]]))
        [Array([[1, 2],
               [1, 2]], dtype=int32), Array([[3, 3],
               [4, 4]], dtype=int32)]
    """
    shapes = [_with_shape("broadcast_arrays", x)[1] for x in args]
    common = promotion.broadcast_shapes(*shapes, name="broadcast_arrays")
    if all(shape == common for shape in shapes):
        return [broadcast_to(x, common) for x in args]
    return _broadcast_all(args, common)


@composite
def _broadcast_all(args: ArraysLike, shape: tuple[int, ...]) -> list[Array]:
    return [broadcast_to(x, shape) for x in args]


@explained
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """Return the shape to which arrays of these shapes broadcast.

    Args:
        shapes: ints or sequences of ints.

    Returns:
        A tuple of ints.

    Raises:
        ValueError: if shapes do not broadcast.

    Example:
        >>> jnp.broadcast_shapes((2, 1), (3,))
        (2, 3)
    """
    return promotion.broadcast_shapes(*[as_shape("broadcast_shapes", s) for s in shapes])
