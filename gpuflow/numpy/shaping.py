"""Shapes and axes: reshape, transpose, join, split, pad, repeat.

Axes of size 1 come and go by broadcast_in_dim and squeeze, never by reshape: the compiler knows
which axes of the two sides are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axes, canonicalize_axis
from gpuflow.core.aval import aval_of
from gpuflow.numpy import promotion
from gpuflow.numpy.promotion import check_arraylike, convert, promote_dtypes, user_dtype

Axes = int | Sequence[int] | None


def _shape_of(name: str, x: Any) -> tuple[int, ...]:
    check_arraylike(name, x)
    return aval_of(x).shape


def ndim(a: Any) -> int:
    """The number of axes."""
    return len(_shape_of("ndim", a))


def shape(a: Any) -> tuple[int, ...]:
    """The sizes of all axes."""
    return _shape_of("shape", a)


def size(a: Any, axis: Axes = None) -> int:
    """The number of elements, or the size along ``axis``."""
    sizes = _shape_of("size", a)
    return prod(sizes[d] for d in canonicalize_axes(axis, len(sizes), "size"))


def as_shape(name: str, new_shape: Any) -> tuple[int, ...]:
    """A user's shape argument as a tuple: an int or a sequence of ints."""
    if hasattr(new_shape, "__index__"):
        return (as_index(new_shape),)
    try:
        return tuple(as_index(n) for n in new_shape)
    except TypeError as error:
        if isinstance(error.__cause__, Exception) or "traced" in str(error):
            raise
        raise TypeError(
            f"[{name}] shape must be an int or a sequence of ints; got {new_shape!r}. "
            "Fix: jnp.zeros((3, 4))."
        ) from None


# --- reshape and friends -------------------------------------------------------------------


def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None) -> Any:
    """The elements in row-major order with another shape.

    Args:
        a: array.
        shape: an int or a sequence; one entry may be -1.
        order: ``"C"``, or ``"F"`` for column-major order.

    Raises:
        TypeError: sizes whose product does not fit.
    """
    wanted = newshape if shape is None else shape
    old = _shape_of("reshape", a)
    sizes = _fill_in(old, as_shape("reshape", wanted))
    if order == "F":
        flipped = reshape(transpose(a), sizes[::-1])
        return transpose(flipped)
    check(
        order == "C",
        lambda: f"[reshape] order must be 'C' or 'F'; got {order!r}. Fix: order='C'.",
        ValueError,
    )
    return lax.reshape(a, sizes)


def _fill_in(old: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """``sizes`` with -1 replaced by what is left."""
    count, known = prod(old), prod(n for n in sizes if n != -1)
    unknown = sizes.count(-1)
    fits = known == count if unknown == 0 else known > 0 and count % known == 0
    if unknown > 1 or not fits or any(n < -1 for n in sizes):
        raise TypeError(
            f"[reshape] the sizes must hold {count} elements, with at most one -1; got shape "
            f"{sizes} for an array of shape {old}. Fix: use sizes whose product is {count}."
        )
    return tuple(count // known if n == -1 else n for n in sizes)


def ravel(a: Any, order: str = "C") -> Any:
    """All elements along one axis."""
    return reshape(a, (-1,) if prod(_shape_of("ravel", a)) else (0,), order)


def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """Insert axes of size 1; ``axis`` counts in the result."""
    old = _shape_of("expand_dims", a)
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    new = canonicalize_axes(axis, len(old) + count, "expand_dims")
    sizes = iter(old)
    full = tuple(1 if d in new else next(sizes) for d in range(len(old) + count))
    return lax.broadcast_in_dim(a, full, [d for d in range(len(full)) if d not in new])


def squeeze(a: Any, axis: Axes = None) -> Any:
    """Drop axes of size 1: all of them, or those in ``axis``.

    Raises:
        ValueError: an axis of another size.
    """
    old = _shape_of("squeeze", a)
    if axis is None:
        dims = tuple(d for d, n in enumerate(old) if n == 1)
    else:
        dims = canonicalize_axes(axis, len(old), "squeeze")
    return lax.squeeze(a, dims)


def transpose(a: Any, axes: Sequence[int] | None = None) -> Any:
    """Permute the axes; by default reverse them."""
    rank = len(_shape_of("transpose", a))
    if axes is None:
        order = tuple(range(rank))[::-1]
    else:
        order = tuple(canonicalize_axis(d, rank, "transpose") for d in axes)
    return lax.transpose(a, order)


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Any:
    """Swap the last two axes."""
    rank = len(_shape_of("matrix_transpose", x))
    check(
        rank >= 2,
        lambda: f"[matrix_transpose] the array must have two axes; got rank {rank}. Fix: x[None].",
        ValueError,
    )
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Swap two axes."""
    rank = len(_shape_of("swapaxes", a))
    first, second = (canonicalize_axis(d, rank, "swapaxes") for d in (axis1, axis2))
    order = list(range(rank))
    order[first], order[second] = second, first
    return lax.transpose(a, order)


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Move axes to other positions; the others keep their order."""
    rank = len(_shape_of("moveaxis", a))
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


def _as_list(value: int | Sequence[int]) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def flip(m: Any, axis: Axes = None) -> Any:
    """Reverse the order of elements along ``axis``, by default along all."""
    return lax.rev(m, canonicalize_axes(axis, len(_shape_of("flip", m)), "flip"))


# --- broadcasting --------------------------------------------------------------------------


def broadcast_to(array: Any, shape: Any) -> Any:
    """Repeat axes of size 1, and add leading axes, up to ``shape``.

    Raises:
        ValueError: a shape that the array does not broadcast to.
    """
    old, new = _shape_of("broadcast_to", array), as_shape("broadcast_to", shape)
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
    return lax.broadcast_in_dim(array, new, range(lead, len(new)))


def broadcast_arrays(*args: Any) -> list[Any]:
    """Broadcast arrays to their common shape."""
    shapes = [_shape_of("broadcast_arrays", x) for x in args]
    common = promotion.broadcast_shapes(*shapes, name="broadcast_arrays")
    return [broadcast_to(x, common) for x in args]


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of these shapes broadcast to."""
    return promotion.broadcast_shapes(*[as_shape("broadcast_shapes", s) for s in shapes])


def atleast_1d(*arys: Any) -> Any:
    """Arrays with at least one axis."""
    return _at_least(arys, 1, lambda x, rank: expand_dims(x, 0))


def atleast_2d(*arys: Any) -> Any:
    """Arrays with at least two axes; new ones come first."""
    return _at_least(arys, 2, lambda x, rank: expand_dims(x, tuple(range(2 - rank))))


def _at_least(arys: Sequence[Any], rank: int, widen: Any) -> Any:
    own = [ndim(x) for x in arys]
    outs = [x if n >= rank else widen(x, n) for x, n in zip(arys, own, strict=True)]
    return outs[0] if len(outs) == 1 else outs


# --- joining -------------------------------------------------------------------------------


def _pieces(name: str, arrays: Any, dtype: Any) -> list[Any]:
    """The arrays of a joining function, in one dtype."""
    arrays = list(arrays) if isinstance(arrays, (tuple, list)) else _rows(name, arrays)
    check(
        len(arrays) > 0,
        lambda: f"[{name}] at least one array is needed; got none. Fix: pass a list of arrays.",
        ValueError,
    )
    check_arraylike(name, *arrays)
    if dtype is not None:
        wanted = user_dtype(dtype, name)
        return [convert(x, wanted) for x in arrays]
    return promote_dtypes(*arrays)


def _rows(name: str, stacked: Any) -> list[Any]:
    """The rows of an array that was passed in place of a list."""
    sizes = _shape_of(name, stacked)
    check(
        len(sizes) > 0,
        lambda: f"[{name}] a sequence of arrays is needed; got a scalar. Fix: jnp.{name}([x]).",
        ValueError,
    )
    return [lax.row_gather(stacked, np.int32(k), "clip") for k in range(sizes[0])]


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Join arrays along an existing axis; None: of the raveled arrays.

    Raises:
        ValueError: no arrays, or an axis that does not exist.
        TypeError: shapes that differ elsewhere.
    """
    pieces = _pieces("concatenate", arrays, dtype)
    if axis is None:
        return lax.concatenate([ravel(x) for x in pieces], 0)
    rank = aval_of(pieces[0]).ndim
    check(
        rank > 0,
        lambda: "[concatenate] scalars have no axis to join; got a scalar. Fix: jnp.stack.",
        ValueError,
    )
    return lax.concatenate(pieces, canonicalize_axis(axis, rank, "concatenate"))


concat = concatenate


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Join arrays of one shape along a new axis."""
    check(out is None, lambda: "[stack] out must be None; got an array.", NotImplementedError)
    pieces = _pieces("stack", arrays, dtype)
    shapes = [aval_of(x).shape for x in pieces]
    check(
        len(set(shapes)) == 1,
        lambda: (
            f"[stack] arrays must have one shape; got {', '.join(map(str, shapes))}. "
            "Fix: pad or broadcast them, or use jnp.concatenate."
        ),
        ValueError,
    )
    place = canonicalize_axis(axis, len(shapes[0]) + 1, "stack")
    return lax.concatenate([expand_dims(x, place) for x in pieces], place)


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Join as rows: vectors become rows first."""
    return concatenate([atleast_2d(x) for x in _pieces("vstack", tup, dtype)], 0)


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Join along the second axis; vectors along their only one."""
    pieces = [atleast_1d(x) for x in _pieces("hstack", tup, dtype)]
    return concatenate(pieces, 0 if ndim(pieces[0]) == 1 else 1)


def column_stack(tup: Any) -> Any:
    """Join vectors as columns, and matrices side by side."""
    pieces = [atleast_1d(x) for x in _pieces("column_stack", tup, None)]
    return concatenate([expand_dims(x, 1) if ndim(x) == 1 else x for x in pieces], 1)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """``values`` after ``arr`` along ``axis``; None: of the raveled arrays."""
    return concatenate([arr, values], axis)


# --- splitting -----------------------------------------------------------------------------


def _cut(x: Any, axis: int, bounds: Sequence[int]) -> list[Any]:
    sizes = aval_of(x).shape
    pieces = []
    for start, stop in pairwise(bounds):
        first, last = [0] * len(sizes), list(sizes)
        first[axis], last[axis] = start, max(start, stop)
        pieces.append(lax.slice(x, first, last))
    return pieces


def _bounds(size: int, cuts: Sequence[int]) -> list[int]:
    inside = [max(0, min(size, cut + size if cut < 0 else cut)) for cut in cuts]
    return [0, *inside, size]


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Cut into sections whose sizes differ by at most one, or at the given indices."""
    sizes = _shape_of("array_split", ary)
    place = canonicalize_axis(axis, len(sizes), "array_split")
    size = sizes[place]
    if not hasattr(indices_or_sections, "__index__"):
        return _cut(ary, place, _bounds(size, [as_index(cut) for cut in indices_or_sections]))
    count = as_index(indices_or_sections)
    check(
        count > 0,
        lambda: f"[array_split] the number of sections must be positive; got {count}. Fix: 1.",
        ValueError,
    )
    each, rest = divmod(size, count)
    starts = [k * each + min(k, rest) for k in range(count + 1)]
    return _cut(ary, place, starts)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Cut into equal sections, or at the given indices.

    Raises:
        ValueError: a number of sections that does not divide the axis.
    """
    if hasattr(indices_or_sections, "__index__"):
        sizes = _shape_of("split", ary)
        size = sizes[canonicalize_axis(axis, len(sizes), "split")]
        count = as_index(indices_or_sections)
        check(
            count > 0 and size % count == 0,
            lambda: (
                f"[split] the sections must divide the axis evenly; got {count} sections of "
                f"size {size}. Fix: jnp.array_split, or indices to cut at."
            ),
            ValueError,
        )
    return array_split(ary, indices_or_sections, axis)
