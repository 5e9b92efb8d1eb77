"""Meshes of devices, as in jax.experimental.mesh_utils.

Tests: tests/parallel/test_shardings.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuflow.parallel.meshes import device_grid
from gpuflow.runtime.device import Device


def create_device_mesh(
    mesh_shape: Sequence[int],
    devices: Sequence[Device] | None = None,
    *,
    contiguous_submeshes: bool = False,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """Arrange devices in an array, in the order of their ids.

    Args:
        mesh_shape: shape of the array.
        devices: the devices to arrange; all by default. Their number must be the size of the mesh.
        contiguous_submeshes, allow_split_physical_axes: accepted for other topologies; no effect.

    Raises:
        ValueError: if the number of devices does not match.
    """
    del contiguous_submeshes, allow_split_physical_axes
    return device_grid("create_device_mesh", mesh_shape, devices)


def create_hybrid_device_mesh(
    mesh_shape: Sequence[int],
    dcn_mesh_shape: Sequence[int],
    devices: Sequence[Device] | None = None,
    *,
    process_is_granule: bool = True,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = False,
) -> np.ndarray:
    """Arrange devices of several processes; the slower part of each axis is over processes.

    Args:
        mesh_shape: number of devices of one process along each axis.
        dcn_mesh_shape: number of processes along each axis.
        devices: the devices to arrange; all by default.
        process_is_granule, should_sort_granules_by_key, allow_split_physical_axes: no effect.

    Raises:
        ValueError: if the number of devices does not match.
    """
    del process_is_granule, should_sort_granules_by_key, allow_split_physical_axes
    rank = len(mesh_shape)
    grid = device_grid("create_hybrid_device_mesh", (*dcn_mesh_shape, *mesh_shape), devices)
    order = [axis for k in range(rank) for axis in (k, rank + k)]
    sizes = [a * b for a, b in zip(dcn_mesh_shape, mesh_shape, strict=True)]
    return grid.transpose(order).reshape(sizes)
