"""Shardings as data: meshes of devices, and which device has which part of an array.

Nothing here knows arrays. A device is any hashable object with a ``process_index``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.records import record

Index = tuple[slice, ...]


class AxisType(enum.Enum):
    """How the shardings along a mesh axis are chosen: kept for JAX's signatures."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


class Mesh:
    """Devices in an array whose axes have names.

    Args:
        devices: an array of devices, or nested sequences of them.
        axis_names: a name for each axis of the array.
        axis_types: an ``AxisType`` for each axis; ``Auto`` by default.

    Raises:
        ValueError: another number of names than axes, or a name or device that is there twice.
    """

    def __init__(
        self, devices: Any, axis_names: Any, axis_types: Sequence[AxisType] | None = None
    ) -> None:
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = devices if isinstance(devices, np.ndarray) else _grid(devices)
        check(
            grid.ndim == len(names),
            lambda: (
                f"[Mesh] axis_names must name each axis of devices; got {names} for an array of "
                f"shape {grid.shape}. Fix: give {grid.ndim} names, or reshape devices."
            ),
            ValueError,
        )
        check(
            len(set(names)) == len(names) and len(set(grid.flat)) == grid.size,
            lambda: (
                f"[Mesh] names and devices must differ; got {names} for {list(grid.flat)}. "
                "Fix: name each axis once, and list each device once."
            ),
            ValueError,
        )
        self.devices = grid.copy()
        self.devices.flags.writeable = False
        self.axis_names: tuple[Any, ...] = names
        self.axis_types = tuple(axis_types or (AxisType.Auto,) * len(names))
        self._key = (tuple(self.devices.flat), grid.shape, names, self.axis_types)
        self._scopes: list[Any] = []

    @property
    def shape(self) -> OrderedDict[Any, int]:
        """The size of each axis, by name."""
        return OrderedDict(zip(self.axis_names, self.devices.shape, strict=True))

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The size of each axis, in order."""
        return self.devices.shape

    @property
    def shape_tuple(self) -> tuple[tuple[Any, int], ...]:
        """Pairs of a name and a size."""
        return tuple(self.shape.items())

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.devices.size

    @property
    def empty(self) -> bool:
        """Whether there are no axes."""
        return self.devices.ndim == 0

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The axes without the devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def device_ids(self) -> np.ndarray:
        """The ``id`` of each device."""
        return np.array([device.id for device in self.devices.flat]).reshape(self.devices.shape)

    def __enter__(self) -> Mesh:
        self._scopes.append(config.override("mesh", self))
        self._scopes[-1].__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._scopes.pop().__exit__(*details)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name!r}: {size}" for name, size in self.shape.items())
        return f"Mesh({sizes}, axis_types={self.axis_types})"


class AbstractMesh:
    """The axes of a mesh without its devices.

    Args:
        axis_sizes: the size of each axis.
        axis_names: the name of each axis.
        axis_types: an ``AxisType`` for each axis; ``Auto`` by default.
    """

    def __init__(
        self, axis_sizes: Sequence[int], axis_names: Sequence[Any],
        axis_types: Sequence[AxisType] | None = None,
    ) -> None:  # fmt: skip
        self.axis_sizes, self.axis_names = tuple(axis_sizes), tuple(axis_names)
        self.axis_types = tuple(axis_types or (AxisType.Auto,) * len(self.axis_names))
        self._key = (self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def shape(self) -> OrderedDict[Any, int]:
        """The size of each axis, by name."""
        return OrderedDict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def size(self) -> int:
        """The number of places."""
        return prod(self.axis_sizes)

    @property
    def empty(self) -> bool:
        """Whether there are no axes."""
        return not self.axis_names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name!r}: {size}" for name, size in self.shape.items())
        return f"AbstractMesh({sizes}, axis_types={self.axis_types})"


def _grid(devices: Any) -> np.ndarray:
    """Nested sequences of devices as an array; devices may themselves look like sequences."""
    nested, shape = devices, []
    while isinstance(nested, list | tuple):
        shape.append(len(nested))
        nested = nested[0] if nested else None
    grid = np.empty(shape, object)
    for position in np.ndindex(*shape):
        item = devices
        for number in position:
            item = item[number]
        grid[position] = item
    return grid


class _Unconstrained:
    def __repr__(self) -> str:
        return "UNCONSTRAINED"


class PartitionSpec(tuple[Any, ...]):
    """For each dimension of an array the mesh axes that it is split over.

    ``PartitionSpec("x", None, ("y", "z"))``: the first dimension over axis x, the second over none,
    the third over y and z, y being the slower one. Dimensions that are left out are not split.
    """

    __slots__ = ()
    UNCONSTRAINED = _Unconstrained()

    def __new__(cls, *partitions: Any) -> PartitionSpec:
        return super().__new__(cls, [_partition(part) for part in partitions])

    def __repr__(self) -> str:
        return f"PartitionSpec{tuple(self)!r}"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return PartitionSpec, tuple(self)


def _partition(part: Any) -> Any:
    if isinstance(part, list | tuple):
        return part[0] if len(part) == 1 else (tuple(part) or None)
    return part


def names_of(partition: Any) -> tuple[Any, ...]:
    """The mesh axes of one item of a PartitionSpec."""
    if partition is None or partition is PartitionSpec.UNCONSTRAINED:
        return ()
    return partition if isinstance(partition, tuple) else (partition,)


class Sharding:
    """Which device has which part of an array. Subclasses say how dimensions are cut."""

    @property
    def _devices(self) -> tuple[Any, ...]:
        """The devices in order."""
        raise NotImplementedError

    def _cuts(self, rank: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        """Into how many pieces each dimension is cut, and for each device which ones it has."""
        raise NotImplementedError

    @property
    def device_set(self) -> set[Any]:
        """All devices."""
        return set(self._devices)

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices of this process."""
        return {device for device in self._devices if device.is_local}

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices are this process's."""
        return all(device.is_local for device in self._devices)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        raise NotImplementedError

    memory_kind: str | None = "device"

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each device's part of an array.

        Raises:
            ValueError: the parts would not be equal.
        """
        counts, _ = self._cuts(len(global_shape))
        for dim, (size, count) in enumerate(zip(global_shape, counts, strict=True)):
            check(
                size % count == 0,
                lambda dim=dim, size=size, count=count: (
                    f"[sharding] dimension {dim} must be divisible by {count}, the number of its "
                    f"parts; got size {size} of shape {tuple(global_shape)} for {self}. "
                    f"Fix: pad it to {-(-size // count) * count}, or do not split it."
                ),
                ValueError,
            )
        return tuple(size // count for size, count in zip(global_shape, counts, strict=True))

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """For each device the slices of its part."""
        part = self.shard_shape(global_shape)
        counts, pieces = self._cuts(len(global_shape))

        def along(size: int, count: int, piece: int) -> slice:
            return slice(None) if count == 1 else slice(piece * size, (piece + 1) * size)

        return {
            device: tuple(map(along, part, counts, own))
            for device, own in zip(self._devices, pieces, strict=True)
        }

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """The same for this process's devices."""
        found = self.devices_indices_map(global_shape)
        return {device: index for device, index in found.items() if device.is_local}

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether the same devices have the same parts of arrays of ``ndim`` dimensions."""
        return self._devices == other._devices and self._cuts(ndim) == other._cuts(ndim)

    def with_memory_kind(self, kind: str) -> Sharding:
        """The same sharding: there is one kind of memory.

        Raises:
            ValueError: another kind than "device".
        """
        check_memory_kind(kind)
        return self


def check_memory_kind(kind: str | None) -> None:
    """Check that a kind of memory is the one that there is.

    Raises:
        ValueError: it is not.
    """
    check(
        kind in (None, "device"),
        lambda: f"[sharding] the memory kind must be 'device'; got {kind!r}. Fix: leave it out.",
        ValueError,
    )


@record
class NamedSharding(Sharding):
    """A mesh, and the axes over which each dimension is split.

    Args:
        mesh: the devices.
        spec: a PartitionSpec of names of its axes.
        memory_kind: "device" or None.

    Raises:
        ValueError: a name that the mesh has not, or that is there twice.
    """

    mesh: Mesh
    spec: PartitionSpec
    memory_kind: str | None = field(default="device", kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", PartitionSpec(*self.spec))
        check_memory_kind(self.memory_kind)
        names = [name for partition in self.spec for name in names_of(partition)]
        check(
            set(names) <= set(self.mesh.axis_names) and len(set(names)) == len(names),
            lambda: (
                f"[NamedSharding] the spec must hold axes of the mesh, each once; got {self.spec} "
                f"for {self.mesh}. Fix: use names of {self.mesh.axis_names}, or None."
            ),
            ValueError,
        )

    @cached_property
    def _devices(self) -> tuple[Any, ...]:
        return tuple(self.mesh.devices.flat)

    def _cuts(self, rank: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        check(
            len(self.spec) <= rank,
            lambda: (
                f"[NamedSharding] the spec must have at most one item for each dimension; got "
                f"{self.spec} for an array of {rank} dimensions. Fix: leave out the last ones."
            ),
            ValueError,
        )
        names = [names_of(part) for part in self.spec] + [()] * (rank - len(self.spec))
        sizes, where = self.mesh.shape, {n: k for k, n in enumerate(self.mesh.axis_names)}
        counts = tuple(prod(sizes[name] for name in own) for own in names)

        def piece(position: Sequence[int], own: Sequence[Any]) -> int:
            number = 0
            for name in own:
                number = number * sizes[name] + position[where[name]]
            return number

        positions = np.ndindex(*self.mesh.devices.shape)
        return counts, [tuple(piece(at, own) for own in names) for at in positions]

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        sizes = self.mesh.shape
        return all(sizes[name] == 1 for part in self.spec for name in names_of(part))

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh}, spec={self.spec}, memory_kind=device)"


@record
class SingleDeviceSharding(Sharding):
    """The whole array on one device."""

    device: Any
    memory_kind: str | None = field(default="device", kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_memory_kind(self.memory_kind)

    @property
    def _devices(self) -> tuple[Any, ...]:
        return (self.device,)

    def _cuts(self, rank: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        return (1,) * rank, [(0,) * rank]

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        return True


class PositionalSharding(Sharding):
    """Devices in an array of the rank of what they share, whose shape says how often it is cut.

    JAX has removed the class; scripts that use it still run.

    Args:
        devices: an array or sequence of devices.
    """

    def __init__(self, devices: Any) -> None:
        flat = devices if isinstance(devices, np.ndarray) else _grid(list(devices))
        self._all: tuple[Any, ...] = tuple(flat.flat)
        # Each cell holds the numbers of the devices that have its part.
        self._cells = np.empty(flat.shape, object)
        for number, position in enumerate(np.ndindex(*flat.shape)):
            self._cells[position] = (number,)

    def _with(self, cells: np.ndarray) -> PositionalSharding:
        made = PositionalSharding.__new__(PositionalSharding)
        made._all, made._cells = self._all, cells
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut."""
        return self._cells.shape

    @property
    def ndim(self) -> int:
        """The rank of the arrays that it is for."""
        return self._cells.ndim

    def reshape(self, *shape: Any) -> PositionalSharding:
        """The devices in an array of another shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._with(self._cells.reshape(sizes))

    def transpose(self, *axes: Any) -> PositionalSharding:
        """The devices with their axes in another order."""
        return self._with(self._cells.transpose(*axes))

    @property
    def T(self) -> PositionalSharding:
        """The devices with their axes in reverse."""
        return self.transpose()

    def replicate(self, axis: int | None = None, keepdims: bool = True) -> PositionalSharding:
        """All devices along an axis, or all there are, get the same part."""
        axes = range(self.ndim) if axis is None else (axis % self.ndim,)
        cells = self._cells
        for dim in sorted(axes, reverse=True):
            merged = np.empty(cells.shape[:dim] + cells.shape[dim + 1 :], object)
            for position in np.ndindex(*merged.shape):
                line = cells[(*position[:dim], slice(None), *position[dim:])]
                merged[position] = tuple(number for cell in line for number in cell)
            cells = np.expand_dims(merged, dim) if keepdims else merged
        return self._with(cells)

    @property
    def _devices(self) -> tuple[Any, ...]:
        return self._all

    def _cuts(self, rank: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
        check(
            rank == self.ndim,
            lambda: (
                f"[PositionalSharding] its rank must be that of the array; got {self.shape} for "
                f"{rank} dimensions. Fix: sharding.reshape(...)."
            ),
            ValueError,
        )
        pieces: list[tuple[int, ...]] = [()] * len(self._all)
        for position in np.ndindex(*self._cells.shape):
            for number in self._cells[position]:
                pieces[number] = position
        return self._cells.shape, pieces

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        return prod(self.shape) == 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionalSharding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Hashable:
        return self._all, self._cells.shape, tuple(self._cells.flat)

    def __repr__(self) -> str:
        return f"PositionalSharding(shape={self.shape}, devices={list(self._all)})"


def replica_ids(indices: Mapping[Any, Index]) -> dict[Any, int]:
    """For each device how many before it have the same part."""
    seen: dict[Any, int] = {}
    found = {}
    for device, index in indices.items():
        key = tuple((part.start, part.stop) for part in index)
        found[device] = seen[key] = seen.get(key, -1) + 1
    return found
