"""Arrays with shardings: made from whole arrays, from parts, and from functions of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of
from gpuflow.core.sharding import (
    AbstractMesh,
    AxisType,
    Index,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)
from gpuflow.core.trace import Tracer
from gpuflow.ops.device import device_put, sharding_constraint
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import Device, devices
from gpuflow.runtime.sharded import check_one_memory, whole_of, with_sharding


def put(x: Any, where: Device | Sharding | None) -> Any:
    """One array on a device or with a sharding.

    Under a transformation the place is a wish that costs nothing: a program runs where it runs.
    """
    if where is None or isinstance(where, Device):
        return device_put(whole_of(x), where)
    if isinstance(where, SingleDeviceSharding):
        return device_put(whole_of(x), where.device)
    if isinstance(x, Tracer):
        where.shard_shape(x.aval.shape)
        return sharding_constraint(x, where)
    first = check_one_memory("device_put", where)
    where.shard_shape(aval_of(x).shape)
    return with_sharding(device_put(whole_of(x), first), where)


def as_sharding(where: Any, op: str) -> Any:
    """A place that a user named: a PartitionSpec stands for one of the mesh in force.

    Raises:
        TypeError: it is no place.
        ValueError: a PartitionSpec without a mesh.
    """
    if isinstance(where, PartitionSpec):
        check(
            config.mesh is not None,
            lambda: f"[{op}] a PartitionSpec needs a mesh; got {where} without one. "
            "Fix: NamedSharding(mesh, spec), or jax.set_mesh(mesh).",
            ValueError,
        )
        return NamedSharding(config.mesh, where)
    check(
        where is None or isinstance(where, Device | Sharding),
        lambda: (
            f"[{op}] the place must be a Device, a Sharding or None; got {where!r}. "
            "Fix: gpuflow.devices()[0], or NamedSharding(mesh, spec)."
        ),
        TypeError,
    )
    return where


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Arrays with the shardings that they are wanted in.

    Args:
        x: an array or tree.
        shardings: a Sharding or PartitionSpec for all leaves, or a tree prefix of them.

    Returns:
        The same values. Under jit it is a wish for what is computed next.

    Raises:
        ValueError: a sharding that does not divide its array.
    """
    leaves, structure = tree.flatten(x)
    wanted = tree.broadcast_prefix(shardings, x, "with_sharding_constraint")
    placed = [
        put(leaf, as_sharding(where, "with_sharding_constraint"))
        for leaf, where in safe_zip(leaves, wanted)
    ]
    return tree.unflatten(structure, placed)


def reshard(xs: Any, out_shardings: Any) -> Any:
    """Arrays with other shardings; see ``with_sharding_constraint``."""
    return with_sharding_constraint(xs, out_shardings)


# --- from parts ----------------------------------------------------------------------------


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[Index], Any],
    dtype: Any = None,
) -> Array:  # fmt: skip
    """An array whose parts a function makes.

    Args:
        shape: of the whole array.
        sharding: which device has which part.
        data_callback: gives the part at slices of the whole array; called once for each part.
        dtype: of the array; by default that of the parts.

    Raises:
        ValueError: a part of another shape, or a sharding that does not divide the shape.
    """
    shape = tuple(shape)
    first = check_one_memory("make_array_from_callback", sharding)
    part = sharding.shard_shape(shape)
    whole: np.ndarray | None = None
    made: set[Any] = set()
    for index in sharding.devices_indices_map(shape).values():
        key = tuple((own.start, own.stop) for own in index)
        if key in made:
            continue
        made.add(key)
        values = np.asarray(data_callback(index), dtype)
        check(
            values.shape == part,
            lambda values=values, index=index: (
                f"[make_array_from_callback] the callback must give parts of shape {part}; got "
                f"{values.shape} for {index}. Fix: return data[index]."
            ),
            ValueError,
        )
        if whole is None:
            whole = np.empty(shape, values.dtype)
        whole[index] = values
    assert whole is not None
    return with_sharding(from_numpy(whole, aval_of(whole), first), sharding)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """An array of parts that lie on their devices already, in the sharding's order of devices.

    Raises:
        ValueError: another number of parts than devices, or parts of another shape.
    """
    indices = sharding.devices_indices_map(shape)
    check(
        len(arrays) == len(indices),
        lambda: (
            f"[make_array_from_single_device_arrays] there must be a part for each of the "
            f"{len(indices)} devices; got {len(arrays)}. Fix: give them in the devices' order."
        ),
        ValueError,
    )
    keys = [tuple((own.start, own.stop) for own in index) for index in indices.values()]
    parts = dict(zip(keys, arrays, strict=True))
    return make_array_from_callback(
        shape, sharding, lambda index: parts[tuple((own.start, own.stop) for own in index)], dtype
    )


def make_array_from_process_local_data(
    sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """An array of which this process has all: ``local_data`` with a sharding.

    Raises:
        ValueError: a global shape that is another one.
    """
    data = np.asarray(local_data)
    check(
        global_shape is None or tuple(global_shape) == data.shape,
        lambda: (
            f"[make_array_from_process_local_data] global_shape must be that of the data of one "
            f"process; got {global_shape} for {data.shape}. Fix: leave it out."
        ),
        ValueError,
    )
    return make_array_from_callback(data.shape, sharding, lambda index: data[index])


def device_put_replicated(x: Any, devices: Sequence[Device]) -> Any:
    """Each leaf once for each device, stacked along a new first axis."""
    sharding = _stacked(devices)

    def one(leaf: Any) -> Any:
        value = np.asarray(whole_of(leaf))
        return put(np.broadcast_to(value, (len(devices), *value.shape)), sharding)

    return tree.tree_map(one, x)


def device_put_sharded(shards: Sequence[Any], devices: Sequence[Device]) -> Any:
    """Trees of equal structure, one for each device, stacked along a new first axis.

    Raises:
        ValueError: another number of shards than devices.
    """
    check(
        len(shards) == len(devices),
        lambda: (
            f"[device_put_sharded] there must be a shard for each device; got {len(shards)} for "
            f"{len(devices)}. Fix: devices=gpuflow.devices()[:{len(shards)}]."
        ),
        ValueError,
    )
    sharding = _stacked(devices)
    return tree.tree_map(
        lambda *leaves: put(np.stack([np.asarray(whole_of(x)) for x in leaves]), sharding), *shards
    )


def _stacked(devices: Sequence[Device]) -> NamedSharding:
    return NamedSharding(Mesh(list(devices), ("<pmap>",)), PartitionSpec("<pmap>"))


# --- meshes --------------------------------------------------------------------------------


def make_mesh(
    axis_shapes: Sequence[int], axis_names: Sequence[Any],
    axis_types: Sequence[AxisType] | None = None, *, devices: Sequence[Device] | None = None,
) -> Mesh:  # fmt: skip
    """A mesh of the given sizes over the first devices.

    Args:
        axis_shapes: the size of each axis.
        axis_names: the name of each axis.
        axis_types: kept with the mesh; ``Auto`` by default.
        devices: by default all, of which the first ones are taken.

    Raises:
        ValueError: there are not enough devices.
    """
    return Mesh(device_grid("make_mesh", axis_shapes, devices), axis_names, axis_types)


def device_grid(
    op: str, shape: Sequence[int], given: Sequence[Device] | None = None
) -> np.ndarray:
    """Devices in an array.

    Raises:
        ValueError: there are not enough, or not as many as were given.
    """
    there = list(given if given is not None else devices())
    count = int(np.prod(shape, dtype=np.int64))
    check(
        len(there) == count if given is not None else len(there) >= count,
        lambda: (
            f"[{op}] the mesh must have as many places as there are devices; got "
            f"{tuple(shape)} for {len(there)}. Fix: choose sizes whose product is "
            f"{len(there)}, or start with GPUFLOW_CPU_DEVICES={count}."
        ),
        ValueError,
    )
    grid = np.empty(count, object)
    grid[:] = there[:count]
    return grid.reshape(tuple(shape))


class _MeshScope:
    """Undoes ``set_mesh`` at the end of a ``with`` block."""

    def __init__(self, before: Mesh | None) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *details: Any) -> None:
        config.update("mesh", self._before)


def set_mesh(mesh: Mesh | None) -> _MeshScope:
    """Choose the mesh that PartitionSpecs refer to: from now on, or for a ``with`` block."""
    before = config.mesh
    config.update("mesh", mesh)
    return _MeshScope(before)


def get_mesh() -> Mesh | None:
    """The mesh that ``set_mesh`` or ``with mesh`` chose."""
    return config.mesh


def get_abstract_mesh() -> AbstractMesh:
    """The axes of that mesh; there are none without one."""
    return AbstractMesh((), ()) if config.mesh is None else config.mesh.abstract_mesh


@contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
    """The mesh that PartitionSpecs refer to inside the block, for this thread."""
    with config.override("mesh", mesh):
        yield
