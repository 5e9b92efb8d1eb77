"""The ``faults`` rules of ops: possible faults of operands, for ``checkify``.

Tests: tests/test_checkify.py, tests/numpy/test_placed_slices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import aval_of
from gpuflow.core.rules import DIVISION, INDEX, Fault
from gpuflow.ops.elementwise.comparison import bitwise_or, eq, gt, lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.indexing.dimension_numbers import Windows
from gpuflow.ops.layout.axes import broadcast_in_dim


def zero_divisor(operands: Sequence[Any], params: dict[str, Any]) -> list[Fault]:
    """Divisors that are 0."""
    del params
    divisor = operands[1]
    return [Fault(DIVISION, "division by zero", eq(divisor, _constant(0, divisor)), ())]


def index_fault(
    shape: Sequence[int], axes: Sequence[int], indices: Any, highest: Sequence[int]
) -> Fault:
    """Indices below 0 or above the highest ones.

    Args:
        shape: of the array that is indexed.
        axes: for each component of an index vector, the axis that it indexes.
        indices: index vectors i[..., n].
        highest: the highest index for each component.
    """
    aval = aval_of(indices)
    limit = np.iinfo(aval.dtype).max
    tops = np.minimum(np.asarray(highest, np.int64), limit).astype(aval.dtype)
    wrong = bitwise_or(
        lt(indices, _constant(0, indices)), gt(indices, _for_each_vector(tops, aval.shape))
    )
    sizes = [shape[axis] for axis in axes]
    return Fault(
        INDEX,
        f"out-of-bounds indexing for array of shape {tuple(shape)}: "
        "index {0} is out of bounds for axis {1} with size {2}. ",
        wrong,
        (
            convert_element_type(indices, np.int32),
            _for_each_vector(np.asarray(axes, np.int32), aval.shape),
            _for_each_vector(np.asarray(sizes, np.int32), aval.shape),
        ),
    )


def window_faults(windows: Windows, indices: Any) -> list[Fault]:
    """Index vectors whose windows are out of bounds."""
    axes = windows.mapped
    if not axes:
        return []
    return [index_fault(windows.shape, axes, indices, [windows.room(d) - 1 for d in axes])]


def _constant(value: int, like: Any) -> Any:
    return np.asarray(value, aval_of(like).dtype)[()]


def _for_each_vector(values: np.ndarray, shape: tuple[int, ...]) -> Any:
    """Broadcast ``values`` along the last axis of ``shape``; a single one as a scalar."""
    if values.size == 1:
        return broadcast_in_dim(values[0], shape, ())
    return broadcast_in_dim(values, shape, (len(shape) - 1,))
