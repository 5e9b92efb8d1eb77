"""The memories of the devices of a mesh, and the shard of an array in each memory.

Devices that share memory are a block of the mesh. So an axis of a mesh has two parts: the blocks
along it, and the neighbors in a block (docs/design/0016-many-devices.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.communicator import DRIVERS, PROCESSES, Across, Within
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import Index, Sharding
from gpuflow.runtime.device import Device, in_use, process
from gpuflow.runtime.device import devices as default_devices


@record(eq=False)
class Memories:
    """The memories that a mesh goes over.

    Attributes:
        mesh: whose devices they are.
        key: under which their communicator is registered.
        devices: the first device of each, in the order of processes and of the mesh.
        between: over how many memories each axis goes.
        within: how many neighbors along each axis share a memory.
        places: for each rank the index of its block along each axis.
        team: the memories that run a program together, in the order of the communicator's ranks:
            those of the mesh, or, if every process has a separate mesh, of all these meshes.
    """

    mesh: Mesh
    key: Hashable
    devices: tuple[Device, ...]
    between: dict[Any, int]
    within: dict[Any, int]
    places: tuple[tuple[int, ...], ...]
    team: tuple[Device, ...]

    @cached_property
    def local(self) -> tuple[Device, ...]:
        """The first device of each memory of this process, in the order of parts of arrays."""
        return in_order(device for device in self.devices if device.is_local)

    @cached_property
    def blocks(self) -> Mesh:
        """The mesh with one device for each memory."""
        grid = np.empty(tuple(self.between.values()), object)
        for device, place in zip(self.devices, self.places, strict=True):
            grid[place] = device
        return Mesh(grid, self.mesh.axis_names)

    def across(self, name: Any) -> Across:
        """The part of an axis that spans memories."""
        number = self.mesh.axis_names.index(name)
        groups: dict[Any, list[tuple[int, int]]] = {}
        for rank, place in enumerate(self.places):
            rest = (*place[:number], *place[number + 1 :])
            groups.setdefault(rest, []).append((place[number], rank))
        lines = [tuple(rank for _, rank in sorted(group)) for group in groups.values()]
        starts = range(0, len(self.team), len(self.devices))  # of the meshes
        every = (tuple(start + rank for rank in line) for start in starts for line in lines)
        return Across(name, self.key, tuple(every))

    @property
    def names(self) -> tuple[Any, ...]:
        """The axes that go over several memories."""
        return tuple(name for name, count in self.between.items() if count > 1)

    def parts(self, name: Any) -> tuple[Any, ...]:
        """The names of an axis in a program of one memory."""
        if self.between[name] == 1:
            return (name,)
        return self.across(name), Within(name)


@cache
def memories_of(mesh: Mesh) -> Memories | None:
    """The memories of a mesh; None if there is only one, which is this process's.

    Raises:
        ValueError: if devices that share a memory are not a block of the mesh.
        NotImplementedError: memories that no communicator joins.
    """
    owners, grid = np.empty(mesh.devices.shape, object), cast(Any, mesh.devices)
    for place in np.ndindex(*owners.shape):
        owners[place] = grid[place].memory
    first = grid.flat[0]
    if len(set(owners.flat)) == 1 and first.is_local:
        return None
    in_use.parted = True
    within = _block(owners)
    between = tuple(n // size for n, size in zip(owners.shape, within, strict=True))
    devices: list[Device] = []
    places: list[tuple[int, ...]] = []
    for place in np.ndindex(*between):
        corner = tuple(k * size for k, size in zip(place, within, strict=True))
        devices.append(grid[corner])
        places.append(place)
    key = DRIVERS
    if not all(device.is_local for device in devices):
        _check_processes(mesh, devices)
        order = sorted(range(len(devices)), key=lambda k: devices[k].process_index)
        devices, places = [devices[k] for k in order], [places[k] for k in order]
        firsts = first_memories()
        if [device.memory for device in devices] == firsts:
            key = PROCESSES  # which have met already
    names = mesh.axis_names
    return Memories(
        mesh, key, tuple(devices), dict(zip(names, between, strict=True)),
        dict(zip(names, within, strict=True)), tuple(places), tuple(devices),
    )  # fmt: skip


def first_memories() -> list[Hashable]:
    """The memory that each process communicates from, where it uses only one."""
    memories: dict[int, Hashable] = {}
    for device in default_devices():
        memories.setdefault(device.process_index, device.memory)
    return list(memories.values())


def _block(owners: np.ndarray) -> tuple[int, ...]:
    """The shape of the block of each memory.

    Raises:
        ValueError: they are no blocks of one shape.
    """
    sizes = []
    for axis, size in enumerate(owners.shape):
        line = owners[tuple(slice(None) if k == axis else 0 for k in range(owners.ndim))]
        length = next((k for k in range(size) if line[k] != line[0]), size)
        sizes.append(length)
    fits = all(n % length == 0 for n, length in zip(owners.shape, sizes, strict=True))
    seen: set[Any] = set()
    if fits:
        counts = [n // length for n, length in zip(owners.shape, sizes, strict=True)]
        for place in np.ndindex(*counts):
            block = owners[
                tuple(slice(k * n, (k + 1) * n) for k, n in zip(place, sizes, strict=True))
            ]
            held = set(block.flat)
            fits = fits and len(held) == 1 and not held & seen
            seen |= held
    check(
        fits,
        lambda: (
            f"[mesh] devices that share memory must form a block of the mesh, all of one shape; "
            f"got {owners.tolist()}. Fix: gpuflow.make_mesh(shape, names)."
        ),
        ValueError,
    )
    return tuple(sizes)


def _check_processes(mesh: Mesh, devices: Sequence[Device]) -> None:
    numbers = sorted(device.process_index for device in devices)
    counts = [numbers.count(number) for number in range(process.count)]
    check(
        0 not in counts,
        lambda: (
            f"[mesh] a mesh over processes must have devices of all {process.count}; got those of "
            f"{sorted(set(numbers))}. Fix: use gpuflow.devices(), or local_devices() for this "
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


# --- what a memory has of an array -----------------------------------------------------------


@record
class Holding:
    """The pieces of an array that one memory has: all combinations of some along each dimension.

    Attributes:
        counts: into how many pieces each dimension is cut.
        pieces: the indices of the stored pieces, for each dimension, in order.
    """

    counts: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of the shard of an array of shape ``whole``."""
        return tuple(
            size // count * len(numbers)
            for size, count, numbers in zip(whole, self.counts, self.pieces, strict=True)
        )

    def place(self, index: Index, whole: Sequence[int]) -> Index:
        """The position of the shard at ``index`` of the array in the memory."""
        slices = []
        for part, size, count, numbers in zip(index, whole, self.counts, self.pieces, strict=True):
            if count == 1:
                slices.append(slice(None))
                continue
            step = size // count
            number = numbers.index(part.start // step) if step else 0
            slices.append(slice(number * step, (number + 1) * step))
        return tuple(slices)

    def block(self, whole: Sequence[int]) -> Index | None:
        """The block of the shard in an array of shape ``whole``; None if it is not one."""
        slices = []
        for size, count, numbers in zip(whole, self.counts, self.pieces, strict=True):
            first, last, step = numbers[0], numbers[-1], size // count
            if last - first + 1 != len(numbers):
                return None
            slices.append(slice(first * step, (last + 1) * step))
        return tuple(slices)

    def take(self, whole: np.ndarray) -> np.ndarray:
        """Take the memory's elements from all elements."""
        return whole[np.ix_(*self._elements(whole.shape))] if whole.ndim else whole

    def put(self, whole: np.ndarray, part: np.ndarray) -> None:
        """Write the memory's elements to all elements."""
        whole[np.ix_(*self._elements(whole.shape)) if whole.ndim else ()] = part

    def _elements(self, whole: Sequence[int]) -> list[np.ndarray]:
        """For each dimension the indices that are there."""
        return [
            np.arange(size).reshape(count, size // count)[list(numbers)].reshape(-1)
            for size, count, numbers in zip(whole, self.counts, self.pieces, strict=True)
        ]

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole array."""
        return all(len(numbers) == n for numbers, n in zip(self.pieces, self.counts, strict=True))


@cache
def holdings(sharding: Sharding, rank: int) -> dict[Hashable, Holding]:
    """The holdings of each memory of an array of ``rank`` dimensions.

    Raises:
        ValueError: if a memory's elements are not a product of pieces along dimensions.
    """
    counts, pieces = sharding._counts(rank), sharding._pieces(rank)
    owned: dict[Hashable, set[tuple[int, ...]]] = {}
    for device, piece in zip(sharding._devices, pieces, strict=True):
        owned.setdefault(device.memory, set()).add(piece)
    holding_of = {}
    for memory, held in owned.items():
        along = tuple(tuple(sorted({piece[dim] for piece in held})) for dim in range(rank))
        check(
            prod(map(len, along)) == len(held),
            lambda held=held: (
                "[sharding] the shards of an array in one memory must form a block; got shards "
                f"{sorted(held)} of {sharding}. Fix: order the devices as gpuflow.make_mesh does."
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
    """One device for each memory, in the order in which arrays have their parts."""
    return tuple(sorted(first_of_each(devices), key=lambda device: device.id))


@cache
def is_in_one_memory(sharding: Sharding) -> bool:
    """Whether all devices share a memory of this process."""
    devices = sharding._devices
    return devices[0].is_local and len({device.memory for device in devices}) == 1
