"""Placement of arrays on devices and shardings, resharding, and arrays made from shards.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.dtypes import canonicalize
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.util import safe_zip
from gpuflow.compiler.shardings import resolve_unconstrained
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import MemorySpace, aval_of
from gpuflow.core.formats import Format
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import (
    Index,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
    on_mesh,
)
from gpuflow.core.trace import Tracer
from gpuflow.ops.effects.device_put import device_put, sharding_constraint
from gpuflow.runtime.array import Array, from_numpy
from gpuflow.runtime.device import Device
from gpuflow.runtime.distributed import DistributedArray, local_memories, programs
from gpuflow.runtime.memories import holdings, is_in_one_memory
from gpuflow.runtime.sharded import check_same_devices, whole_of, with_sharding

_T = TypeVar("_T")


def put(x: Any, where: Device | Sharding | None) -> Any:
    """Put an array on a device, or give it a sharding.

    Under a transformation a device has no effect: a program runs on one device.
    """
    if where is None or isinstance(where, Device):
        return device_put(whole_of(x), where)
    if isinstance(where, SingleDeviceSharding):
        return device_put(whole_of(x), where.device)
    if where.is_of_types:
        return device_put(whole_of(x), None)
    mesh = where.mesh if isinstance(where, NamedSharding) else None
    if isinstance(x, Tracer) or (mesh is not None and mesh.is_planned):
        where.shard_shape(aval_of(x).shape)
        return sharding_constraint(x, where)
    aval = aval_of(x)
    where = resolve_unconstrained(where, x.sharding if isinstance(x, Array) else None, aval.ndim)
    where.shard_shape(aval.shape)
    if type(x) is DistributedArray or not is_in_one_memory(where):
        return _unaliased(programs.reshard(x, where), x)
    return with_sharding(device_put(whole_of(x), where._devices[0]), where)


def _unaliased(array: Array, x: Any) -> Array:
    """Give the array its own shard objects, so that it outlives a deleted or donated ``x``."""
    source = x.arrays[0] if type(x) is DistributedArray else whole_of(x)
    if type(array) is not DistributedArray or array is x or array.arrays[0] is not source:
        return array
    shards = [Array(shard.data, shard.aval, shard.device) for shard in array.arrays]
    return DistributedArray(shards, array.aval, array.sharding)


def as_sharding(where: Any, op: str) -> Any:
    """Convert a user's device, sharding, PartitionSpec, Format or MemorySpace.

    A PartitionSpec refers to the current mesh. A Format becomes its sharding, because there is one
    layout. The memory of devices becomes None, because all arrays are in it.

    Raises:
        ValueError: if it is none of these, is a PartitionSpec without a mesh, or is the memory of
            the host.
    """
    where = where.sharding if isinstance(where, Format) else where
    if isinstance(where, MemorySpace):
        check(
            where is MemorySpace.Device,
            lambda: (
                f"[{op}] the memory must be jax.memory.Space.Device, where arrays are; got "
                f"{where}. Fix: jax.device_get(x), which copies x to the host as a NumPy array."
            ),
            ValueError,
        )
        return None
    where = on_mesh(op, where, config.mesh)
    check(
        where is None or isinstance(where, Device | Sharding),
        lambda: (
            f"[{op}] the device must be a Device, a Sharding or None; got {where!r}. Fix: "
            "gpuflow.devices()[0], or NamedSharding(mesh, spec)."
        ),
        ValueError,
    )
    return where


def make_single_device_sharding(
    device: Device, *, memory_kind: str | None = None
) -> SingleDeviceSharding:
    """Return the sharding of an array on a single device."""
    return SingleDeviceSharding(device, memory_kind=memory_kind or "device")


@explained
def with_sharding_constraint(x: _T, shardings: Any) -> _T:
    """Constrain the shardings of arrays.

    Args:
        x: an array or pytree.
        shardings: a Sharding or PartitionSpec for all leaves, or a tree prefix of them.

    Returns:
        The same values. Under jit the constraint applies to the following operations.

    Raises:
        ValueError: if the sharding does not divide its array.

    Example:
        >>> sharding = gf.sharding.NamedSharding(gf.make_mesh((1,), ("x",)), gf.P("x"))
        >>> gf.jit(lambda x: lax.with_sharding_constraint(2 * x, sharding))(jnp.arange(3))
        Array([0, 2, 4], dtype=int32)
    """
    leaves, structure = tree.flatten(x)
    op = "with_sharding_constraint"
    requested = [as_sharding(where, op) for where in tree.broadcast_prefix(shardings, x, op)]
    for leaf, where in safe_zip(leaves, requested):
        check_same_devices(op, [leaf], [where] if isinstance(where, Sharding) else [])
    placed = [put(leaf, where) for leaf, where in safe_zip(leaves, requested)]
    return tree.unflatten(structure, placed)


@explained
def reshard(xs: _T, out_shardings: Any) -> _T:
    """Change the shardings of arrays.

    Args:
        xs: an array or pytree.
        out_shardings: a Sharding or PartitionSpec for all leaves, or a tree prefix of them.

    Returns:
        The same values. Under jit the constraint applies to the following operations.

    Raises:
        ValueError: if the sharding does not divide its array.

    Example:
        >>> with gf.set_mesh(gf.make_mesh((1,), ("x",))):
        ...     print(gf.reshard(jnp.arange(4), gf.P("x")).sharding.spec)
        P('x',)
    """
    return with_sharding_constraint(xs, out_shardings)


# --- from shards ---------------------------------------------------------------------------


def _bounds(index: Index) -> tuple[tuple[int | None, int | None], ...]:
    """The bounds of an index, as a key: slices are not hashable (before Python 3.12)."""
    return tuple((extent.start, extent.stop) for extent in index)


@explained
def make_array_from_callback(
    shape: Sequence[int],
    sharding: Sharding,
    data_callback: Callable[[Index], Any],
    dtype: Any = None,
) -> Array:
    """Create an array from a function that returns its shards.

    Args:
        shape: shape of the whole array.
        sharding: the sharding, which assigns shards to devices.
        data_callback: a function from slices of the whole array to the shard; it is called once for
            each distinct shard.
        dtype: dtype of the array; the dtype of the shards by default.

    Returns:
        An Array of that shape and sharding.

    Raises:
        ValueError: if a shard has another shape, or the sharding does not divide the shape.

    Example:
        >>> sharding = gf.sharding.SingleDeviceSharding(gf.devices()[0])
        >>> data = np.arange(4.0).reshape(2, 2)
        >>> gf.make_array_from_callback((2, 2), sharding, lambda index: data[index]).shape
        (2, 2)
    """
    shape = tuple(shape)
    requested_dtype = None if dtype is None else canonicalize(dtype)
    shard_shape = sharding.shard_shape(shape)
    held = holdings(sharding, len(shape))
    wholes: dict[Any, np.ndarray] = {}  # by memory
    shards_by_index: dict[Any, np.ndarray] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        key = _bounds(index)
        if key not in shards_by_index:
            shards_by_index[key] = np.asarray(data_callback(index), requested_dtype)
        values = shards_by_index[key]
        check(
            values.shape == shard_shape,
            lambda values=values, index=index: (
                f"[make_array_from_callback] the callback must give parts of shape {shard_shape}; "
                f"got {values.shape} for {index}. Fix: return data[index]."
            ),
            ValueError,
        )
        holding = held[device.memory]
        whole = wholes.get(device.memory)
        if whole is None:
            whole = wholes[device.memory] = np.empty(holding.shape(shape), values.dtype)
        whole[holding.local_index(index, shape)] = values
    shards = [
        from_numpy(wholes[device.memory], aval_of(wholes[device.memory]), device)
        for device in local_memories(sharding)
    ]
    if is_in_one_memory(sharding):
        return with_sharding(shards[0], sharding)
    return DistributedArray(shards, shards[0].aval.update(shape=shape), sharding)


@explained
def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Any], *, dtype: Any = None
) -> Array:
    """Create an array from shards on this process's devices, in the sharding's order of devices.

    Args:
        shape: shape of the whole array.
        sharding: the sharding, which assigns shards to devices.
        arrays: the shards, one for each device of this process.
        dtype: dtype of the array; the dtype of the shards by default.

    Returns:
        An Array of that shape and sharding.

    Raises:
        ValueError: if the number of shards and devices differs, or shards have another shape.

    Example:
        >>> sharding = gf.sharding.SingleDeviceSharding(gf.devices()[0])
        >>> gf.make_array_from_single_device_arrays((2,), sharding, [jnp.ones(2)])
        Array([1., 1.], dtype=float32)
    """
    indices = sharding.addressable_devices_indices_map(shape)
    check(
        len(arrays) == len(indices),
        lambda: (
            f"[make_array_from_single_device_arrays] there must be a part for each of the "
            f"{len(indices)} devices; got {len(arrays)}. Fix: give them in the devices' order."
        ),
        ValueError,
    )
    keys = map(_bounds, indices.values())
    shards_by_bounds = dict(zip(keys, arrays, strict=True))
    return make_array_from_callback(
        shape, sharding, lambda index: shards_by_bounds[_bounds(index)], dtype
    )


@explained
def make_array_from_process_local_data(
    sharding: Sharding, local_data: Any, global_shape: Sequence[int] | None = None
) -> Array:
    """Create an array from the data that each process provides for its devices.

    Args:
        sharding: the sharding, which assigns shards to devices.
        local_data: the data of this process, in the order of the whole array.
        global_shape: shape of the whole array; inferred from the sharding by default.

    Returns:
        An Array of shape ``global_shape``.

    Raises:
        ValueError: if the data do not have the shape of this process's shard of ``global_shape``.

    Example:
        >>> mesh = gf.make_mesh((1,), ("x",))
        >>> sharding = gf.sharding.NamedSharding(mesh, gf.P("x"))
        >>> gf.make_array_from_process_local_data(sharding, np.arange(3))
        Array([0, 1, 2], dtype=int32)
    """
    data = np.asarray(local_data)
    check(
        global_shape is None or len(global_shape) == data.ndim,
        lambda: (
            f"[make_array_from_process_local_data] global_shape must have {data.ndim} sizes, as "
            f"the data; got {brief(global_shape)}. Fix: leave it out."
        ),
        ValueError,
    )
    held = holdings(sharding, data.ndim)[local_memories(sharding)[0].memory]
    count = [len(indices) for indices in held.chunks]
    follows = tuple(
        size // here * full for size, here, full in zip(data.shape, count, held.counts, strict=True)
    )
    whole = follows if global_shape is None else tuple(global_shape)
    check(
        held.shape(whole) == data.shape,
        lambda: (
            f"[make_array_from_process_local_data] the data must be this process's part of "
            f"global_shape, {held.shape(whole)}; got {data.shape} for {whole}. "
            f"Fix: global_shape={follows}, or leave it out."
        ),
        ValueError,
    )
    return make_array_from_callback(
        whole, sharding, lambda index: data[held.local_index(index, whole)], data.dtype
    )


@explained
def device_put_replicated(x: Any, devices: Sequence[Device]) -> Any:
    """Replicate each leaf on all devices, stacked along a new first axis.

    Args:
        x: a pytree of arrays or scalars.
        devices: a sequence of Devices.

    Returns:
        A pytree like ``x`` with leaves of shape ``(len(devices), *shape)``.

    Example:
        >>> gf.device_put_replicated(jnp.arange(2), gf.devices()[:1])
        Array([[0, 1]], dtype=int32)
    """
    sharding = _stacked(devices)

    def one(leaf: Any) -> Any:
        value = np.asarray(whole_of(leaf))
        return put(np.broadcast_to(value, (len(devices), *value.shape)), sharding)

    return tree.tree_map(one, x)


@explained
def device_put_sharded(shards: Sequence[Any], devices: Sequence[Device]) -> Any:
    """Put one of several pytrees on each device, stacked along a new first axis.

    Args:
        shards: pytrees of arrays with equal structures and shapes, one for each device.
        devices: a sequence of Devices.

    Returns:
        A pytree with leaves of shape ``(len(devices), *shape)``.

    Raises:
        ValueError: if the number of shards and devices differs.

    Example:
        >>> gf.device_put_sharded([jnp.arange(2)], gf.devices()[:1])
        Array([[0, 1]], dtype=int32)
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
    check(
        len(devices) > 0 and all(isinstance(device, Device) for device in devices),
        lambda: f"[device_put] devices must be devices; got {brief(devices)}. Fix: gf.devices().",
        ValueError,
    )
    return NamedSharding(Mesh(list(devices), ("<pmap>",)), PartitionSpec("<pmap>"))
