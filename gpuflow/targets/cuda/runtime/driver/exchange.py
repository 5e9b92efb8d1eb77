"""Zero-copy exchange of GPU arrays with other libraries: DLPack, and the CUDA Array Interface.

Both directions of DLPack go through CuPy's arrays. CuPy orders streams by events; our compute
stream is its current one during the exchange.

Source: DLPack's Python specification, dlpack.__dlpack__ and __dlpack_device__; Numba's
documentation of the CUDA Array Interface, version 3.

Tests: tests/targets/cuda/test_on_cupy.py.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import local_devices
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.runtime.host_exchange import Capsule
from gpuflow.targets.cuda.runtime.driver.device_memory import MemoryBlock


def exported(x: Array, options: dict[str, Any]) -> object:
    """A DLPack capsule, which owns a reference to the memory of an array.

    Args:
        x: an array, whose dtype CuPy must have.
        options: the keyword arguments of ``__dlpack__``.
    """
    driver: Any = x.device.driver
    driver.api.activate()
    with driver.api.library(driver.compute):
        return driver.api.view(x.data).__dlpack__(**options)


def interface(x: Array) -> dict[str, Any]:
    """The CUDA Array Interface of an array; readers must wait for its ``stream``."""
    data: Any = x.data
    return {
        "version": 3,
        "shape": data.shape,
        "typestr": data.dtype.str,
        "data": (data.address if data.size else 0, False),
        "strides": None if data.is_row_major else data.byte_strides,
        "stream": data.device.compute,
    }


def imported(x: Any, copy: bool | None) -> Array | None:
    """Import another library's array in place; None if ``copy=False`` is impossible.

    Args:
        x: an object with ``__dlpack__``, in the memory of a GPU.
        copy: True: never share memory; False: share, or return None; None: share if possible.
    """
    device = local_devices("cuda")[x.__dlpack_device__()[1]]  # by CUDA's index
    driver: Any = device.driver
    driver.api.activate()
    # The owner makes our stream wait for its own.
    capsule = x.__dlpack__(stream=driver.compute)
    with driver.api.library(driver.compute):
        external = driver.api.xp.from_dlpack(Capsule(capsule, x.__dlpack_device__()))
    dtype = dtypes.canonicalize(external.dtype)
    shares = copy is not True and dtype == external.dtype and external.flags.c_contiguous
    if copy is False and not shares:
        return None
    block = _block(driver, external)
    aval = ShapedArray(external.shape, dtype)
    if not shares:
        return Array(_copied(driver, external, dtype), aval, device)
    array = Array(DeviceArray(driver, aval.shape, dtype, block.address, block), aval, device)
    # A second reference to the block, as long as the array lives, prevents the donation of memory
    # that others see.
    weakref.finalize(array, _drop_reference, block).atexit = False
    return array


def _copied(driver: Any, external: Any, dtype: np.dtype) -> DeviceArray:
    """Copy the elements to a new array of ``dtype``."""
    out = driver.empty(external.shape, dtype)
    if external.size:
        with driver.api.library(driver.compute):
            driver.api.view(out)[...] = external
    return out


def _block(driver: Any, external: Any) -> MemoryBlock:
    """A block on imported memory, which is freed after our stream's work at that time."""
    block = MemoryBlock(driver.memory, external.data, external.nbytes)
    driver.memory.used += external.nbytes
    driver.memory.record_stream(block, driver.compute)
    return block


def _drop_reference(block: MemoryBlock) -> None:
    """Drop the second reference to imported memory, when its array dies."""
    del block
