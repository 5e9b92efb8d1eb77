"""Methods of arrays that concern memory and devices, and other libraries."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.trace import Tracer
from gpuflow.numpy.creation import asarray, placed
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, default_device


def dlpack(
    self: Any, *, stream: Any = None, max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None, copy: bool | None = None,
) -> Any:  # fmt: skip
    """The array as a DLPack capsule, which shares its memory: do not write to it.

    Args:
        stream: must be None: the array is in the memory of the host.
        max_version, dl_device, copy: as the array API standard says.

    Raises:
        BufferError: a dtype that the format lacks.
    """
    check(
        stream is None,
        lambda: f"[dlpack] stream must be None on the CPU; got {stream!r}. Fix: leave it out.",
        ValueError,
    )
    host = np.asarray(self)
    check(
        host.dtype.kind in "biufc" and not dtypes.is_extended(aval_of(self).dtype),
        lambda: f"[dlpack] the dtype must be one of NumPy's own; got {aval_of(self)}. "
        "Fix: x.astype(jnp.float32).",
        BufferError,
    )
    # NumPy refuses to export what it may not write to unless the reader can be told so.
    shared = host if max_version is not None and max_version >= (1, 0) else self.data
    if max_version is None:
        return shared.__dlpack__()
    return shared.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of another library, which must speak DLPack.

    Where it can, the array shares the memory: who writes to it changes the array.

    Args:
        x: an object with ``__dlpack__``, in the memory of the host.
        device: where to put it, by default the default device.
        copy: True: never share; False: share, or raise; None: share where that is possible.

    Raises:
        TypeError: ``device`` is no Device.
        ValueError: with ``copy=False``, memory that cannot be shared.
    """
    if type(x) is Array and copy is not True:
        return placed("from_dlpack", x, device)
    host = np.from_dlpack(x)  # pyright: ignore[reportArgumentType]
    place = default_device() if device is None else device
    placed("from_dlpack", host, None if isinstance(place, Device) else place)
    why = _why_not_shared(host, place)
    check(
        copy is not False or why is None,
        lambda: f"[from_dlpack] the memory cannot be shared: {why}; got {host.dtype} of shape "
        f"{host.shape}. Fix: copy=None.",
        ValueError,
    )
    if copy or why is not None:
        return placed("from_dlpack", asarray(host), device)
    array = Array(place.driver.from_host(host), ShapedArray(host.shape, host.dtype), place)
    # A second reference to the memory, for as long as the array lives, tells donation that
    # somebody else sees it.
    weakref.finalize(array, _forget, host.view()).atexit = False
    return array


def _forget(view: np.ndarray) -> None:
    """What is left to do when an array dies that shared its memory."""
    del view


def _why_not_shared(host: np.ndarray, device: Device) -> str | None:
    """What keeps an array on ``device`` from having the memory of ``host``; None: nothing does."""
    if host.dtype != dtypes.canonicalize(host.dtype):
        return "64-bit numbers are narrowed without enable_x64"
    if not (host.flags.c_contiguous and host.flags.aligned):
        return "its elements must lie in row-major order without gaps"
    if device.platform != "cpu":
        return f"it must be copied to {device}"
    return None


def dlpack_device(self: Any) -> tuple[int, int]:
    """The kind of device in DLPack's numbers, 1 for the CPU, and which one."""
    del self
    return (1, 0)


def to_device(self: Any, device: Any, *, stream: Any = None) -> Any:
    """The array on another device.

    Raises:
        TypeError: what is no device.
        ValueError: a stream.
    """
    check(
        stream is None,
        lambda: f"[to_device] stream must be None; got {stream!r}. Fix: leave it out.",
        ValueError,
    )
    return placed("to_device", self, device)


def on_device_size_in_bytes(self: Any) -> int:
    """How much memory the elements take."""
    return aval_of(self).nbytes


def copy_to_host_async(self: Any) -> None:
    """Start copying to the host; on the CPU the array is there already."""
    del self


def is_ready(self: Any) -> bool:
    """Whether the values are computed: ``block_until_ready`` would not wait."""
    return not self.is_deleted()


def committed(self: Any) -> bool:
    """Whether computations with the array must run on its device; they may run anywhere."""
    del self
    return False


def is_fully_addressable(self: Any) -> bool:
    """Whether all parts are this process's; a traced array has no parts."""
    return isinstance(self, Tracer) or self.sharding.is_fully_addressable


def is_fully_replicated(self: Any) -> bool:
    """Whether every device that has the array has all of it; a traced array has no parts."""
    return isinstance(self, Tracer) or self.sharding.is_fully_replicated
