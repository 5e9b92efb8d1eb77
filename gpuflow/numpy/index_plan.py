"""Index parsing: one entry for each axis of the array, and the positions of new axes.

Tests: tests/numpy/test_numpy_indexing.py, tests/numpy/test_numpy_errors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.base.errors import NonConcreteBooleanIndexError, check
from gpuflow.base.foreign import brief
from gpuflow.base.records import record
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import convert
from gpuflow.ops.elementwise.select import where as select_where


@record
class Plan:
    """A parsed index.

    Attributes:
        axes: for each axis of the array a slice, a static int or an index array.
        new_axes: positions of None, counted in the entries without them.
        ellipsis: the position of the ellipsis, counted in the same way; even an empty one
            separates index arrays.
    """

    axes: tuple[Any, ...]
    new_axes: tuple[int, ...]
    ellipsis: int | None = None

    def anchor(self, advanced: Sequence[int]) -> int | None:
        """The position of the axes of index arrays at ``advanced``; None: not adjacent."""
        first, last = advanced[0], advanced[-1]
        separators = self.new_axes if self.ellipsis is None else (*self.new_axes, self.ellipsis)
        is_split = last - first + 1 != len(advanced) or any(first < p <= last for p in separators)
        return None if is_split else first


def is_index_array(entry: Any) -> bool:
    """Whether an entry of a plan is an index array."""
    return not isinstance(entry, (slice, int))


def without_bools(index: Any, rank: int) -> tuple[Any, list[int]]:
    """An index with its scalar bools as index arrays, of one element for True and none for False.

    Returns:
        The index, and the positions of the axes of size 1 that the array needs for them.
    """
    entries = index if isinstance(index, tuple) else (index,)
    if not any(_is_bool(entry) for entry in entries):
        return index, []
    changed = [np.zeros(int(bool(e)), np.int32) if _is_bool(e) else e for e in entries]
    used = sum(axes_used(entry) for entry in entries)
    bool_axes: list[int] = []
    axis = 0
    for entry in entries:
        if _is_bool(entry):
            bool_axes.append(axis)
            axis += 1
        else:
            axis += rank - used if entry is Ellipsis else axes_used(entry)
    return tuple(changed), bool_axes


def _is_bool(entry: Any) -> bool:
    """Whether an entry is a single concrete bool."""
    if isinstance(entry, (bool, np.bool_)):
        return True
    if not (is_mask(entry) and aval_of(entry).ndim == 0):
        return False
    return not isinstance(entry, Tracer) or entry.concrete() is not None


def axes_used(entry: Any) -> int:
    """Number of axes of the array that an entry indexes; 0 for an ellipsis."""
    if is_mask(entry):
        return aval_of(entry).ndim
    return int(not (entry is None or entry is Ellipsis or _is_bool(entry)))


def plan_index(index: Any, shape: tuple[int, ...]) -> Plan:
    """Parse an index, with one entry for each axis of ``shape``.

    Raises:
        IndexError: too many indices, or several ellipses.
        TypeError: an argument that cannot be an index.
    """
    entries = [_from_list(e) for e in index] if isinstance(index, tuple) else [index]
    _check_masks(entries, shape)
    entries = [item for entry in entries for item in normal_entry(entry)]
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    dots = [k for k, entry in enumerate(entries) if entry is Ellipsis]
    check(
        len(dots) <= 1,
        lambda: "[index] an index can have one ellipsis; got several. Fix: use ':' for axes.",
        IndexError,
    )
    check(
        used <= len(shape),
        lambda: (
            f"[index] there must be at most one index for each axis; got {used} for an array of "
            f"shape {shape}. Fix: drop an index."
        ),
        IndexError,
    )
    ellipsis_at = dots[0] if dots else len(entries)
    trailing = entries[ellipsis_at + 1 :] if dots else []
    filled = [*entries[:ellipsis_at], *[slice(None)] * (len(shape) - used), *trailing]
    axes: list[Any] = []
    new_axes: list[int] = []
    for entry in filled:
        if entry is None:
            new_axes.append(len(axes))
        else:
            axes.append(entry)
    before = sum(entry is not None for entry in entries[:ellipsis_at])
    return Plan(tuple(axes), tuple(new_axes), before if dots else None)


def _from_list(entry: Any) -> Any:
    """An entry that is a sequence as an array; without elements it holds integers."""
    if not isinstance(entry, (list, tuple)):
        return entry
    indices = asarray(entry)
    return indices if aval_of(indices).size else convert(indices, np.dtype(np.int32))


def is_mask(entry: Any) -> bool:
    """Whether an index is an array of bools."""
    is_array = not isinstance(entry, (bool, np.bool_)) and is_value(entry)
    return is_array and aval_of(entry).dtype == dtypes.bool_


def _check_masks(entries: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Raise IndexError for a mask whose shape is not that of the axes it indexes.

    A mask without elements selects nothing, whatever its shape is, as in JAX.
    """
    widths = [axes_used(entry) for entry in entries]
    axis = 0
    for entry, width in zip(entries, widths, strict=True):
        fits = not is_mask(entry) or aval_of(entry).shape == shape[axis : axis + width]
        if not fits and aval_of(entry).size:
            raise IndexError(
                "[index] a mask must have the shape of the axes it indexes; got mask shape "
                f"{aval_of(entry).shape} for axes {shape[axis : axis + width]}. Fix: broadcast it."
            )
        axis += len(shape) - sum(widths) if entry is Ellipsis else width


def normal_entry(entry: Any) -> list[Any]:
    """An entry in a common form; a mask becomes one index array for each of its axes."""
    if entry is None or entry is Ellipsis:
        return [entry]
    if isinstance(entry, slice):
        return [slice(*(_bound(v, entry) for v in (entry.start, entry.stop, entry.step)))]
    if isinstance(entry, (int, np.integer)):
        return [int(entry)]
    if isinstance(entry, (list, tuple)):
        raise TypeError(
            f"[index] a sequence cannot be the whole index; got {brief(entry)}. "
            "Fix: x[jnp.array([0, 1])], or x[0, 1] for two axes."
        )
    if not is_value(entry):
        raise (TypeError if isinstance(entry, str | bytes) else IndexError)(
            "[index] indices must be ints, slices, None, ... or integer arrays; "
            f"got {brief(entry)}. Fix: convert it to an int."
        )
    dtype = aval_of(entry).dtype
    if dtypes.is_extended(dtype) or not (dtypes.is_integer(dtype) or dtypes.is_bool(dtype)):
        raise TypeError(
            f"[index] index arrays must hold integers or bools; got {aval_of(entry)}. "
            "Fix: x[i.astype(jnp.int32)]."
        )
    return _mask_positions(entry) if dtypes.is_bool(dtype) else [entry]


def _bound(value: Any, entry: slice) -> int | None:
    """A static bound of a slice; IndexError if it is traced."""
    check(
        not isinstance(value, Tracer) or value.concrete() is not None,
        lambda: (
            f"[index] the bounds of a slice must be known while tracing; got a traced "
            f"{aval_of(value)} in {entry}. Fix: lax.dynamic_slice_in_dim(x, start, size)."
        ),
        IndexError,
    )
    return None if value is None else as_integer("index", "a bound of a slice", value)


def _mask_positions(mask: Any) -> list[Any]:
    if isinstance(mask, Tracer) and mask.concrete() is None:
        raise NonConcreteBooleanIndexError(
            f"[index] a mask must be known while tracing; got a traced {aval_of(mask)}. "
            "Fix: jnp.where(mask, x, 0), which keeps the shape."
        )
    positions = np.nonzero(np.asarray(mask))
    return [index.astype(np.int32) for index in positions]


def wrap_negative(indices: Any, size: int) -> Any:
    """Index arrays with negative indices counted from the end."""
    dtype = aval_of(indices).dtype
    if dtype.kind == "u":
        return indices
    if dtype.itemsize < 4:
        indices, dtype = convert(indices, np.dtype(np.int32)), np.dtype(np.int32)
    if isinstance(indices, np.ndarray) and not (indices < 0).any():
        return indices
    is_negative = lax.lt(indices, convert(0, dtype))
    if size > np.iinfo(dtype).max:  # an addition in uint32 wraps to what int64 gives
        dtype = dtypes.index_dtype(size)
        indices = convert(indices, dtype)
    return select_where(is_negative, lax.add(indices, convert(size, dtype)), indices)
