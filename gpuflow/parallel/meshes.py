"""Creation of meshes, and the current mesh, which PartitionSpecs refer to.

Tests: tests/parallel/test_meshes.py, tests/parallel/test_shardings.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.arguments import as_integers
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.base.removed import note_removed
from gpuflow.core.argument_kinds import explained
from gpuflow.core.mesh import AbstractMesh, AxisType, Mesh, PlannedMesh, entered_mesh
from gpuflow.runtime.device import Device, PlannedDevice, devices, process


@explained
def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: Sequence[Any],
    axis_types: Sequence[AxisType] | None = None,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """Return a mesh of the given sizes over the first devices.

    Args:
        axis_shapes: the size of each axis.
        axis_names: the name of each axis.
        axis_types: sharding mode of each axis; ``Explicit`` by default, as in JAX.
        devices: the devices; the first of all devices by default.

    Returns:
        A Mesh.

    Raises:
        ValueError: if there are not enough devices.

    Example:
        >>> dict(gf.make_mesh((1,), ("x",)).shape)
        {'x': 1}
    """
    if axis_types is None:
        count = 1 if isinstance(axis_names, str) else len(axis_names)
        axis_types = (AxisType.Explicit,) * count
    return Mesh(device_grid("make_mesh", axis_shapes, devices), axis_names, axis_types)


def device_grid(
    op: str, shape: Sequence[int], requested: Sequence[Device] | None = None
) -> np.ndarray:
    """Arrange devices in an array of the shape of a mesh.

    Args:
        op: name of the op in messages.
        shape: shape of the mesh.
        requested: the devices, as many as the mesh has; None means the first of all devices.

    Raises:
        ValueError: if the number of devices does not match.
    """
    chosen = list(requested if requested is not None else devices())
    count = prod(as_integers(op, "the shape of a mesh", shape))
    check(
        len(chosen) == count if requested is not None else len(chosen) >= count,
        lambda: (
            f"[{op}] the mesh must have as many positions as there are devices; got {tuple(shape)} "
            f"for {len(chosen)}. Fix: choose sizes whose product is {len(chosen)}, or start with "
            f"GPUFLOW_CPU_DEVICES={count}."
        ),
        ValueError,
    )
    grid = np.empty(count, object)
    grid[:] = chosen[:count]
    return grid.reshape(tuple(shape))


def planned_mesh(mesh: Mesh | AbstractMesh, platform: str) -> PlannedMesh:
    """The planned mesh with the axes of a mesh, for programs of a platform."""
    grid = np.empty(mesh.size, object)
    for index in range(mesh.size):
        grid[index] = PlannedDevice(platform, index, process.index, index)
    return PlannedMesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, mesh.axis_types)


class _MeshScope:
    """Context manager that restores the mesh before ``set_mesh``."""

    def __init__(self, before: Mesh | None) -> None:
        self._before = before

    def __enter__(self) -> None:
        return None

    def __exit__(self, *details: Any) -> None:
        config.update("mesh", self._before)


@explained
def set_mesh(mesh: Mesh | None) -> _MeshScope:
    """Set the current mesh, for PartitionSpecs, globally or for a ``with`` block.

    Args:
        mesh: a Mesh, or None to unset it.

    Returns:
        A context manager that restores the previous mesh at its end.

    Example:
        >>> mesh = gf.make_mesh((1,), ("x",))
        >>> with gf.set_mesh(mesh):
        ...     print(gf.get_mesh() == mesh)
        True
    """
    check(
        mesh is None or isinstance(mesh, Mesh),
        lambda: f"[set_mesh] mesh must be a Mesh; got {brief(mesh)}. Fix: make_mesh((1,), ('x',)).",
        ValueError,
    )
    before = config.mesh
    config.update("mesh", mesh)
    return _MeshScope(before)


_NO_MESH = Mesh(np.empty((), object), ())


def get_mesh() -> Mesh:
    """Return the current mesh of ``set_mesh`` or ``with mesh``; an empty one by default.

    Returns:
        A Mesh.

    Example:
        >>> gf.get_mesh().empty
        True
    """
    return config.mesh if isinstance(config.mesh, Mesh) else _NO_MESH


def get_abstract_mesh() -> AbstractMesh:
    """Return the axes of the current mesh; an empty AbstractMesh by default.

    Returns:
        An AbstractMesh.

    Example:
        >>> with gf.set_mesh(gf.make_mesh((1,), ("x",))):
        ...     print(gf.get_abstract_mesh().axis_names)
        ('x',)
    """
    return AbstractMesh((), ()) if config.mesh is None else config.mesh.abstract_mesh


@contextmanager
def use_abstract_mesh(mesh: AbstractMesh) -> Iterator[None]:
    """Set the axes for PartitionSpecs inside the block, for this thread.

    If the current mesh has axes of the same names and sizes, its devices are used. Otherwise there
    are no devices, and arrays cannot be placed.
    """
    current = config.mesh
    is_like = isinstance(current, Mesh) and current.shape_tuple == mesh.shape_tuple
    with config.override("mesh", current.update(axis_types=mesh.axis_types) if is_like else mesh):
        yield


def use_mesh(mesh: Mesh) -> AbstractContextManager[None]:
    """Set the mesh for PartitionSpecs inside the block, for this thread."""
    note_removed("jax.sharding.use_mesh", "jax.set_mesh(mesh)")
    return config.override("mesh", entered_mesh(mesh))
