"""Memory topology of a mesh: which devices share a memory, and each memory's part of an array.

Devices that share a memory must form a block of the mesh. Each axis therefore has two factors: the
number of blocks along it, and the number of neighbors in a block
(docs/design/0016-many-devices.md).

Tests: tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.caches import cache
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.communicator import DRIVERS, PROCESSES, Across, Within
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import Index, Sharding
from gpuflow.runtime.device import Device, in_use, process
from gpuflow.runtime.device import devices as default_devices


@record(eq=False)
class Memories:
    """The memories of a mesh.

    Attributes:
        mesh: the mesh of the devices.
        key: the key under which their communicator is registered.
        devices: the first device of each memory, in the order of processes, then of the mesh. The
            index is the rank.
        between: from an axis to the number of memories along it.
        within: from an axis to the number of neighbors along it that share a memory.
        coordinates: for each rank the index of its block along each axis.
        team: the memories that run a program jointly, in the order of the communicator's ranks. If
            every process has a separate mesh, they are the memories of all these meshes.
    """

    mesh: Mesh
    key: Hashable
    devices: tuple[Device, ...]
    between: dict[Any, int]
    within: dict[Any, int]
    coordinates: tuple[tuple[int, ...], ...]
    team: tuple[Device, ...]

    @cached_property
    def local(self) -> tuple[Device, ...]:
        """The first device of each memory of this process, in the order of distributed arrays."""
        return in_order(device for device in self.devices if device.is_local)

    @cached_property
    def blocks(self) -> Mesh:
        """The mesh with one device for each memory."""
        grid = np.empty(tuple(self.between.values()), object)
        for device, coordinate in zip(self.devices, self.coordinates, strict=True):
            grid[coordinate] = device
        return Mesh(grid, self.mesh.axis_names)

    def across(self, name: Any) -> Across:
        """The factor of an axis across memories, as an axis of collectives."""
        return self._factors[name]

    @cached_property
    def _factors(self) -> dict[Any, Across]:
        return {name: self._across(dim, name) for dim, name in enumerate(self.mesh.axis_names)}

    def _across(self, dim: int, name: Any) -> Across:
        groups: dict[Any, list[tuple[int, int]]] = {}
        for rank, coordinate in enumerate(self.coordinates):
            other_coordinates = (*coordinate[:dim], *coordinate[dim + 1 :])
            groups.setdefault(other_coordinates, []).append((coordinate[dim], rank))
        rows = [tuple(rank for _, rank in sorted(group)) for group in groups.values()]
        starts = range(0, len(self.team), len(self.devices))  # first rank of each mesh
        every = (tuple(start + rank for rank in row) for start in starts for row in rows)
        return Across(name, self.key, tuple(every))

    @cached_property
    def counts(self) -> dict[Any, int]:
        """From each axis that spans several memories to their number."""
        return {name: count for name, count in self.between.items() if count > 1}

    @property
    def names(self) -> tuple[Any, ...]:
        """The axes that span several memories."""
        return tuple(self.counts)

    def local_names(self, name: Any) -> tuple[Any, ...]:
        """The names of an axis in a program of one memory."""
        if self.between[name] == 1:
            return (name,)
        return self.across(name), Within(name)


@cache
def memories_of(mesh: Mesh) -> Memories | None:
    """The memories of a mesh; None if all devices share one memory of this process.

    Raises:
        ValueError: if devices that share a memory are not a block of the mesh.
        NotImplementedError: if no communicator connects the memories.
    """
    owners, grid = np.empty(mesh.devices.shape, object), cast(Any, mesh.devices)
    for position in np.ndindex(*owners.shape):
        owners[position] = grid[position].memory
    first = grid.flat[0]
    if len(set(owners.flat)) == 1 and first.is_local and not mesh.is_planned:
        return None
    in_use.distributed = in_use.distributed or not mesh.is_planned
    within = _block_shape(owners)
    between = tuple(n // size for n, size in zip(owners.shape, within, strict=True))
    devices: list[Device] = []
    coordinates: list[tuple[int, ...]] = []
    for position in np.ndindex(*between):
        corner = tuple(k * size for k, size in zip(position, within, strict=True))
        devices.append(grid[corner])
        coordinates.append(position)
    key = DRIVERS
    if not all(device.is_local for device in devices):
        _check_processes(mesh, devices)
        order = sorted(range(len(devices)), key=lambda k: devices[k].process_index)
        devices, coordinates = [devices[k] for k in order], [coordinates[k] for k in order]
        firsts = first_memories()
        if [device.memory for device in devices] == firsts:
            key = PROCESSES  # the group's own communicator, which exists already
    names = mesh.axis_names
    return Memories(
        mesh,
        key,
        tuple(devices),
        dict(zip(names, between, strict=True)),
        dict(zip(names, within, strict=True)),
        tuple(coordinates),
        tuple(devices),
    )


def first_memories() -> list[Hashable]:
    """The memory from which each process communicates, if it uses only one."""
    memories: dict[int, Hashable] = {}
    for device in default_devices():
        memories.setdefault(device.process_index, device.memory)
    return list(memories.values())


def _block_shape(owners: np.ndarray) -> tuple[int, ...]:
    """The shape of the block of each memory.

    Args:
        owners: for each device of the mesh its memory.

    Raises:
        ValueError: if they are not blocks of one shape.
    """
    sizes = []
    for axis, size in enumerate(owners.shape):
        row = owners[tuple(slice(None) if k == axis else 0 for k in range(owners.ndim))]
        length = next((k for k in range(size) if row[k] != row[0]), size)
        sizes.append(length)
    is_regular = all(n % length == 0 for n, length in zip(owners.shape, sizes, strict=True))
    seen: set[Any] = set()
    if is_regular:
        counts = [n // length for n, length in zip(owners.shape, sizes, strict=True)]
        for position in np.ndindex(*counts):
            block = owners[
                tuple(slice(k * n, (k + 1) * n) for k, n in zip(position, sizes, strict=True))
            ]
            held = set(block.flat)
            is_regular = is_regular and len(held) == 1 and not held & seen
            seen |= held
    check(
        is_regular,
        lambda: (
            f"[mesh] devices that share memory must form a block of the mesh, all of one shape; "
            f"got {owners.tolist()}. Fix: gpuflow.make_mesh(shape, names)."
        ),
        ValueError,
    )
    return tuple(sizes)


def _check_processes(mesh: Mesh, devices: Sequence[Device]) -> None:
    ids = sorted(device.process_index for device in devices)
    counts = [ids.count(chunk_index) for chunk_index in range(process.count)]
    check(
        0 not in counts,
        lambda: (
            f"[mesh] a mesh over processes must have devices of all {process.count}; got those of "
            f"{sorted(set(ids))}. Fix: use gpuflow.devices(), or local_devices() for this "
            "process alone."
        ),
        NotImplementedError,
    )
    check(
        len(set(counts)) == 1,
        lambda: (
            f"[mesh] a mesh over processes must have as many memories of each; got {counts} of "
            f"{mesh}. Fix: choose as many GPUs of each process."
        ),
        NotImplementedError,
    )


# --- the chunks of an array in a memory ------------------------------------------------------


@record
class Holding:
    """The chunks of an array in one memory: a Cartesian product over the dimensions.

    Attributes:
        counts: for each dimension the number of chunks that it is divided into.
        chunks: for each dimension the indices of the stored chunks, in order.
    """

    counts: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of the shard of an array of shape ``whole``."""
        return tuple(
            size // count * len(ids)
            for size, count, ids in zip(whole, self.counts, self.chunks, strict=True)
        )

    def local_index(self, index: Index, whole: Sequence[int]) -> Index:
        """Convert the index of a shard from the whole array to the memory's array."""
        slices = []
        for bounds, size, count, ids in zip(index, whole, self.counts, self.chunks, strict=True):
            if count == 1:
                slices.append(slice(None))
                continue
            step = size // count
            chunk_index = ids.index(bounds.start // step) if step else 0
            slices.append(slice(chunk_index * step, (chunk_index + 1) * step))
        return tuple(slices)

    def block(self, whole: Sequence[int]) -> Index | None:
        """The index of the stored elements in the whole array; None if they are no block."""
        slices = []
        for size, count, ids in zip(whole, self.counts, self.chunks, strict=True):
            first, last, step = ids[0], ids[-1], size // count
            if last - first + 1 != len(ids):
                return None
            slices.append(slice(first * step, (last + 1) * step))
        return tuple(slices)

    def take(self, whole: np.ndarray) -> np.ndarray:
        """Gather the memory's elements from the whole array."""
        return whole[np.ix_(*self._elements(whole.shape))] if whole.ndim else whole

    def put(self, whole: np.ndarray, values: np.ndarray) -> None:
        """Scatter the memory's elements to the whole array."""
        whole[np.ix_(*self._elements(whole.shape)) if whole.ndim else ()] = values

    def _elements(self, whole: Sequence[int]) -> list[np.ndarray]:
        """For each dimension the indices of the stored elements."""
        return [
            np.arange(size).reshape(count, size // count)[list(ids)].reshape(-1)
            for size, count, ids in zip(whole, self.counts, self.chunks, strict=True)
        ]

    @property
    def is_whole(self) -> bool:
        """Whether the memory holds the whole array."""
        return all(len(ids) == n for ids, n in zip(self.chunks, self.counts, strict=True))


@cache
def holdings(sharding: Sharding, rank: int) -> dict[Hashable, Holding]:
    """From each memory to its holding, for arrays of ``rank`` dimensions.

    Raises:
        ValueError: if a memory's elements are not a product of chunks along dimensions.
    """
    counts, chunks = sharding._counts(rank), sharding._chunks(rank)
    owned: dict[Hashable, set[tuple[int, ...]]] = {}
    for device, chunk in zip(sharding._devices, chunks, strict=True):
        owned.setdefault(device.memory, set()).add(chunk)
    holding_of = {}
    for memory, owned_chunks in owned.items():
        along = tuple(tuple(sorted({chunk[dim] for chunk in owned_chunks})) for dim in range(rank))
        check(
            prod(map(len, along)) == len(owned_chunks),
            lambda owned_chunks=owned_chunks: (
                "[sharding] the shards of an array in one memory must form a block; got shards "
                f"{sorted(owned_chunks)} of {sharding}. Fix: order the devices as "
                "gpuflow.make_mesh does."
            ),
            ValueError,
        )
        holding_of[memory] = Holding(counts, along)
    return holding_of


def first_of_each(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The first device of each memory."""
    firsts: dict[Hashable, Device] = {}
    for device in devices:
        firsts.setdefault(device.memory, device)
    return tuple(firsts.values())


def in_order(devices: Iterable[Device]) -> tuple[Device, ...]:
    """One device for each memory, in the order of distributed arrays."""
    return tuple(sorted(first_of_each(devices), key=lambda device: device.id))


@cache
def is_in_one_memory(sharding: Sharding) -> bool:
    """Whether all devices share a memory of this process."""
    devices = sharding._devices
    return devices[0].is_local and len({device.memory for device in devices}) == 1
