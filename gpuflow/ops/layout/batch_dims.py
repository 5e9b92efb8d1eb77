"""Move the mapped dimension of batched values to a given position.

Tests: tests/ops/test_every_op.py, tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.core.aval import aval_of
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.transpose import move_axis


def batch_to_dim(x: Any, dim: int | None, target: int, size: int) -> Any:
    """``x`` with its mapped dimension at ``target``; an unmapped value is broadcast."""
    if dim is not None:
        return move_axis(x, dim, target)
    shape = list(aval_of(x).shape)
    shape.insert(target, size)
    remaining = [d for d in range(len(shape)) if d != target]
    return broadcast_in_dim(x, shape, remaining)
