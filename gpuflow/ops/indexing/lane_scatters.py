"""Scatters into the small state of a lane, as selects.

A lane of a kernel holds small arrays in registers, which have no dynamic indices: the position of
each element is compared with the index. One window is written, or one for each lane, with one index
along each indexed dimension.

Tests: tests/compiler/test_lane_scatters.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn
from gpuflow.ops.elementwise.arithmetic import add, max, min, mul
from gpuflow.ops.elementwise.comparison import bitwise_and, eq
from gpuflow.ops.elementwise.select import clamp, select
from gpuflow.ops.indexing.dimension_numbers import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    scatter_dims,
    scatter_windows,
)
from gpuflow.ops.layout.axes import broadcast_in_dim, squeeze
from gpuflow.ops.layout.iota import broadcasted_iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import transpose
from gpuflow.ops.written_out import program_of
from gpuflow.ops.zeros import full

_MAX_ELEMENTS = 32  # of a lane; each is compared, 1.5 ns an iteration; a separate step takes 30
_COMBINED = {"add": add, "multiply": mul, "minimum": min, "maximum": max}


def scatter_of_lane(combine: str, eqn: Eqn) -> ClosedJaxpr | None:
    """The scatter as selects; None if windows have another form, or too many elements."""
    x, indices, updates = (atom.aval for atom in eqn.inputs)
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    windows = scatter_windows(x.shape, numbers, updates.shape)
    batching = [d for d, _ in windows.batching]
    axes = [axis for _, axis in windows.batching]
    others = [d for d in range(x.ndim) if d not in (*windows.mapped, *batching)]
    if (
        prod(n for d, n in enumerate(x.shape) if d not in batching) > _MAX_ELEMENTS
        or 0 in x.shape
        or any(windows.sizes[d] != 1 for d in windows.mapped)
        or any(windows.sizes[d] != x.shape[d] for d in others)
        or sorted(axes) != list(range(indices.ndim - 1))
        or (combine != "set" and combine not in _COMBINED)
    ):
        return None
    return program_of(_selected, eqn, combine=combine, mode=mode, numbers=numbers)


def _selected(
    x: Any,
    indices: Any,
    updates: Any,
    *,
    combine: str,
    mode: GatherScatterMode,
    numbers: ScatterDimensionNumbers,
) -> list[Any]:
    shape, index = aval_of(x).shape, aval_of(indices)
    windows = scatter_windows(shape, numbers, aval_of(updates).shape)
    dim_of_axis = {axis: d for d, axis in windows.batching}

    def aligned(array: Any, dims: list[int]) -> Any:
        """Broadcast an array to the shape of ``x``; ``dims`` are its dimensions in ``x``."""
        order = sorted(range(len(dims)), key=dims.__getitem__)
        return broadcast_in_dim(transpose(array, order), shape, sorted(dims))

    mask = full(shape, True, bool)
    for k, d in enumerate(windows.mapped):
        start = squeeze(slice_in_dim(indices, k, k + 1, 1, index.ndim - 1), (index.ndim - 1,))
        if mode is GatherScatterMode.CLIP:
            start = clamp(index.dtype.type(0), start, index.dtype.type(shape[d] - 1))
        start = aligned(start, [dim_of_axis[axis] for axis in range(index.ndim - 1)])
        mask = bitwise_and(mask, eq(broadcasted_iota(index.dtype, shape, d), start))
    at = [0] * aval_of(updates).ndim
    for u, axis in zip(scatter_dims(len(at), numbers), range(index.ndim - 1), strict=True):
        at[u] = dim_of_axis[axis]
    for u, d in zip(numbers.update_window_dims, windows.window_dims, strict=True):
        at[u] = d
    new = aligned(updates, at)
    return [select(mask, new if combine == "set" else _COMBINED[combine](x, new), x)]
