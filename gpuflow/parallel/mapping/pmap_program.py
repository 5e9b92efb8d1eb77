"""The program of a pmap for one signature, and comparison of outputs between devices.

Tests: tests/parallel/test_pmap.py, tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_function import JitFunction
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.sharding import NamedSharding, PartitionSpec
from gpuflow.core.trace import Tracer
from gpuflow.parallel.mapping.mapped_function import MappedOutputs, OutputLayout
from gpuflow.parallel.mapping.pmap_axes import mesh_of
from gpuflow.parallel.mapping.shard_map_call import bind_shard_map
from gpuflow.runtime.device import Device
from gpuflow.runtime.memories import Memories


@record(frozen=False)
class Mapped:
    """The program for arguments of one structure and type.

    Attributes:
        run: the jitted function of leaves that returns MappedOutputs, used if there is one memory.
        devices: one device for each element of the axis.
        name: name of the mesh axis.
        memories: the memories that run it; None if there is only one.
        axes: the mapped axis of each leaf; None if it is replicated.
        donated: indices of donated leaves.
        traced, consts, layout: the program of one of several memories, its captured values, and
            its outputs.
        shardings: cache of ``sharding``.
    """

    run: JitFunction[..., Any]
    devices: tuple[Device, ...]
    name: Any
    memories: Memories | None
    axes: Sequence[int | None]
    donated: Sequence[int]
    traced: ClosedJaxpr | None = None
    consts: Sequence[Any] = ()
    layout: OutputLayout | None = None
    shardings: dict[tuple[int | None, int], NamedSharding] = field(default_factory=dict)

    def sharding(self, target: int | None, rank: int) -> NamedSharding:
        """The sharding of an array of ``rank`` dimensions, whose mapped axis is ``target``."""
        sharding = self.shardings.get((target, rank))
        if sharding is None:
            before = 0 if target is None else target % rank
            spec = () if target is None else (*[None] * before, self.name)
            sharding = NamedSharding(mesh_of(self.devices, self.name), PartitionSpec(*spec))
            self.shardings[target, rank] = sharding
        return sharding

    def in_shardings(self, avals: Sequence[Any]) -> tuple[NamedSharding, ...]:
        """The shardings of the arguments."""
        pairs = safe_zip(self.axes, avals)
        return tuple(self.sharding(axis, aval.ndim) for axis, aval in pairs)

    def in_memories(self, leaves: Sequence[Any], avals: Sequence[Any], name: str) -> MappedOutputs:
        """Run or record the program in several memories, and return its outputs."""
        assert self.memories is not None and self.traced is not None and self.layout is not None
        ranks = [aval.ndim for aval in self.traced.out_avals]
        targets = [*self.layout.mapped, *[0] * len(self.layout.unequal)]
        outs = bind_shard_map(
            self.traced,
            leaves,
            self.consts,
            name=name,
            memories=self.memories,
            in_shardings=self.in_shardings(avals),
            out_shardings=tuple(self.sharding(*pair) for pair in safe_zip(targets, ranks)),
            donated=[k in self.donated for k in range(len(leaves))],
        )
        return MappedOutputs(outs, self.layout)


def without_tests(layout: OutputLayout, outs: Sequence[Any]) -> list[Any]:
    """Compare the additional outputs of GPUFLOW_CHECK=1, and drop them.

    Raises:
        ValueError: if an output with out_axes=None differs between devices.
    """
    count = len(layout.mapped)
    for out, which in zip(outs[count:], layout.unequal, strict=True):
        if isinstance(out, Tracer):
            continue
        rows = np.asarray(out)
        bits = [row.tobytes() for row in rows]
        check(
            len(set(bits)) <= 1,
            lambda which=which: (
                f"[pmap] out_axes of None needs an output that is equal on all devices; got "
                f"different values from {which}. Fix: reduce it with lax.pmean, or use out_axes=0."
            ),
            ValueError,
        )
    return list(outs[:count])
