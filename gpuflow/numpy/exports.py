"""Methods of arrays that concern memory and devices, and other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.numpy.creation import placed


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


def is_whole(self: Any) -> bool:
    """Whether every device that has the array has all of it; arrays live on one device."""
    del self
    return True
