"""``take`` and ``take_along_axis``: elements by position along one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axis
from gpuflow.core.aval import aval_of
from gpuflow.numpy.index_plan import normal_entry
from gpuflow.numpy.indexing import wrap_negative
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    no_out,
)
from gpuflow.numpy.shaping import broadcast_to, moveaxis, ravel
from gpuflow.ops.selection import where as select_where


def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """Elements, or slices along ``axis``, by position.

    Args:
        a: array.
        indices: integer array of any shape; negative ones count from the end.
        axis: None: of the raveled array.
        mode: ``"fill"`` (the default): positions outside give nan, or the least integer;
            ``"clip"``: the nearest; ``"wrap"``: modulo the size.
        fill_value: what to fill with in place of nan.

    Raises:
        TypeError: indices that are not integers.
        ValueError: another mode.
    """
    no_out("take", out)
    check(
        mode in (None, "fill", "clip", "wrap"),
        lambda: f"[take] mode must be 'fill', 'clip' or 'wrap'; got {mode!r}. Fix: mode='clip'.",
        ValueError,
    )
    check_arraylike("take", a, indices)
    if axis is None:
        a, axis = ravel(a), 0
    place = canonicalize_axis(axis, aval_of(a).ndim, "take")
    (entry,) = normal_entry(indices) if not isinstance(indices, int) else (np.int32(indices),)
    size, dtype = aval_of(a).shape[place], aval_of(entry).dtype
    if mode == "wrap":
        rest = lax.rem(entry, convert(size, dtype))
        wrapped = lax.add(rest, convert(size, dtype))
        entry = select_where(lax.lt(rest, convert(0, dtype)), wrapped, rest)
    elif mode != "clip":
        entry = wrap_negative(entry, size)
    x = moveaxis(a, place, 0)
    rows = lax.row_gather(x, entry, "fill" if mode in (None, "fill") else "clip")
    rank = aval_of(entry).ndim
    if fill_value is not None and mode in (None, "fill"):
        inside = lax.bitwise_and(
            lax.ge(entry, convert(0, dtype)), lax.lt(entry, convert(size, aval_of(entry).dtype))
        )
        inside = lax.broadcast_in_dim(inside, aval_of(rows).shape, range(rank))
        rows = select_where(inside, rows, convert(fill_value, aval_of(rows).dtype))
    return moveaxis(rows, tuple(range(rank)), tuple(range(place, place + rank)))


def take_along_axis(arr: Any, indices: Any, axis: int = -1, mode: str | None = None) -> Any:
    """One element for each element of ``indices``, along ``axis``; other axes go together.

    Args:
        arr: array.
        indices: integer array of the same rank.
        axis: the axis that is indexed.
        mode: ``"fill"`` (the default) or ``"clip"``, as in ``take``.
    """
    check_arraylike("take_along_axis", arr, indices)
    place = canonicalize_axis(axis, aval_of(arr).ndim, "take_along_axis")
    size = aval_of(arr).shape[place]
    check(
        aval_of(arr).ndim == aval_of(indices).ndim and dtypes.is_integer(aval_of(indices).dtype),
        lambda: (
            "[take_along_axis] indices must be integers of the array's rank; "
            f"got {aval_of(arr)} and {aval_of(indices)}. Fix: jnp.expand_dims(indices, axis)."
        ),
    )
    indices = wrap_negative(indices, size)
    x, index = moveaxis(arr, place, -1), moveaxis(indices, place, -1)
    shapes = aval_of(x).shape[:-1], aval_of(index).shape[:-1]
    lead = broadcast_shapes(*shapes, name="take_along_axis")
    x = broadcast_to(x, (*lead, size))
    index = broadcast_to(index, (*lead, aval_of(index).shape[-1]))
    rows = lax.row_gather(x, index, mode or "fill", batch_dims=len(lead))
    return moveaxis(rows, -1, place)
