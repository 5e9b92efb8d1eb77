"""Sharing memory with other libraries: DLPack, under the names of jax.dlpack.

Tests: tests/numpy/test_numpy_exchange.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.names import public_names, publish
from gpuflow.base.removed import note_removed
from gpuflow.numpy import exports
from gpuflow.numpy.arguments import as_array
from gpuflow.runtime import host_exchange


def from_dlpack(external_array: Any, device: Any = None, copy: bool | None = None) -> Any:
    """Convert an array of another library; memory is shared if possible.

    Args:
        external_array: an object with ``__dlpack__``, in host or GPU memory; or a capsule of host
            memory.
        device: the device of the result; by default arrays stay on their GPU, and other data go to
            the default device.
        copy: True never shares memory; False shares it or raises; None shares it if possible.

    Raises:
        ValueError: if ``device`` is not a Device.
        ValueError: if ``copy`` is False and the memory cannot be shared.
    """
    if not hasattr(external_array, "__dlpack__"):
        external_array = host_exchange.Capsule(external_array)
    return exports.from_dlpack(external_array, device=device, copy=copy)


def to_dlpack(x: Any) -> Any:
    """Return the array as a DLPack capsule that shares its memory: do not write to it.

    Raises:
        BufferError: if the format does not support the dtype.
    """
    note_removed("jax.dlpack.to_dlpack", "pass the array itself, which has __dlpack__")
    return exports.dlpack(as_array("to_dlpack", x))


def is_supported_dtype(dtype: Any) -> bool:
    """Return whether ``dtype`` can be shared: bools, NumPy's numbers, bfloat16 and float8."""
    return not dtypes.is_extended(dtype) and host_exchange.is_known(np.dtype(dtype))


publish(globals(), "dlpack", public_names(globals(), __name__))
