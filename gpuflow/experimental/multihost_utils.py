"""Data exchange between processes outside of programs; all processes must make each call.

In a single process, they behave as in a group of one.

Tests: tests/experimental/test_host_arrays.py, tests/parallel/test_distributed.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.api.devices import device_put
from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.core.communicator import Communicator
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding
from gpuflow.core.trace import Tracer
from gpuflow.parallel.partition.whole_programs import assembled_array
from gpuflow.parallel.placement import make_array_from_process_local_data
from gpuflow.parallel.processes.distributed import is_initialized, world
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import process
from gpuflow.runtime.distributed import DistributedArray, local_memories
from gpuflow.runtime.memories import holdings

__all__ = [
    "assert_equal",
    "broadcast_one_to_all",
    "global_array_to_host_local_array",
    "host_local_array_to_global_array",
    "process_allgather",
    "sync_global_devices",
]


def _world() -> Communicator | None:
    return world() if is_initialized() else None


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Gather the arrays of all processes, as NumPy arrays on each.

    An array with shards in several processes gives the whole array, whatever ``tiled`` is.

    Args:
        in_tree: a pytree of arrays with the same shapes on all processes.
        tiled: whether to concatenate along the first dimension instead of stacking along a new one.

    Raises:
        ValueError: if ``tiled`` is set and an array has rank 0.
    """
    group = _world()

    def one(leaf: Any) -> np.ndarray:
        if type(leaf) is DistributedArray:
            return np.asarray(assembled_array(leaf))
        array = np.asarray(leaf)
        check(
            not tiled or array.ndim > 0,
            lambda: (
                "[process_allgather] tiled=True needs arrays with a dimension; got a scalar. "
                "Fix: leave tiled out."
            ),
            ValueError,
        )
        rows = array[None] if group is None else np.asarray(group.all_gather(array))
        return (
            rows.reshape((-1, *array.shape[1:]))
            if tiled and array.size
            else (np.concatenate(list(rows)) if tiled else rows)
        )

    return tree.tree_map(one, in_tree)


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """Broadcast the arrays of one process, as NumPy arrays on each.

    Args:
        in_tree: a pytree of arrays with the same shapes on all processes.
        is_source: whether this process is the source; by default process 0 is.

    Raises:
        ValueError: if not exactly one process is the source.
    """
    group = _world()
    if group is None:
        return tree.tree_map(np.asarray, in_tree)
    root = 0
    if is_source is not None:
        flags = np.asarray(group.all_gather(np.asarray(bool(is_source))))
        check(
            int(flags.sum()) == 1,
            lambda: (
                f"[broadcast_one_to_all] one process must be the source; got {int(flags.sum())}. "
                "Fix: is_source=process_index() == 0."
            ),
            ValueError,
        )
        root = int(np.argmax(flags))
    return tree.tree_map(lambda leaf: group.broadcast(np.asarray(leaf), root), in_tree)


def sync_global_devices(name: str) -> None:
    """Wait until all processes have made this call.

    Raises:
        AssertionError: if the names of the processes differ.
    """
    if _world() is not None:
        assert_equal(np.uint32(zlib.crc32(name.encode())), f"sync_global_devices name {name!r}")


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Check that all processes have equal values.

    Raises:
        AssertionError: if they differ.
    """
    group = _world()
    if group is None:
        return
    for leaf in tree.leaves(in_tree):
        rows = np.asarray(group.all_gather(np.asarray(leaf)))
        bad = [k for k in range(len(rows)) if rows[k].tobytes() != rows[0].tobytes()]
        if bad:
            raise AssertionError(
                f"[assert_equal] all processes must have equal values; got {rows[0]} on process 0 "
                f"and {rows[bad[0]]} on process {bad[0]}. {fail_message}"
            )


def reached_preemption_sync_point(step_id: int) -> bool:
    """Return whether a preemption was announced and all processes have reached this step.

    Args:
        step_id: number of the step.

    Returns:
        False: preemption notices are not supported.

    Example:
        >>> from gpuflow.experimental import multihost_utils
        >>> multihost_utils.reached_preemption_sync_point(3)
        False
    """
    del step_id
    return False


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Make arrays on a mesh from the shards of each process.

    Args:
        local_inputs: an array of this process's shards, or a pytree of arrays.
        global_mesh: the mesh of all processes. This process's devices are a block of it.
        pspecs: PartitionSpecs, as a tree prefix of ``local_inputs``.

    Returns:
        A pytree of arrays. An axis that is sharded over n processes is n times as long. Arrays that
        are already sharded over several processes are returned unchanged.

    Raises:
        ValueError: if a PartitionSpec is None.

    Example:
        >>> from gpuflow.experimental import multihost_utils
        >>> mesh = gf.make_mesh((1,), ("x",))
        >>> multihost_utils.host_local_array_to_global_array(np.arange(3), mesh, gf.P("x"))
        Array([0, 1, 2], dtype=int32)
    """

    def one(leaf: Any, spec: Any) -> Any:
        if isinstance(leaf, Tracer):
            return _traced(leaf, global_mesh)
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            return leaf
        return make_array_from_process_local_data(NamedSharding(global_mesh, spec), leaf)

    return _with_specs("host_local_array_to_global_array", one, local_inputs, pspecs)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Return this process's shards of arrays on a mesh, as arrays on the local devices.

    Args:
        global_inputs: an array, or a pytree of arrays.
        global_mesh: the mesh of all processes. This process's devices are a block of it.
        pspecs: PartitionSpecs, as a tree prefix of ``global_inputs``.

    Returns:
        A pytree of arrays on the local block of the mesh. Arrays of this process alone are returned
        unchanged.

    Raises:
        ValueError: if a PartitionSpec is None.

    Example:
        >>> from gpuflow.experimental import multihost_utils
        >>> mesh = gf.make_mesh((1,), ("x",))
        >>> multihost_utils.global_array_to_host_local_array(jnp.ones(2), mesh, gf.P("x"))
        Array([1., 1.], dtype=float32)
    """

    def one(leaf: Any, spec: Any) -> Any:
        if isinstance(leaf, Tracer):
            return _traced(leaf, global_mesh)
        sharding = NamedSharding(global_mesh, spec)
        array = jnp.asarray(leaf)
        if array.is_fully_addressable:
            return array
        if array.sharding != sharding:
            array = device_put(array, sharding)
        held = holdings(sharding, array.ndim)[local_memories(sharding)[0].memory]
        data = np.empty(held.shape(array.shape), array.dtype)
        for shard in array.addressable_shards:
            data[held.local_index(shard.index, array.shape)] = np.asarray(shard.data)
        return device_put(data, NamedSharding(_local_mesh(global_mesh), spec))

    return _with_specs("global_array_to_host_local_array", one, global_inputs, pspecs)


def _with_specs(op: str, one: Callable[[Any, Any], Any], inputs: Any, pspecs: Any) -> Any:
    """``one`` of each leaf and its PartitionSpec."""
    leaves, structure = tree.flatten(inputs)
    specs = tree.broadcast_prefix(pspecs, inputs, op)
    check(
        None not in specs,
        lambda: f"[{op}] pspecs must be PartitionSpecs; got None. Fix: PartitionSpec().",
        ValueError,
    )
    return tree.unflatten(structure, [one(leaf, spec) for leaf, spec in safe_zip(leaves, specs)])


def _local_mesh(mesh: Mesh) -> Mesh:
    """The block of a mesh whose devices are this process's."""
    ours = np.vectorize(lambda device: device.process_index == process.index)(mesh.devices)
    block = tuple(slice(int(at.min()), int(at.max()) + 1) for at in np.nonzero(ours))
    return Mesh(mesh.devices[block], mesh.axis_names, mesh.axis_types)


def _traced(tracer: Tracer, mesh: Mesh) -> Tracer:
    """The value itself, where this process has the whole mesh."""
    if _local_mesh(mesh).size != mesh.size:
        raise NotImplementedError(
            "[multihost_utils] arrays of several processes must be converted outside of jit; got "
            f"a traced {tracer.aval}. Fix: convert it before the call."
        )
    return tracer
