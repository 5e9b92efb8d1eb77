"""``DeviceArray``: an array in GPU memory, as an address and a layout.

It is the data of Arrays on a GPU, and has only the interface that programs need. Kernels do the
arithmetic; libraries get their own array objects on the same memory.

Tests: tests/ops/test_device_programs.py, tests/runtime/test_array.py.
"""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np

from gpuflow.base.util import row_major_strides


class ArrayDevice(Protocol):
    """Interface of an array to the driver of its device."""

    def to_host(self, data: DeviceArray) -> np.ndarray:
        """The values, when they are computed."""
        ...

    def copy(self, data: DeviceArray) -> DeviceArray:
        """New row-major data with the same values."""
        ...


class DeviceArray:
    """A view of a block of device memory.

    Args:
        device: the driver of the device.
        shape: shape of the array.
        dtype: storage dtype of the elements.
        address: address of the first element.
        block: an object that keeps the memory alive.
        strides: strides in bytes; None means row-major without gaps.
    """

    __slots__ = ("address", "block", "device", "dtype", "shape", "strides")

    def __init__(
        self,
        device: ArrayDevice,
        shape: tuple[int, ...],
        dtype: np.dtype,
        address: int,
        block: Any,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.device, self.shape, self.dtype = device, shape, dtype
        self.address, self.block, self.strides = address, block, strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """The strides in bytes, for any layout."""
        if self.strides is not None:
            return self.strides
        return tuple(step * self.dtype.itemsize for step in row_major_strides(self.shape))

    @property
    def is_row_major(self) -> bool:
        """Whether the elements are row-major without gaps."""
        if self.strides is None:
            return True
        expected = row_major_strides(self.shape)
        axes = zip(self.shape, self.strides, expected, strict=True)
        itemsize = self.dtype.itemsize
        return 0 in self.shape or all(n == 1 or s == w * itemsize for n, s, w in axes)

    def reshape(self, shape: tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape; the array must be row-major."""
        assert self.is_row_major and prod(shape) == self.size, (self.shape, shape)
        return DeviceArray(self.device, shape, self.dtype, self.address, self.block)

    def __getitem__(self, index: tuple[Any, ...]) -> DeviceArray:
        """``x[k, ...]``: one element along the first axis."""
        k, others = index
        assert others is Ellipsis and 0 <= k < self.shape[0], index
        strides = self.byte_strides
        address = self.address + k * strides[0]
        inner = None if self.strides is None else strides[1:]
        return DeviceArray(self.device, self.shape[1:], self.dtype, address, self.block, inner)

    def item(self) -> bool | int | float | complex:
        """Wait for the only element, and return it as a Python scalar."""
        return self.device.to_host(self).item()

    def copy(self) -> DeviceArray:
        """New row-major data with the same values."""
        return self.device.copy(self)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.name}{list(self.shape)} at {self.address:#x})"


def strided(
    shape: tuple[int, ...],
    dtype: np.dtype,
    data: DeviceArray,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
) -> DeviceArray:
    """A view of the memory of data; ``offset`` and ``strides`` are in bytes."""
    return DeviceArray(data.device, shape, dtype, data.address + offset, data.block, strides)


def described(shape: tuple[int, ...], dtype: np.dtype) -> str:
    """A type as text, such as ``float32[2,3]``."""
    return f"{dtype.name}[{','.join(map(str, shape))}]"
