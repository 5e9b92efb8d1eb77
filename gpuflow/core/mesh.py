"""Meshes as data: devices in an array whose axes have names.

Nothing here knows arrays. A device is any hashable object with a ``process_index``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.errors import check


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


def as_grid(devices: Any) -> np.ndarray:
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
