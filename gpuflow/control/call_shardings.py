"""``in_shardings`` and ``out_shardings`` of ``jit``: conversion, checks, and constraints.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_asked_shardings.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.sharding import Sharding, SingleDeviceSharding, in_force
from gpuflow.core.trace import Tracer
from gpuflow.ops.effects.device_put import sharding_constraint
from gpuflow.runtime.array import Array


def sharding_of(requested: Any) -> Sharding | None:
    """Convert a requested sharding; a PartitionSpec refers to the mesh of ``set_mesh``.

    Raises:
        TypeError: if it is not a sharding.
    """
    requested = in_force(requested, config.mesh)
    if requested is not None and not isinstance(requested, Sharding):
        raise TypeError(
            f"[jit] in_shardings and out_shardings must hold Shardings or None; got {requested!r}. "
            "Fix: NamedSharding(mesh, PartitionSpec(...)), or a PartitionSpec under set_mesh."
        )
    return requested


def check_requested(name: str, value: Any, requested: Sharding) -> None:
    """Check that a committed or sharded array has the sharding of ``in_shardings``.

    Raises:
        ValueError: if it has another sharding.
    """
    if not isinstance(value, Array) or isinstance(value, Tracer):
        return
    sharding, ndim = value.sharding, value.aval.ndim
    is_placed = value.device.is_committed or not isinstance(sharding, SingleDeviceSharding)
    if is_placed and not sharding.is_equivalent_to(requested, ndim):
        raise ValueError(
            f"[jit] arguments of {name} that were put on devices must have the shardings of "
            f"in_shardings; got {sharding} where {requested} is asked for. "
            "Fix: device_put(x, sharding) before the call, or leave out in_shardings."
        )


def constrained(values: Sequence[Any], requested: Sequence[Sharding | None]) -> list[Any]:
    """Bind sharding constraints on traced values, where shardings are requested.

    Raises:
        ValueError: if a sharding does not divide its value.
    """
    for value, sharding in safe_zip(values, requested):
        if sharding is not None:
            sharding.shard_shape(aval_of(value).shape)
    return [
        value if sharding is None else sharding_constraint(value, sharding)
        for value, sharding in safe_zip(values, requested)
    ]
