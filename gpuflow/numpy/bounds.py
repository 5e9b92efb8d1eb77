"""Reports of out-of-bounds indices, for ``checkify`` with ``index_checks``.

Indexing with numbers outside of an axis is not an error: they are clipped or left out, by ops
which do not know the array that was indexed. So it is noted here, where the user's index is at
hand.

Tests: tests/test_checkify.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.core.aval import aval_of
from gpuflow.numpy.index_plan import plan_index, without_bools
from gpuflow.numpy.placed_slices import has_slices
from gpuflow.ops.effects.checks import check_p
from gpuflow.ops.effects.faults import index_fault
from gpuflow.transforms.checking import of_fault


def note_index(shape: Sequence[int], index: Any) -> None:
    """Report out-of-bounds indices of ``x[index]`` for an array of ``shape``, if checks are on."""
    if not config.trace_context().check_indices:
        return
    if has_slices(index):
        return  # the dynamic_slice of its window knows
    index, bool_axes = without_bools(index, len(shape))
    if bool_axes:
        return  # x[True] has no positions
    for axis, entry in enumerate(plan_index(index, tuple(shape)).axes):
        if isinstance(entry, slice):
            continue
        positions = np.int32(entry) if isinstance(entry, int) else entry
        if isinstance(entry, int) and 0 <= entry < shape[axis]:
            continue
        dtype = aval_of(positions).dtype
        if dtype.kind == "i":
            size = np.asarray(shape[axis], dtype)[()]
            zero = np.zeros((), dtype)[()]
            positions = lax.select_n(lax.lt(positions, zero), positions, lax.add(positions, size))
        note_positions(shape, axis, positions)


def note_positions(shape: Sequence[int], axis: int, positions: Any) -> None:
    """Report out-of-bounds indices of one axis, if checks are on; they count from the front."""
    if not config.trace_context().check_indices:
        return
    vectors = lax.expand_dims(positions, (aval_of(positions).ndim,))
    state = of_fault(index_fault(shape, (axis,), vectors, (shape[axis] - 1,)))
    check_p.bind(*state.values, sites=state.sites, debug=True)
