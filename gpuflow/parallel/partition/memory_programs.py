"""Run a program of one memory in several memories (SPMD): shard operands, assemble results.

Tests: tests/parallel/test_sharded_arrays.py, tests/parallel/test_nccl_streams.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.core.aval import aval_of
from gpuflow.core.communicator import PROCESSES
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.sharding import Sharding
from gpuflow.core.trace import Tracer, raise_leaked_tracer
from gpuflow.parallel.collectives.memory_threads import in_threads
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device
from gpuflow.runtime.distributed import DistributedArray, distribute, local_memories, programs
from gpuflow.runtime.execute import executable_of
from gpuflow.runtime.memories import Memories, holdings
from gpuflow.runtime.sharded import whole_of


def placed(value: Any, sharding: Sharding) -> DistributedArray:
    """Give a value a sharding over several memories.

    An array in one memory must be equal in all processes.

    Raises:
        ValueError: if the sharding does not divide it.
    """
    if isinstance(value, Tracer):
        raise_leaked_tracer(value, "device_put")
    value = whole_of(value)
    aval = aval_of(value)
    if type(value) is DistributedArray:
        if value.sharding == sharding:
            return value
        if holdings(value.sharding, aval.ndim) == holdings(sharding, aval.ndim):
            sharding.shard_shape(aval.shape)
            return DistributedArray(value.arrays, aval, sharding)
        return programs.reshard(value, sharding)
    if type(value) is Array and local_memories(sharding) == (value.device,):
        held = holdings(sharding, aval.ndim)[value.device.memory]
        if held.is_whole:  # this process has one memory, and the array is there
            sharding.shard_shape(aval.shape)
            return DistributedArray((value,), aval, sharding)
    return distribute(value, sharding)


def run_local(
    jaxpr: ClosedJaxpr,
    operands: Sequence[DistributedArray],
    memories: Memories,
    shardings: Sequence[Sharding],
    shapes: Sequence[tuple[int, ...]],
    donated: Sequence[bool] = (),
) -> list[DistributedArray]:
    """Run a program of one memory in all memories of this process.

    Args:
        jaxpr: the program. Its collectives over ``Across`` axes communicate with other memories.
        operands: the distributed operands.
        memories: the memories that run it.
        shardings, shapes: shardings and whole shapes of the results.
        donated: for each operand whether it is donated. Donated shards are deleted. If empty, no
            operand is donated.

    Raises:
        DeletedArrayError: if an operand was donated before.
    """
    executable = executable_of(jaxpr, tuple(donated) or (False,) * len(jaxpr.in_avals))
    devices = memories.local
    # One list per thread. Deleted operands must raise here, before any thread waits for others.
    data = [[operand.arrays[k].data for operand in operands] for k in range(len(devices))]

    def run(device: Device) -> list[Array]:
        shard_index = devices.index(device)
        local_operands = [operand.arrays[shard_index] for operand in operands]
        return executable.run(data[shard_index], local_operands, device)

    for device in devices:
        executable.compiled(device)
    if memories.key == PROCESSES:
        results = [run(device) for device in devices]  # this process has a single memory
    else:
        results = in_threads(run, devices, memories.team)
    outs = zip(*results, strict=True) if jaxpr.out_avals else ()
    return [
        DistributedArray(shards, shards[0].aval.update(shape=shape), sharding)
        for shards, sharding, shape in zip(outs, shardings, shapes, strict=True)
    ]
