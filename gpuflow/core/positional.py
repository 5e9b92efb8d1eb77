"""PositionalSharding: devices in an array with the rank of the sharded array.

Tests: tests/parallel/test_shardings.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.base.removed import note_removed
from gpuflow.core.mesh import as_grid
from gpuflow.core.sharding import Sharding


class PositionalSharding(Sharding):
    """Sharding by an array of devices with the rank of the sharded array.

    JAX removed this class; it is available for scripts that still use it.

    Args:
        devices: an array or sequence of devices.
    """

    def __init__(self, devices: Any) -> None:
        note_removed("jax.sharding.PositionalSharding", "jax.sharding.NamedSharding(mesh, spec)")
        flat = devices if isinstance(devices, np.ndarray) else as_grid(list(devices))
        self._all: tuple[Any, ...] = tuple(flat.flat)
        # Each cell holds the ids of the devices that hold its shard.
        self._cells = np.empty(flat.shape, object)
        for device_id, position in enumerate(np.ndindex(*flat.shape)):
            self._cells[position] = (device_id,)

    def _with(self, cells: np.ndarray) -> PositionalSharding:
        sharding = PositionalSharding.__new__(PositionalSharding)
        sharding._all, sharding._cells = self._all, cells
        return sharding

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of shards along each dimension."""
        return self._cells.shape

    @property
    def ndim(self) -> int:
        """The rank of arrays with this sharding."""
        return self._cells.ndim

    def reshape(self, *shape: Any) -> PositionalSharding:
        """Reshape the array of devices.

        Raises:
            ValueError: if the size of the shape differs from the number of cells.
        """
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        try:
            cells = self._cells.reshape(sizes)
        except ValueError:
            raise ValueError(
                f"[PositionalSharding] the shape must have {self._cells.size} cells; got "
                f"{tuple(sizes)} for {self}. Fix: choose sizes whose product is "
                f"{self._cells.size}."
            ) from None
        return self._with(cells)

    def transpose(self, *axes: Any) -> PositionalSharding:
        """Transpose the array of devices."""
        return self._with(self._cells.transpose(*axes))

    @property
    def T(self) -> PositionalSharding:
        """The array of devices with reversed axes."""
        return self.transpose()

    def replicate(self, axis: int | None = None, keepdims: bool = True) -> PositionalSharding:
        """Replicate along an axis, or over all devices."""
        axes = range(self.ndim) if axis is None else (axis % self.ndim,)
        cells = self._cells
        for dim in sorted(axes, reverse=True):
            merged = np.empty(cells.shape[:dim] + cells.shape[dim + 1 :], object)
            for position in np.ndindex(*merged.shape):
                cells_along = cells[(*position[:dim], slice(None), *position[dim:])]
                merged[position] = tuple(device_id for cell in cells_along for device_id in cell)
            cells = np.expand_dims(merged, dim) if keepdims else merged
        return self._with(cells)

    @property
    def _devices(self) -> tuple[Any, ...]:
        return self._all

    def _counts(self, rank: int) -> tuple[int, ...]:
        check(
            rank == self.ndim,
            lambda: (
                f"[PositionalSharding] its rank must be that of the array; got {self.shape} for "
                f"{rank} dimensions. Fix: sharding.reshape(...)."
            ),
            ValueError,
        )
        return self._cells.shape

    def _chunks(self, rank: int) -> list[tuple[int, ...]]:
        del rank  # which _counts checks
        chunks: list[tuple[int, ...]] = [()] * len(self._all)
        for position in np.ndindex(*self._cells.shape):
            for device_id in self._cells[position]:
                chunks[device_id] = position
        return chunks

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
