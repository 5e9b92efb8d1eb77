"""Repeating and padding: tile, repeat, pad, roll."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axes, canonicalize_axis
from gpuflow.core.aval import aval_of
from gpuflow.numpy.joining import concatenate
from gpuflow.numpy.promotion import check_arraylike, convert
from gpuflow.numpy.shaping import Axes, moveaxis, ravel


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def tile(A: Any, reps: int | Sequence[int]) -> Any:
    """Repeat the whole array ``reps[d]`` times along axis d; missing axes are added in front."""
    check_arraylike("tile", A)
    counts = [as_index(n) for n in _as_tuple(reps)]
    old = aval_of(A).shape
    rank = max(len(old), len(counts))
    counts = [1] * (rank - len(counts)) + counts
    sizes = (1,) * (rank - len(old)) + old
    # Each repeated axis becomes two, (count, size), which a reshape then joins.
    wide = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    own = [2 * d + 1 for d in range(rank - len(old), rank)]
    return lax.reshape(
        lax.broadcast_in_dim(A, wide, own), [c * n for c, n in zip(counts, sizes, strict=True)]
    )


def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Any:
    """Repeat each element ``repeats`` times.

    Args:
        a: array.
        repeats: an int, or known ints, one for each position along ``axis``.
        axis: None: of the raveled array.
        total_repeat_length: must equal the sum of ``repeats`` if given.
    """
    check_arraylike("repeat", a)
    if axis is None:
        a, axis = ravel(a), 0
    sizes = aval_of(a).shape
    place = canonicalize_axis(axis, len(sizes), "repeat")
    counts = np.asarray(repeats)
    check(
        counts.dtype.kind in "iu" and counts.ndim <= 1 and bool((counts >= 0).all()),
        lambda: f"[repeat] repeats must be an int or ints, none negative; got {repeats!r}. Fix: 2.",
        ValueError,
    )
    if counts.size != 1:
        source = np.repeat(np.arange(sizes[place], dtype=np.int32), counts)
        check(
            total_repeat_length in (None, source.size),
            lambda: (
                f"[repeat] repeats must add up to {total_repeat_length}; got {source.size}. "
                f"Fix: total_repeat_length={source.size}."
            ),
            ValueError,
        )
        return moveaxis(lax.row_gather(moveaxis(a, place, 0), source, "clip"), 0, place)
    count = int(counts.reshape(()))
    wide = (*sizes[: place + 1], count, *sizes[place + 1 :])
    kept = [d for d in range(len(wide)) if d != place + 1]
    joined = (*sizes[:place], sizes[place] * count, *sizes[place + 1 :])
    return lax.reshape(lax.broadcast_in_dim(a, wide, kept), joined)


def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Any:
    """Put a constant around an array.

    Args:
        array: array of any dtype.
        pad_width: an int, a pair (before, after), or one such pair for each axis.
        mode: ``"constant"``.
        constant_values: one number.

    Raises:
        NotImplementedError: another mode, or several constants.
    """
    check_arraylike("pad", array)
    check(
        mode == "constant" and np.ndim(constant_values) == 0,
        lambda: (
            f"[pad] mode must be 'constant' with one value; got mode {mode!r} and values "
            f"{constant_values!r}. Fix: build the border with jnp.concatenate and jnp.flip."
        ),
        NotImplementedError,
    )
    aval = aval_of(array)
    widths = np.broadcast_to(np.asarray(pad_width), (aval.ndim, 2))
    config = [(int(low), int(high), 0) for low, high in widths]
    check(
        all(low >= 0 and high >= 0 for low, high, _ in config),
        lambda: f"[pad] widths must not be negative; got {pad_width}. Fix: slice to cut off.",
        ValueError,
    )
    return lax.pad(array, convert(constant_values, aval.dtype), config)


def roll(a: Any, shift: int | Sequence[int], axis: Axes = None) -> Any:
    """Shift elements along axes; what leaves at the end comes back at the front."""
    check_arraylike("roll", a)
    if axis is None:
        return lax.reshape(roll(ravel(a), shift, 0), aval_of(a).shape)
    dims = _as_tuple(axis)
    shifts = _as_tuple(shift)
    shifts = shifts * len(dims) if len(shifts) == 1 else shifts
    for dim, step in zip(dims, shifts, strict=True):
        a = _roll_one(a, as_index(step), canonicalize_axis(dim, aval_of(a).ndim, "roll"))
    return a


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


def fliplr(m: Any) -> Any:
    """Reverse the second axis."""
    return lax.rev(m, canonicalize_axes(1, aval_of(m).ndim, "fliplr"))


def flipud(m: Any) -> Any:
    """Reverse the first axis."""
    return lax.rev(m, canonicalize_axes(0, aval_of(m).ndim, "flipud"))
