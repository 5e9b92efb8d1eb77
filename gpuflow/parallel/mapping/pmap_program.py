"""The program of a pmap for one signature, and comparison of outputs between devices."""

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
from gpuflow.parallel.mapping.pmap_axes import mesh_of
from gpuflow.parallel.mapping.shard_map_call import bind_shard_map
from gpuflow.runtime.device import Device
from gpuflow.runtime.memories import Memories


@record(frozen=False)
class Mapped:
    """The program for arguments of one structure and type.

    Attributes:
        run: the jitted function of leaves, used if there is one memory.
        devices: one device for each element of the axis.
        name: name of the mesh axis.
        memories: the memories that run it; None if there is only one.
        axes: the mapped axis of each leaf; None if it is replicated.
        donated: indices of donated leaves.
        traced, consts: the program of one of several memories, and its captured values.
        out_tree: structure of the outputs; set by tracing.
        targets: mapped axis of each output; set by tracing.
        unequal: names of outputs that may differ between devices, although out_axes is None. The
            program returns all their elements as additional outputs, to compare them.
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
    out_tree: Any = None
    targets: list[int | None] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
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

    def in_memories(self, leaves: Sequence[Any], avals: Sequence[Any], name: str) -> list[Any]:
        """Run or record the program in several memories, and return its outputs."""
        assert self.memories is not None and self.traced is not None
        ranks = [aval.ndim for aval in self.traced.out_avals]
        targets = [*self.targets, *[0] * len(self.unequal)]
        return bind_shard_map(
            self.traced,
            leaves,
            self.consts,
            name=name,
            memories=self.memories,
            in_shardings=self.in_shardings(avals),
            out_shardings=tuple(self.sharding(*pair) for pair in safe_zip(targets, ranks)),
            donated=[k in self.donated for k in range(len(leaves))],
        )


def without_tests(mapped: Mapped, outs: Sequence[Any], name: str) -> list[Any]:
    """Compare the additional outputs of GPUFLOW_CHECK=1, and drop them.

    Raises:
        ValueError: if an output with out_axes=None differs between devices.
    """
    count = len(mapped.targets)
    for out, which in zip(outs[count:], mapped.unequal, strict=True):
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
