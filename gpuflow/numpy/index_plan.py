"""Taking an index apart: one entry for each axis of the array, and where new axes go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import NonConcreteBooleanIndexError, check
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer


@dataclass(frozen=True)
class Plan:
    """An index taken apart.

    Attributes:
        axes: for each axis of the array a slice, a static int or an index array.
        new_axes: positions of None, counted in the entries without them.
    """

    axes: tuple[Any, ...]
    new_axes: tuple[int, ...]

    @property
    def has_arrays(self) -> bool:
        return any(is_index_array(entry) for entry in self.axes)


def is_index_array(entry: Any) -> bool:
    """Whether an entry of a plan is an array of positions."""
    return not isinstance(entry, (slice, int))


def plan_index(index: Any, shape: tuple[int, ...]) -> Plan:
    """Take an index apart, with one entry for each axis of ``shape``.

    Raises:
        IndexError: too many indices, or several ellipses.
        TypeError: what cannot be an index.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
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
    place = dots[0] if dots else len(entries)
    rest = entries[place + 1 :] if dots else []
    filled = [*entries[:place], *[slice(None)] * (len(shape) - used), *rest]
    axes: list[Any] = []
    new_axes: list[int] = []
    for entry in filled:
        if entry is None:
            new_axes.append(len(axes))
        else:
            axes.append(entry)
    return Plan(tuple(axes), tuple(new_axes))


def is_mask(entry: Any) -> bool:
    """Whether an index is an array of bools."""
    is_array = not isinstance(entry, (bool, np.bool_)) and is_value(entry)
    return is_array and aval_of(entry).dtype == dtypes.bool_


def _check_masks(entries: Sequence[Any], shape: tuple[int, ...]) -> None:
    """Raise IndexError for a mask whose shape is not that of the axes it stands for."""
    widths = [
        aval_of(entry).ndim if is_mask(entry) else int(entry is not None and entry is not Ellipsis)
        for entry in entries
    ]
    axis = 0
    for entry, width in zip(entries, widths, strict=True):
        if is_mask(entry) and aval_of(entry).shape != shape[axis : axis + width]:
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
        return [slice(*(_bound(v) for v in (entry.start, entry.stop, entry.step)))]
    if isinstance(entry, (bool, np.bool_)):
        raise TypeError(
            f"[index] a bool must be the only index; got {entry}. Fix: x[None], or x[mask]."
        )
    if isinstance(entry, (int, np.integer)):
        return [int(entry)]
    if isinstance(entry, (list, tuple)):
        raise TypeError(
            f"[index] sequences cannot be indices; got {entry!r}. "
            "Fix: x[jnp.array([0, 1])], or x[0, 1] for two axes."
        )
    if not is_value(entry):
        raise TypeError(
            "[index] indices must be ints, slices, None, ... or integer arrays; "
            f"got {entry!r} of type {type(entry).__name__}. Fix: convert it to an int."
        )
    dtype = aval_of(entry).dtype
    if dtypes.is_extended(dtype) or not (dtypes.is_integer(dtype) or dtypes.is_bool(dtype)):
        raise TypeError(
            f"[index] index arrays must hold integers or bools; got {aval_of(entry)}. "
            "Fix: x[i.astype(jnp.int32)]."
        )
    return _mask_positions(entry) if dtypes.is_bool(dtype) else [entry]


def _bound(value: Any) -> int | None:
    return None if value is None else as_index(value)


def _mask_positions(mask: Any) -> list[Any]:
    if isinstance(mask, Tracer) and mask.concrete() is None:
        raise NonConcreteBooleanIndexError(
            f"[index] a mask must be known while tracing; got a traced {aval_of(mask)}. "
            "Fix: jnp.where(mask, x, 0), which keeps the shape."
        )
    positions = np.nonzero(np.asarray(mask))
    return [place.astype(np.int32) for place in positions]
