"""Array methods for memory, devices and exchange with other libraries.

Tests: tests/test_stored_values.py, tests/numpy/test_numpy_array_api.py.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.sharding import SingleDeviceSharding
from gpuflow.core.trace import Tracer
from gpuflow.core.types import DeviceLike
from gpuflow.numpy.creation import asarray, placed
from gpuflow.numpy.promotion import strong
from gpuflow.runtime import host_exchange
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, default_device

if TYPE_CHECKING:
    from gpuflow.targets.cuda.runtime.driver import exchange
else:
    exchange = LazyModule("gpuflow.targets.cuda.runtime.driver.exchange")


def dlpack(
    self: Any,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The array as a DLPack capsule, which shares its memory: do not write to it.

    Args:
        stream: the reader's stream on a GPU; must be None for host memory.
        max_version, dl_device, copy: as in the array API standard. An array on a GPU is copied to
            the host for a ``dl_device`` of (1, 0).

    Raises:
        BufferError: if the format lacks the dtype, or the array is on another device.
        ValueError: if a stream is given on the CPU.
    """
    dtype = aval_of(self).dtype
    on_gpu = dlpack_device(self)[0] == host_exchange.CUDA and dl_device != host_exchange.CPU
    is_known = not dtypes.is_extended(dtype) and host_exchange.is_known(dtype)
    check(
        is_known and (host_exchange.is_native(dtype) or not on_gpu),
        lambda: (
            f"[dlpack] the dtype must be one of NumPy's own, or on the host bfloat16 or one of "
            f"8 bits; got {aval_of(self)}. Fix: x.astype(jnp.float32)."
        ),
        BufferError,
    )
    if on_gpu:
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
        return exchange.exported(self, {**options, "copy": copy})
    check(
        stream is None,
        lambda: f"[dlpack] stream must be None on the CPU; got {stream!r}. Fix: leave it out.",
        ValueError,
    )
    check(
        dl_device in (None, host_exchange.CPU),
        lambda: (
            f"[dlpack] dl_device must be (1, 0), the host; got {dl_device}. "
            "Fix: jax.device_put first."
        ),
        BufferError,
    )
    host = np.asarray(self)
    # NumPy exports read-only memory only to readers that support the read-only flag.
    shared = host if max_version is not None and max_version >= (1, 0) else self.data
    if max_version is None:
        return host_exchange.exported(shared)
    return host_exchange.exported(shared, max_version=max_version, dl_device=dl_device, copy=copy)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Array:
    """Convert an array of another library, which must support DLPack.

    Memory is shared if possible: writes by the other library then change the array.

    Args:
        x: an object with ``__dlpack__``, in host or GPU memory.
        device: the device of the result; by default arrays stay on their GPU, and other data go to
            the default device.
        copy: True never shares memory; False shares it or raises; None shares it if possible.

    Returns:
        An array of the shape of ``x`` and of its dtype, narrowed to 32 bits unless x64 is enabled.

    Raises:
        TypeError: if ``x`` does not support DLPack.
        ValueError: if ``device`` is not a Device, or ``copy`` is False and the memory cannot be
            shared.

    Example:
        >>> jnp.from_dlpack(np.arange(3, dtype=np.float32), copy=True)
        Array([0., 1., 2.], dtype=float32)
    """
    if type(x) is Array and copy is not True:
        return placed("from_dlpack", strong(x), device)
    if host_exchange.is_on_gpu(x):
        return _from_gpu(x, device, copy)
    check(
        hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"),
        lambda: (
            "[from_dlpack] the array must have __dlpack__ and __dlpack_device__; got "
            f"{type(x).__name__}. Fix: jnp.asarray(x)."
        ),
    )
    host = host_exchange.imported(x)
    target = default_device() if device is None else device
    placed("from_dlpack", host, None if isinstance(target, Device) else target)
    why = _why_not_shared(host, target)
    check(
        copy is not False or why is None,
        lambda: (
            f"[from_dlpack] the memory cannot be shared: {why}; got {host.dtype} of shape "
            f"{host.shape}. Fix: copy=None."
        ),
        ValueError,
    )
    if copy or why is not None:
        return placed("from_dlpack", asarray(host), device)
    array = Array(target.driver.from_host(host), ShapedArray(host.shape, host.dtype), target)
    # A second reference to the memory, for as long as the array lives, tells donation that
    # somebody else sees it.
    weakref.finalize(array, _forget, host.view()).atexit = False
    return array


def _from_gpu(x: Any, device: Any, copy: bool | None) -> Any:
    """``from_dlpack`` of an object in the memory of a GPU."""
    array = exchange.imported(x, copy)
    check(
        array is not None and (copy is not False or device in (None, array.device)),
        lambda: (
            "[from_dlpack] the memory cannot be shared: it must be row-major without gaps, of "
            f"a dtype that is not narrowed, and on the device; got {x.dtype} of shape {x.shape} "
            "for "
            f"{device}. Fix: copy=None."
        ),
        ValueError,
    )
    return placed("from_dlpack", array, device)


def _forget(view: np.ndarray) -> None:
    """Callback when an array that shared its memory dies."""
    del view


def _why_not_shared(host: np.ndarray, device: Device) -> str | None:
    """The reason why an array on ``device`` cannot share the memory of ``host``, or None."""
    if host.dtype != dtypes.canonicalize(host.dtype):
        return "64-bit numbers are narrowed without enable_x64"
    if not (host.flags.c_contiguous and host.flags.aligned):
        return "its elements must lie in row-major order without gaps"
    if device.platform != "cpu":
        return f"it must be copied to {device}"
    return None


def dlpack_device(self: Any) -> tuple[int, int]:
    """DLPack's device type (1 for the CPU, 2 for CUDA) and the device id."""
    device_id = host_exchange.number_of(self.device) if type(self) is Array else None
    return (1, 0) if device_id is None else (host_exchange.CUDA, device_id)


def cuda_array_interface(self: Any) -> dict[str, Any]:
    """Address and layout of an array on a GPU, for CuPy, Numba and others.

    Raises:
        AttributeError: if it is not on a GPU, or the interface lacks the dtype.
    """
    is_known = aval_of(self).dtype.kind in "biufc"
    if not is_known or dlpack_device(self)[0] != host_exchange.CUDA:
        raise AttributeError(
            "[__cuda_array_interface__] the array must be on a GPU, of a dtype of NumPy's own; got "
            f"{aval_of(self)}. Fix: jax.device_put(x, jax.devices('cuda')[0])."
        )
    return exchange.interface(self)


def to_device(self: Any, device: DeviceLike, *, stream: Any = None) -> Array:
    """Copy the array to another device.

    Raises:
        ValueError: if the device is invalid, or a stream is given.
    """
    check(
        stream is None,
        lambda: f"[to_device] stream must be None; got {stream!r}. Fix: leave it out.",
        ValueError,
    )
    return placed("to_device", self, device)


def on_device_size_in_bytes(self: Any) -> int:
    """The size of the elements in bytes."""
    return aval_of(self).nbytes


def platform(self: Any) -> str:
    """The platform of the array's device, such as ``cpu``."""
    return self.device.platform


def copy_to_host_async(self: Any) -> None:
    """Start to copy to the host; CPU arrays need no copy."""
    del self


def is_ready(self: Any) -> bool:
    """Return whether the values are computed, so that ``block_until_ready`` would not wait."""
    return not self.is_deleted()


def committed(self: Any) -> bool:
    """Whether the array was explicitly placed on its device; uncommitted operands follow it."""
    if isinstance(self, Tracer):
        return False
    return self.device.is_committed or not isinstance(self.sharding, SingleDeviceSharding)


def is_fully_addressable(self: Any) -> bool:
    """Whether all shards belong to this process; True for traced arrays."""
    return isinstance(self, Tracer) or self.sharding.is_fully_addressable


def is_fully_replicated(self: Any) -> bool:
    """Whether every device of the array has the whole array; True for traced arrays."""
    return isinstance(self, Tracer) or self.sharding.is_fully_replicated
