"""Shardings as data: the assignment of shards of an array to devices.

This module is independent of arrays. A device is any hashable object with a ``process_index``.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_out_sharding.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.caches import lru_cache
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.mesh import AbstractMesh, DeviceOrder, Mesh

Index = tuple[slice, ...]

# Cache sizes: of properties with an entry for each device, and of others.
_MAX_MAPS, _MAX_SHAPES = 256, 4096


class _Unconstrained:
    def __repr__(self) -> str:
        return "UNCONSTRAINED"


class PartitionSpec:
    """The mesh axes over which each dimension of an array is sharded.

    ``PartitionSpec("x", None, ("y", "z"))`` shards the first dimension over axis x, does not shard
    the second, and shards the third over y and z, y being the slower axis. Missing dimensions are
    not sharded.

    Args:
        partitions: a name, a tuple of names, None or ``UNCONSTRAINED`` for each dimension.
        unreduced: mesh axes along which values are partial sums.
        reduced: mesh axes along which cotangents are partial sums.
    """

    UNCONSTRAINED = _Unconstrained()
    __slots__ = ("partitions", "reduced", "unreduced")
    partitions: tuple[Any, ...]
    unreduced: frozenset[Any]
    reduced: frozenset[Any]

    def __init__(
        self, *partitions: Any, unreduced: Collection[Any] = (), reduced: Collection[Any] = ()
    ) -> None:
        self.partitions = tuple([_partition(partition) for partition in partitions])
        self.unreduced = self.reduced = frozenset()
        if unreduced or reduced:
            self.unreduced, self.reduced = _checked_axes(self, unreduced, reduced)

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.partitions)

    def __getitem__(self, index: Any) -> Any:
        return self.partitions[index]

    def index(self, value: Any) -> int:
        """Return the first dimension with this entry."""
        return self.partitions.index(_partition(value))

    def count(self, value: Any) -> int:
        """Return the number of dimensions with this entry."""
        return self.partitions.count(_partition(value))

    def __add__(self, other: Any) -> PartitionSpec:
        if not isinstance(other, PartitionSpec | tuple):
            return NotImplemented
        more = other if isinstance(other, PartitionSpec) else PartitionSpec(*other)
        unreduced, reduced = self.unreduced | more.unreduced, self.reduced | more.reduced
        return PartitionSpec(*self, *more, unreduced=unreduced, reduced=reduced)

    def __radd__(self, other: Any) -> PartitionSpec:
        return PartitionSpec(*other) + self if isinstance(other, tuple) else NotImplemented

    def _key(self) -> tuple[Any, ...]:
        return self.partitions, self.unreduced, self.reduced

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PartitionSpec) or self.partitions != other.partitions:
            return False
        return self.unreduced == other.unreduced and self.reduced == other.reduced

    def __hash__(self) -> int:
        return hash(self.partitions)

    def __repr__(self) -> str:
        if not self.unreduced and not self.reduced:
            return f"P{self.partitions!r}"
        texts = [repr(partition) for partition in self]
        texts += [
            f"{name}={set(getattr(self, name))}"
            for name in ("unreduced", "reduced")
            if getattr(self, name)
        ]
        return f"P({', '.join(texts)})"

    def __reduce__(self) -> Any:
        return _restored_spec, self._key()

    def update(self, **changes: Any) -> PartitionSpec:
        """Return the spec with other ``partitions``, ``unreduced`` or ``reduced``."""
        partitions = changes.pop("partitions", self.partitions)
        axes = {"unreduced": self.unreduced, "reduced": self.reduced, **changes}
        return PartitionSpec(*partitions, **axes)


def _restored_spec(partitions: tuple[Any, ...], unreduced: Any, reduced: Any) -> PartitionSpec:
    return PartitionSpec(*partitions, unreduced=unreduced, reduced=reduced)


def _checked_axes(
    spec: PartitionSpec, unreduced: Collection[Any], reduced: Collection[Any]
) -> tuple[frozenset[Any], frozenset[Any]]:
    """The axes along which values are yet to be summed, and those along which cotangents are.

    Raises:
        TypeError: they are not sets.
        ValueError: None among them, or an axis that has two roles.
    """
    for name, axes in (("unreduced", unreduced), ("reduced", reduced)):
        check(
            not axes or isinstance(axes, set | frozenset),
            lambda name=name, axes=axes: (
                f"[PartitionSpec] {name} must be a set of mesh axes; "
                f"got {axes!r}. Fix: {name}={{'x'}}."
            ),
        )
    partitions = [name for partition in spec for name in names_of(partition)]
    roles = [partitions, unreduced, reduced]
    check(
        None not in unreduced
        and None not in reduced
        and not {*unreduced} & {*reduced}
        and not set(partitions) & {*unreduced, *reduced},
        lambda: (
            f"[PartitionSpec] partitions, unreduced and reduced must hold mesh axes, each "
            f"once; got {roles}. Fix: name each axis in one of them."
        ),
        ValueError,
    )
    return frozenset(unreduced), frozenset(reduced)


def _partition(partition: Any) -> Any:
    if isinstance(partition, list | tuple):
        return partition[0] if len(partition) == 1 else (tuple(partition) or None)
    return partition


def names_of(partition: Any) -> tuple[Any, ...]:
    """The mesh axes of one item of a PartitionSpec."""
    if partition is None or partition is PartitionSpec.UNCONSTRAINED:
        return ()
    return partition if isinstance(partition, tuple) else (partition,)


class Sharding:
    """The assignment of shards of an array to devices, defined by subclasses."""

    @property
    def _devices(self) -> tuple[Any, ...]:
        """The devices in order."""
        raise NotImplementedError

    def _counts(self, rank: int) -> tuple[int, ...]:
        """The number of chunks of each dimension of an array of this rank."""
        raise NotImplementedError

    def _chunks(self, rank: int) -> list[tuple[int, ...]]:
        """For each device the index of its chunk along each dimension."""
        raise NotImplementedError

    @property
    def device_set(self) -> set[Any]:
        """All devices."""
        return set(self._devices)

    @property
    def num_devices(self) -> int:
        """Return the number of devices."""
        return len(self._devices)

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices of this process."""
        return {device for device in self._devices if device.is_local}

    @property
    def has_addressable_devices(self) -> bool:
        """Whether any of the devices belongs to this process."""
        return any(device.is_local for device in self._devices)

    def check_compatible_aval(self, aval_shape: Sequence[int]) -> None:
        """Check that arrays of this shape can have this sharding.

        Raises:
            ValueError: if the spec has more entries than the shape.
        """
        self._counts(len(aval_shape))

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return all(device.is_local for device in self._devices)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        raise NotImplementedError

    memory_kind: str | None = "device"
    # Whether it is over a mesh without axes, as those of types are: it requests no devices.
    is_of_types = False

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the shard of each device.

        Raises:
            ValueError: if the shards would differ in size.
        """
        return _shard_shape(self, tuple(global_shape))

    def devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """Return the slices of the shard of each device."""
        return dict(zip(self._devices, _indices(self, tuple(global_shape)), strict=True))

    def addressable_devices_indices_map(self, global_shape: Sequence[int]) -> dict[Any, Index]:
        """Return the slices of the shard of each device of this process."""
        indices = self.devices_indices_map(global_shape)
        return {device: index for device, index in indices.items() if device.is_local}

    @property
    def _addressable_device_assignment(self) -> tuple[Any, ...]:
        """This process's devices in their order, by the name that libraries ask for."""
        return tuple(device for device in self._devices if device.is_local)

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Return whether the sharding is equivalent for arrays of ``ndim`` dimensions."""
        if self == other:
            return True
        return self._devices == other._devices and _cuts(self, ndim) == _cuts(other, ndim)

    def with_memory_kind(self, kind: str) -> Sharding:
        """Return the sharding unchanged: there is one kind of memory.

        Raises:
            ValueError: if the kind is not "device".
        """
        check_memory_kind(kind)
        return self


@lru_cache(_MAX_MAPS)
def _cuts(sharding: Sharding, rank: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The number of chunks of each dimension, and for each device the indices of its chunk."""
    return sharding._counts(rank), sharding._chunks(rank)


@lru_cache(_MAX_SHAPES)
def _shard_shape(sharding: Sharding, shape: tuple[int, ...]) -> tuple[int, ...]:
    counts = sharding._counts(len(shape))
    for dim, (size, count) in enumerate(zip(shape, counts, strict=True)):
        check(
            size % count == 0,
            lambda dim=dim, size=size, count=count: (
                f"[sharding] dimension {dim} must be divisible by {count}, the number of its "
                f"parts; got size {size} of shape {shape} for {sharding}. "
                f"Fix: pad it to {-(-size // count) * count}, or do not split it."
            ),
            ValueError,
        )
    return tuple(size // count for size, count in zip(shape, counts, strict=True))


@lru_cache(_MAX_MAPS)
def _indices(sharding: Sharding, shape: tuple[int, ...]) -> list[Index]:
    """For each device the slices of its shard."""
    partition = sharding.shard_shape(shape)
    counts, chunks = _cuts(sharding, len(shape))

    def along(size: int, count: int, chunk: int) -> slice:
        return slice(None) if count == 1 else slice(chunk * size, (chunk + 1) * size)

    return [tuple(map(along, partition, counts, position)) for position in chunks]


def check_memory_kind(kind: str | None) -> None:
    """Check that a kind of memory is supported.

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
    """A mesh, and the mesh axes over which each dimension of an array is sharded.

    Args:
        mesh: the devices.
        spec: a PartitionSpec with names of its axes.
        memory_kind: "device" or None.

    Raises:
        ValueError: if the mesh does not have a name, or a name is repeated.
    """

    mesh: Mesh | AbstractMesh
    spec: PartitionSpec
    memory_kind: str | None = field(default="device", kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.spec) is not PartitionSpec:
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
    def _hash(self) -> int:
        return hash((self.mesh, self.spec))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return _restored_sharding, (self.mesh, self.spec, self.memory_kind)

    @property
    def _devices(self) -> DeviceOrder:
        return self.mesh._flat_devices_tuple

    @property
    def device_set(self) -> set[Any]:
        """All devices."""
        return self.mesh._flat_devices_set

    @property
    def is_of_types(self) -> bool:  # type: ignore[override]
        """Whether the mesh has no axes."""
        return not self.mesh.axis_names

    @property
    def replicated_axes(self) -> frozenset[Any]:
        """The axes of the mesh along which arrays are replicated."""
        used = {name for partition in self.spec for name in names_of(partition)}
        return frozenset(self.mesh.axis_names) - used

    def update(self, **changes: Any) -> NamedSharding:
        """Return the sharding with another ``mesh``, ``spec`` or ``memory_kind``."""
        memory_kind = changes.pop("memory_kind", self.memory_kind)
        fields = {"mesh": self.mesh, "spec": self.spec, **changes}
        return NamedSharding(fields["mesh"], fields["spec"], memory_kind=memory_kind)

    def _counts(self, rank: int) -> tuple[int, ...]:
        sizes = self.mesh.shape
        return tuple(prod(sizes[name] for name in axes) for axes in self._axes(rank))

    def _chunks(self, rank: int) -> list[tuple[int, ...]]:
        axes_of_dims = self._axes(rank)
        sizes, where = self.mesh.shape, {n: k for k, n in enumerate(self.mesh.axis_names)}

        def chunk(position: Sequence[int], axes: Sequence[Any]) -> int:
            number = 0
            for name in axes:
                number = number * sizes[name] + position[where[name]]
            return number

        positions = np.ndindex(*self.mesh.axis_sizes)
        return [tuple(chunk(at, axes) for axes in axes_of_dims) for at in positions]

    def _axes(self, rank: int) -> list[tuple[Any, ...]]:
        """The axes over which each dimension of an array of this rank is split."""
        check(
            len(self.spec) <= rank,
            lambda: (
                f"[NamedSharding] the spec must have at most one item for each dimension; got "
                f"{self.spec} for an array of {rank} dimensions. Fix: leave out the last ones."
            ),
            ValueError,
        )
        return [names_of(partition) for partition in self.spec] + [()] * (rank - len(self.spec))

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        sizes = self.mesh.shape
        return all(sizes[name] == 1 for partition in self.spec for name in names_of(partition))

    def __repr__(self) -> str:
        return f"NamedSharding(mesh={self.mesh}, spec={self.spec}, memory_kind=device)"


def in_force(sharding: Any, mesh: Mesh | AbstractMesh | None) -> Any:
    """A PartitionSpec, or a sharding over a mesh that ``mesh`` stands for, on ``mesh``.

    Args:
        sharding: the user's value; anything else is returned.
        mesh: the current mesh.
    """
    if mesh is None:
        return sharding
    if isinstance(sharding, PartitionSpec):
        return NamedSharding(mesh, sharding)
    is_named = isinstance(sharding, NamedSharding) and not sharding.is_of_types
    if is_named and mesh.stands_for(sharding.mesh):
        return NamedSharding(mesh, sharding.spec)
    return sharding


def on_mesh(op: str, sharding: Any, mesh: Mesh | AbstractMesh | None, prefix: str = "") -> Any:
    """Return ``in_force(sharding, mesh)``.

    Args:
        op: the function, for errors.
        sharding, mesh: as for ``in_force``.
        prefix: prefix of the sharding in the error, such as "out_sharding=".

    Raises:
        ValueError: if it is a PartitionSpec and there is no mesh.
    """
    resolved = in_force(sharding, mesh)
    check(
        not isinstance(resolved, PartitionSpec),
        lambda: (
            f"[{op}] a PartitionSpec needs a mesh; got {prefix}{resolved} without one. "
            "Fix: NamedSharding(mesh, spec), or jax.set_mesh(mesh)."
        ),
        ValueError,
    )
    return resolved


def _restored_sharding(mesh: Any, spec: PartitionSpec, memory_kind: Any) -> NamedSharding:
    return NamedSharding(mesh, spec, memory_kind=memory_kind)


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

    def _counts(self, rank: int) -> tuple[int, ...]:
        return (1,) * rank

    def _chunks(self, rank: int) -> list[tuple[int, ...]]:
        return [(0,) * rank]

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array."""
        return True


def replica_ids(indices: Mapping[Any, Index]) -> dict[Any, int]:
    """For each device the number of previous devices with the same shard."""
    seen: dict[Any, int] = {}
    ids = {}
    for device, index in indices.items():
        key = tuple((partition.start, partition.stop) for partition in index)
        ids[device] = seen[key] = seen.get(key, -1) + 1
    return ids
