"""Slices and pads in blocks: the rows of the operand that a block of the result needs.

These are rules of the partitioner; see core/halo.py and ``Placement.chunk``.

Tests: tests/parallel/test_partitioner.py, tests/parallel/test_varying.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.halo import Halo, Sliding, sliding_halo
from gpuflow.core.primitive import registry
from gpuflow.ops.elementwise.arithmetic import sub
from gpuflow.ops.layout.computed_slices import Bound
from gpuflow.ops.layout.transpose import move_axis


def slice_bounds(params: dict[str, Any]) -> list[Bound]:
    """The start, limit and step of ``slice`` in each dimension, from its params."""
    starts, limits = params["start_indices"], params["limit_indices"]
    return list(zip(starts, limits, params["strides"] or (1,) * len(starts)))


def slice_params(bounds: Sequence[Bound]) -> dict[str, Any]:
    """The params of ``slice``, from its start, limit and step in each dimension."""
    starts, limits, steps = (tuple(values) for values in zip(*bounds))
    strides = None if all(step == 1 for step in steps) else steps
    return {"start_indices": starts, "limit_indices": limits, "strides": strides}


def slice_halo(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Halo:
    """Rows of a block of ``slice``."""
    bounds, whole = slice_bounds(params), ins[0].shape

    def rows(dim: int, start: int, size: int) -> Sequence[Any]:
        first, _, step = bounds[dim]
        return [(dim, first + step * start, step * (size - 1) + 1)]

    def apply(bind: Any, starts: Any, shape: Any, x: Any) -> Any:
        del shape
        local = [
            (0, size, bounds[d][2]) if d in starts or whole[d] == out.shape[d] else bounds[d]
            for d, size in enumerate(aval_of(x).shape)
        ]
        return bind(x, **slice_params(local))

    return Halo(rows, apply)


def slice_chunk(dim: int, params: dict[str, Any]) -> Any:
    """The rows of a slice that are in a chunk of its operand; those of other chunks are zeros."""
    bounds = slice_bounds(params)

    def apply(bind: Any, start: Any, size: int, x: Any) -> Any:
        del size
        index = sub(np.arange(*bounds[dim], dtype=np.int32), start)
        gather = registry()["row_gather"]  # it imports slices, which import this module
        found = gather.bind(move_axis(x, dim, 0), index, mode="zero", batch_dims=0)
        rows = move_axis(found, 0, dim)
        shape = aval_of(rows).shape
        local = [(first, min(limit, n), step) for (first, limit, step), n in zip(bounds, shape)]
        local[dim] = (0, shape[dim], 1)
        return bind(rows, **slice_params(local))

    return apply


def pad_halo(ins: Sequence[Any], out: Any, params: Any) -> Halo:
    """Rows of a block of ``pad``: a window of one element slides over the dilated operand."""
    del ins, out
    config = params["padding_config"]
    windows = {d: Sliding(1, low, interior + 1, 1) for d, (low, _, interior) in enumerate(config)}

    def apply(bind: Any, pads: Any, x: Any, value: Any) -> Any:
        edges = [
            (*pads.get(d, (low, high)), interior) for d, (low, high, interior) in enumerate(config)
        ]
        return bind(x, value, padding_config=tuple(edges))

    return sliding_halo(
        windows, lambda dim, rows: [(dim, *rows), None], apply, lambda number, operands: operands[1]
    )
