"""cuDNN's C interface: the library, its constants and signatures, and its statuses.

cuDNN 9 has two interfaces for convolutions. The graph interface is the newer one, with hundreds of
attributes. This module uses the older one, ``cudnnConvolutionForward`` and related functions, which
9 deprecates and still has. It needs a fifth of the calls: it takes packed arrays of either layout,
groups and dilation, selects an algorithm without a measurement, reports whether that is
deterministic, and runs in a workspace of the caller's. It would end with version 10, so any version
but 9 is rejected. Not measured on a GPU.

Source: NVIDIA, cuDNN 9 headers: cudnn_graph.h, cudnn_ops.h, cudnn_cnn.h.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np

from gpuflow.base.dtypes import bfloat16
from gpuflow.base.installation import pip_install
from gpuflow.targets.cuda.blas.gemm import find_cublas
from gpuflow.targets.cuda.driver.faults import StatusError

VERSION = 9
_FILE = f"libcudnn.so.{VERSION}"
# cudnnDataType_t.
TYPES = {
    np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2, bfloat16: 9,
}  # fmt: skip
FLOAT, DOUBLE = 0, 1
# cudnnTensorFormat_t: channels first, channels last.
NCHW, NHWC = 0, 1
# cudnnConvolutionMode_t: taps are counted from the other end, or not.
CONVOLUTION, CROSS_CORRELATION = 0, 1
# cudnnMathType_t.
DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH = 0, 1, 2, 3
# cudnnDeterminism_t.
DETERMINISTIC = 1
# cudnnStatus_t comes in thousands: from here to there the call itself is not taken.
_FIRST_REFUSAL, _BEHIND_REFUSALS = 2000, 4000
_TEXT_BYTES = 512

_int, _size, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
_HEURISTIC = (_pointer,) * 5 + (_int, _pointer, _pointer)
_WORKSPACE = (*(_pointer,) * 5, _int, _pointer)
_CONVOLVE = (*(_pointer,) * 7, _int, _pointer, _size, _pointer, _pointer, _pointer)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (_pointer,),
    "cudnnSetStream": (_pointer, _pointer),
    "cudnnCreateTensorDescriptor": (_pointer,),
    "cudnnDestroyTensorDescriptor": (_pointer,),
    "cudnnSetTensorNdDescriptor": (_pointer, _int, _int, _pointer, _pointer),
    "cudnnCreateFilterDescriptor": (_pointer,),
    "cudnnDestroyFilterDescriptor": (_pointer,),
    "cudnnSetFilterNdDescriptor": (_pointer, _int, _int, _int, _pointer),
    "cudnnCreateConvolutionDescriptor": (_pointer,),
    "cudnnDestroyConvolutionDescriptor": (_pointer,),
    "cudnnSetConvolutionNdDescriptor": (
        _pointer, _int, _pointer, _pointer, _pointer, _int, _int,
    ),
    "cudnnSetConvolutionGroupCount": (_pointer, _int),
    "cudnnSetConvolutionMathType": (_pointer, _int),
    "cudnnGetConvolutionForwardAlgorithm_v7": _HEURISTIC,
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": _HEURISTIC,
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": _HEURISTIC,
    "cudnnGetConvolutionForwardWorkspaceSize": _WORKSPACE,
    "cudnnGetConvolutionBackwardDataWorkspaceSize": _WORKSPACE,
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": _WORKSPACE,
    "cudnnConvolutionForward": _CONVOLVE,
    "cudnnConvolutionBackwardData": _CONVOLVE,
    "cudnnConvolutionBackwardFilter": _CONVOLVE,
    "cudnnBackendCreateDescriptor": (_int, _pointer),
    "cudnnBackendDestroyDescriptor": (_pointer,),
    "cudnnBackendSetAttribute": (_pointer, _int, _int, _size, _pointer),
    "cudnnBackendGetAttribute": (_pointer, _int, _int, _size, _pointer, _pointer),
    "cudnnBackendFinalize": (_pointer,),
    "cudnnBackendExecute": (_pointer, _pointer, _pointer),
}  # fmt: skip


class Performance(ctypes.Structure):
    """A heuristic's data about an algorithm: cudnnConvolutionFwdAlgoPerf_t and its two variants."""

    _fields_ = (
        ("algo", _int),
        ("status", _int),
        ("time", ctypes.c_float),
        ("memory", _size),
        ("determinism", _int),
        ("mathType", _int),
        ("reserved", _int * 3),
    )


class OtherVersion(OSError):
    """A library was found, but not one whose interface is known here."""


def find_cudnn() -> str:
    """The path or name of the library.

    Raises:
        OSError: it is not installed.
    """
    with suppress(OSError):
        find_cublas("cublasLt")  # which cuDNN looks for by name
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        with suppress(Exception):  # its errors are of many classes; the system may have one
            path = pathfinder.load_nvidia_dynamic_lib("cudnn").abs_path
            if path:
                return path
    with suppress(OSError):
        ctypes.CDLL(_FILE)
        return _FILE
    raise OSError(
        f"[cudnn] {_FILE} must be installed; it was not found. Fix: "
        f"{pip_install('cudnn')}, or nvidia-cudnn-cu12 where CUDA or CuPy is of version 12."
    )


def version_of(library: Any) -> tuple[int, int, int]:
    """Major, minor and patch of a library."""
    library.cudnnGetVersion.restype = _size
    number = library.cudnnGetVersion()
    # Up to 8 the number was major * 1000 + minor * 100 + patch.
    unit = 10000 if number >= 10000 else 1000
    return number // unit, number % unit // 100, number % 100


def open_cudnn(path: str) -> Any:
    """The library with its functions' signatures.

    Raises:
        OtherVersion: it is not cuDNN 9.
        OSError, AttributeError: it cannot be loaded, or lacks a function.
    """
    library = ctypes.CDLL(path)
    version = version_of(library)
    if version[0] != VERSION:
        raise OtherVersion(
            f"[cudnn] {path} must be cuDNN {VERSION}, whose interface is known here; got "
            f"{'.'.join(map(str, version))}. Fix: {pip_install('cudnn')}, or set "
            "GPUFLOW_CUDNN=0."
        )
    for name, signature in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, _int
    library.cudnnGetErrorString.argtypes = (_int,)
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    library.cudnnGetLastErrorString.argtypes = (_pointer, _size)
    library.cudnnGetLastErrorString.restype = None
    return library


def is_refusal(status: int) -> bool:
    """Whether a status means that the library does not support this call: it may support others."""
    return _FIRST_REFUSAL <= status < _BEHIND_REFUSALS


def status_text(library: Any, status: int) -> str:
    """cuDNN's text of a status."""
    name = library.cudnnGetErrorString(status).decode()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    library.cudnnGetLastErrorString(ctypes.addressof(text), _TEXT_BYTES)
    more = text.value.decode(errors="replace").strip()
    return f"{name} ({status}): {more}" if more else f"{name} ({status})"


class CudnnError(StatusError):
    """A call of cuDNN failed.

    Attributes:
        status: cudnnStatus_t.
    """

    def __init__(self, library: Any, name: str, what: object, status: int) -> None:
        super().__init__(
            f"[cudnn] {name} must succeed for a {what}; got "
            f"{status_text(library, status)}. Fix: set GPUFLOW_CUDNN=0, which leaves it to "
            "gpuflow's own kernels, and report it; gpuflow doctor checks the library."
        )
        self.status = status


def checked(library: Any, what: object, name: str, *arguments: Any) -> None:
    """Call a function.

    Args:
        library: from ``open_cudnn``.
        what: the purpose of the call, for errors.
        name: name of the function.
        arguments: its own.

    Raises:
        CudnnError: it fails.
    """
    status = getattr(library, name)(*arguments)
    if status:
        raise CudnnError(library, name, what, status)
