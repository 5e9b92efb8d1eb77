"""DLPack exchange of host memory, including bfloat16 and 8-bit floats.

NumPy creates and reads the capsules, but does not support floats of ml_dtypes. These are exchanged
as unsigned integers of the same size, and the dtype fields of the capsule are patched.

Source: dlpack.h, version 1.1: DLTensor, DLManagedTensor, DLManagedTensorVersioned, DLDataTypeCode.

Tests: tests/numpy/test_numpy_exchange.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.runtime.device import Device

CPU = (1, 0)  # kDLCPU
CUDA = 2  # kDLCUDA
_UINT = 1
_CODES = {
    np.dtype(getattr(ml_dtypes, name)): code
    for name, code in (
        ("bfloat16", 4),
        ("float8_e3m4", 7),
        ("float8_e4m3", 8),
        ("float8_e4m3b11fnuz", 9),
        ("float8_e4m3fn", 10),
        ("float8_e4m3fnuz", 11),
        ("float8_e5m2", 12),
        ("float8_e5m2fnuz", 13),
        ("float8_e8m0fnu", 14),
    )
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_NUMPY = frozenset(map(np.dtype, "?bhilqBHILQefdFD"))  # dtypes that NumPy exports itself
# DLTensor: data pointer (8 bytes), device (8), ndim (4), then code, bits and lanes of the dtype.
_DTYPE_OFFSET = 20
# The versioned struct has version, context, deleter and flags before it, of 8 bytes each.
_FORMS = ((b"dltensor_versioned", 32), (b"dltensor", 0))
_NEWEST = (1, 0)


def _api(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_named = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


def number_of(device: Device) -> int | None:
    """CUDA's ordinal of a device; None for host memory, which simulated GPUs use too."""
    api = getattr(device.driver, "api", None)
    return getattr(api, "number", None)


def is_on_gpu(x: Any) -> bool:
    """Whether another library's array is in the memory of a GPU."""
    if isinstance(x, np.ndarray) or not hasattr(type(x), "__dlpack_device__"):
        return False
    return int(x.__dlpack_device__()[0]) == CUDA


def is_known(dtype: Any) -> bool:
    """Whether capsules support ``dtype``."""
    return is_native(dtype) or dtype in _CODES


def is_native(dtype: Any) -> bool:
    """Whether ``dtype`` is one of NumPy's own numeric dtypes."""
    return dtype.kind in "biufc" and dtype.isbuiltin == 1


def exported(host: np.ndarray, **options: Any) -> Any:
    """Create a capsule on the memory of an array.

    Args:
        host: an array of a dtype for which ``is_known`` holds.
        options: options of ``__dlpack__``.

    Raises:
        BufferError: if NumPy does not support the options.
    """
    code = _CODES.get(host.dtype)
    if code is None:
        return host.__dlpack__(**options)
    capsule = host.view(f"u{host.dtype.itemsize}").__dlpack__(**options)
    _dtype_fields(capsule)[0] = code
    return capsule


def imported(x: Any) -> np.ndarray:
    """Another library's array as a NumPy array on the same memory; read-only if the array is.

    Args:
        x: an object with ``__dlpack__``, in the memory of the host.

    Raises:
        BufferError: if the dtype is not supported.
    """
    if type(x) is np.ndarray and (x.dtype in _CODES or x.dtype in _NUMPY):
        return x.view()
    try:
        capsule = x.__dlpack__(max_version=_NEWEST)
    except TypeError:  # a library that predates versioned capsules
        capsule = x.__dlpack__()
    fields = _dtype_fields(capsule)
    dtype = _DTYPES.get(fields[0])
    if dtype is None or fields[1] != 8 * dtype.itemsize:
        return np.from_dlpack(Capsule(capsule))  # pyright: ignore[reportArgumentType]
    fields[0] = _UINT
    return np.from_dlpack(Capsule(capsule)).view(dtype)  # pyright: ignore[reportArgumentType]


class Capsule:
    """Exporter of an existing capsule, usable once.

    Attributes:
        capsule: the capsule.
        device: DLPack's type and id of its device.
    """

    def __init__(self, capsule: Any, device: tuple[int, int] = CPU) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        del options
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def _dtype_fields(capsule: Any) -> ctypes.Array[ctypes.c_uint8]:
    """The type code and bit width of a capsule's dtype, as two bytes that can be written."""
    for name, header_bytes in _FORMS:
        if _is_named(capsule, name):
            address = _pointer(capsule, name) + header_bytes + _DTYPE_OFFSET
            return (ctypes.c_uint8 * 2).from_address(address)
    raise BufferError(
        f"[from_dlpack] the capsule must be new, of the kind that __dlpack__ returns; got "
        f"{capsule!r}. Fix: pass the array itself."
    )
