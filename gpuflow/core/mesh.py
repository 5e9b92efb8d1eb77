"""Meshes as data: devices in an array whose axes have names.

Nothing here knows arrays. A device is any hashable object with a ``process_index``.

Tests: tests/parallel/test_meshes.py, tests/parallel/test_shardings.py.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.config import config
from gpuflow.base.errors import check


class AxisType(enum.Enum):
    """Sharding modes of mesh axes, for JAX's signatures."""

    Auto = enum.auto()
    Explicit = enum.auto()
    Manual = enum.auto()

    def __repr__(self) -> str:
        return self.name


class _Axes:
    """Common properties of meshes with and without devices."""

    axis_sizes: tuple[int, ...]
    axis_names: tuple[Any, ...]
    axis_types: tuple[AxisType, ...]
    is_planned = False  # whether its devices need not exist

    @property
    def shape(self) -> OrderedDict[Any, int]:
        """The size of each axis, by name."""
        return OrderedDict(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def shape_tuple(self) -> tuple[tuple[Any, int], ...]:
        """Pairs of a name and a size."""
        return tuple(zip(self.axis_names, self.axis_sizes, strict=True))

    @property
    def empty(self) -> bool:
        """Whether there are no axes."""
        return not self.axis_names

    def _of_type(self, axis_type: AxisType) -> tuple[Any, ...]:
        pairs = zip(self.axis_names, self.axis_types, strict=True)
        return tuple(name for name, kind in pairs if kind is axis_type)

    @property
    def auto_axes(self) -> tuple[Any, ...]:
        """The axes of type Auto."""
        return self._of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[Any, ...]:
        """The axes of type Explicit."""
        return self._of_type(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[Any, ...]:
        """The axes of type Manual: those of enclosing ``shard_map`` programs."""
        return self._of_type(AxisType.Manual)

    def _are_all(self, axis_type: AxisType) -> bool:
        return not self.empty and all(kind is axis_type for kind in self.axis_types)

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether there are axes and all are Auto."""
        return self._are_all(AxisType.Auto)

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether there are axes and all are Explicit."""
        return self._are_all(AxisType.Explicit)

    @property
    def are_all_axes_manual(self) -> bool:
        """Whether there are axes and all are Manual."""
        return self._are_all(AxisType.Manual)

    def stands_for(self, other: _Axes) -> bool:
        """Whether shardings over ``other`` are meant to be over this mesh while it is current."""
        return isinstance(other, AbstractMesh) and other.shape_tuple == self.shape_tuple

    def _described(self) -> str:
        sizes = ", ".join(f"{name!r}: {size}" for name, size in self.shape_tuple)
        return f"({sizes or '()'}, axis_types={self.axis_types})"


def _types(op: str, names: tuple[Any, ...], types: Any) -> tuple[AxisType, ...]:
    """The type of each axis; ``Auto`` by default.

    Raises:
        ValueError: if the numbers of types and names differ.
    """
    if types is None:
        return (AxisType.Auto,) * len(names)
    kinds = (types,) if isinstance(types, AxisType) else tuple(types)
    check(
        len(kinds) == len(names) and all(isinstance(kind, AxisType) for kind in kinds),
        lambda: (
            f"[{op}] axis_types must hold an AxisType for each of {names}; got {types}. "
            "Fix: leave it out, or give one for each axis."
        ),
        ValueError,
    )
    return kinds


class _Scopes(threading.local):
    """The scopes of ``with mesh`` that this thread is in; settings belong to threads."""

    def __init__(self) -> None:
        self.entered: list[Any] = []


_scopes = _Scopes()


class DeviceOrder(tuple[Any, ...]):
    """Devices in order, with a hash that is computed once: lookups happen at each call."""

    @cached_property
    def _hash(self) -> int:
        return tuple.__hash__(self)

    def __hash__(self) -> int:
        return self._hash


class Mesh(_Axes):
    """An array of devices with named axes.

    Args:
        devices: an array of devices, or nested sequences of them.
        axis_names: a name for each axis of the array.
        axis_types: an ``AxisType`` for each axis; all ``Auto`` by default.

    Raises:
        ValueError: if the number of names and axes differs, or a name or device is repeated.
    """

    def __init__(
        self, devices: Any, axis_names: Any, axis_types: Sequence[AxisType] | None = None
    ) -> None:
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        grid = devices if isinstance(devices, np.ndarray) else as_grid(devices)
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
        self.devices: np.ndarray[Any, np.dtype[Any]] = grid.copy()
        self.devices.flags.writeable = False
        self.axis_names: tuple[Any, ...] = names
        self.axis_types: tuple[AxisType, ...] = _types("Mesh", names, axis_types)
        self._flat_devices_tuple = DeviceOrder(self.devices.flat)
        self._key = (self._flat_devices_tuple, grid.shape, names, self.axis_types)
        self._hash = hash(self._key)

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The size of each axis, in order."""
        return self.devices.shape

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return 0 if self.empty else self.devices.size

    @cached_property
    def _flat_devices_set(self) -> set[Any]:
        return set(self._flat_devices_tuple)

    @property
    def is_multi_process(self) -> bool:
        """Whether it contains devices of several processes."""
        return len({device.process_index for device in self.devices.flat}) > 1

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single device without axes."""
        return self.devices.ndim == 0

    @property
    def local_mesh(self) -> Mesh:
        """The submesh of this process's devices.

        Raises:
            ValueError: if these devices are not a block of the mesh.
        """
        is_own = np.array([device.is_local for device in self.devices.flat], bool)
        is_own = is_own.reshape(self.devices.shape)
        block = self.devices
        if not self.is_scalar:
            block = block[np.ix_(*[np.unique(k) for k in np.nonzero(is_own)])]
        check(
            block.size == is_own.sum(),
            lambda: (
                f"[Mesh] local_mesh needs the devices of a process to be a block; got "
                f"{list(self.devices[is_own])} in {self}. Fix: local_devices."
            ),
            ValueError,
        )
        return Mesh(block, self.axis_names, self.axis_types)

    @property
    def local_devices(self) -> list[Any]:
        """The devices of this process."""
        return [device for device in self.devices.flat if device.is_local]

    def update(
        self,
        devices: Any = None,
        axis_names: Any = None,
        axis_types: Sequence[AxisType] | None = None,
    ) -> Mesh:
        """Return the mesh with other devices, names or types of axes."""
        return type(self)(
            self.devices if devices is None else devices,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The axes without the devices."""
        return AbstractMesh(self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def device_ids(self) -> np.ndarray:
        """The ``id`` of each device."""
        return np.array([device.id for device in self.devices.flat]).reshape(self.devices.shape)

    def __enter__(self) -> Mesh:
        scope = config.override("mesh", entered_mesh(self))
        scope.__enter__()
        _scopes.entered.append(scope)
        return self

    def __exit__(self, *details: Any) -> None:
        _scopes.entered.pop().__exit__(*details)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Mesh) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return type(self), (self.devices, self.axis_names, self.axis_types)

    def __repr__(self) -> str:
        return (
            f"Mesh(axis_sizes={self.axis_sizes}, axis_names={self.axis_names}, "
            f"axis_types={self.axis_types})"
        )

    def __str__(self) -> str:
        return f"Mesh{self._described()}"


class PlannedMesh(Mesh):
    """A mesh of devices that need not exist, for the plan of one of them.

    While it is the current mesh, it stands for every mesh with axes of these names, of any size and
    in any order, so that functions which name another one are planned over this one.
    """

    is_planned = True

    def stands_for(self, other: _Axes) -> bool:
        """Whether shardings over ``other`` are meant to be over this mesh.

        Raises:
            ValueError: if the other mesh has axes of other names.
        """
        if other is self or other.empty:
            return False
        check(
            set(other.axis_names) == set(self.axis_names),
            lambda: (
                f"[explain] all meshes of a plan must have the axes {self.axis_names}; got one "
                f"with {other.axis_names} in an argument or in the function. "
                "Fix: one mesh, or other names in mesh=."
            ),
            ValueError,
        )
        return True


class AbstractMesh(_Axes):
    """The axes of a mesh without its devices.

    Args:
        axis_sizes: the size of each axis.
        axis_names: the name of each axis.
        axis_types: an ``AxisType`` for each axis; all ``Auto`` by default.

    Raises:
        ValueError: if the numbers of names or types and sizes differ; from attributes that describe
            devices, because an AbstractMesh has none.
    """

    def __init__(
        self,
        axis_sizes: Sequence[int],
        axis_names: Sequence[Any],
        axis_types: Sequence[AxisType] | None = None,
    ) -> None:
        names: tuple[Any, ...] = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        self.axis_sizes: tuple[int, ...] = tuple(axis_sizes)
        self.axis_names: tuple[Any, ...] = names
        check(
            len(self.axis_sizes) == len(self.axis_names),
            lambda: (
                f"[AbstractMesh] axis_names must name each axis; got {self.axis_names} for "
                f"sizes {self.axis_sizes}. Fix: one name for each size."
            ),
            ValueError,
        )
        self.axis_types: tuple[AxisType, ...] = _types("AbstractMesh", names, axis_types)
        self._key = (self.axis_sizes, self.axis_names, self.axis_types)

    @property
    def size(self) -> int:
        """Total number of devices."""
        return prod(self.axis_sizes) if self.axis_sizes else 0

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The mesh itself."""
        return self

    def update(
        self,
        axis_sizes: Sequence[int] | None = None,
        axis_names: Sequence[Any] | None = None,
        axis_types: Sequence[AxisType] | None = None,
    ) -> AbstractMesh:
        """Return the mesh with other sizes, names or types of axes."""
        return AbstractMesh(
            self.axis_sizes if axis_sizes is None else axis_sizes,
            self.axis_names if axis_names is None else axis_names,
            self.axis_types if axis_types is None else axis_types,
        )

    def update_axis_types(self, changes: Mapping[Any, AxisType]) -> AbstractMesh:
        """Return the mesh with other types of some axes, by name."""
        pairs = zip(self.axis_names, self.axis_types, strict=True)
        return self.update(axis_types=[changes.get(name, kind) for name, kind in pairs])

    def _no_devices(self) -> Any:
        raise ValueError(
            f"[AbstractMesh] only a Mesh has devices; got {self}. Fix: the mesh that it is of, or "
            "jax.sharding.get_mesh()."
        )

    devices: Any = property(_no_devices)
    device_ids: Any = devices
    local_devices: Any = devices
    local_mesh: Any = devices
    _flat_devices_tuple: Any = devices
    _flat_devices_set: Any = devices
    is_multi_process: Any = devices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"AbstractMesh{self._described()}"


def as_grid(devices: Any) -> np.ndarray:
    """Nested sequences of devices as an array; devices may themselves look like sequences.

    Raises:
        ValueError: if sequences of one level have different lengths.
    """
    nested, shape = devices, []
    while isinstance(nested, list | tuple):
        shape.append(len(nested))
        nested = nested[0] if nested else None
    check(
        _fits(devices, shape),
        lambda: (
            f"[Mesh] devices must have rows of one length; got {devices}. "
            "Fix: list as many devices in each row."
        ),
        ValueError,
    )
    grid = np.empty(shape, object)
    for position in np.ndindex(*shape):
        item = devices
        for index in position:
            item = item[index]
        grid[position] = item
    return grid


def _fits(nested: Any, shape: list[int]) -> bool:
    """Whether nested sequences have this shape."""
    if not isinstance(nested, list | tuple):
        return not shape
    return (
        bool(shape) and len(nested) == shape[0] and all(_fits(item, shape[1:]) for item in nested)
    )


def entered_mesh(mesh: Mesh) -> Mesh:
    """The current mesh inside of a block with ``mesh``: a planned one remains."""
    current = config.mesh
    is_planned = isinstance(current, PlannedMesh) and current.stands_for(mesh)
    return current if is_planned else mesh
