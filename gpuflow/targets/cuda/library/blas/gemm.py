"""GEMM of cuBLAS through its C interface, with our stream and workspace.

CuPy's wrapper sets the stream before every call, which drops the workspace. It also refuses to run
during stream capture, and converts batched 16-bit floats. Not measured on a GPU.

Source: NVIDIA, cuBLAS documentation: cublasGemmEx, cublasGemmStridedBatchedEx, cublasSetWorkspace.

Tests: tests/targets/cuda/test_cuda_blas.py, tests/targets/cuda/test_on_cupy.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from gpuflow.base.dtypes import bfloat16
from gpuflow.base.installation import pip_install
from gpuflow.targets.cuda.runtime.driver.api import Gemm, Pool
from gpuflow.targets.cuda.runtime.driver.faults import StatusError

# cudaDataType_t; other dtypes are not supported.
_DATA_TYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.complex64): 4,
    np.dtype(np.complex128): 5,
    bfloat16: 14,
}
# cublasComputeType_t.
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77
# cublasMath_t: sums of 16-bit floats stay in float32, also between the splits of a sum.
_NO_REDUCED_SUMS = 16
_DEFAULT_ALGORITHM = -1
# Bytes of workspace by major compute capability: NVIDIA's recommendation for cublasSetWorkspace.
_WORKSPACE = {9: 32 << 20, 10: 32 << 20, 12: 12 << 20}
_SMALL_WORKSPACE = 4 << 20
_VERSIONS = (13, 12)  # major versions of the library, in order of preference
_MAX_SIZE = (1 << 31) - 1  # sizes are 32-bit integers

_int, _long, _pointer = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (_pointer,),
    "cublasSetStream_v2": (_pointer, _pointer),
    "cublasSetWorkspace_v2": (_pointer, _pointer, ctypes.c_size_t),
    "cublasSetMathMode": (_pointer, _int),
    "cublasGemmEx": (
        _pointer, _int, _int, _int, _int, _int, _pointer, _pointer, _int, _int,
        _pointer, _int, _int, _pointer, _pointer, _int, _int, _int, _int,
    ),
    "cublasGemmStridedBatchedEx": (
        _pointer, _int, _int, _int, _int, _int, _pointer, _pointer, _int, _int, _long,
        _pointer, _int, _int, _long, _pointer, _pointer, _int, _int, _long, _int, _int, _int,
    ),
}  # fmt: skip


def find_cublas(name: str = "cublas") -> str:
    """The path of the library, or a name by which ctypes loads it.

    Args:
        name: ``"cublas"``, or ``"cublasLt"``, which comes with it.

    Raises:
        OSError: if it is not installed.
    """
    try:
        from cuda import pathfinder
    except ImportError:
        pass
    else:
        with suppress(Exception):  # it raises many classes; the system may still have the library
            path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
            if path:
                return path
    files = [f"lib{name}.so.{version}" for version in _VERSIONS]
    for file in files:
        with suppress(OSError):
            ctypes.CDLL(file)
            return file
    raise OSError(
        f"[{name.lower()}] one of {', '.join(files)} must be installed; none was found. Fix: "
        f"{pip_install('cuda13')}, or its cuda12 where CUDA or CuPy is of version 12."
    )


def load_cublas(path: str) -> ctypes.CDLL:
    """Load the library and declare the signatures of its functions.

    Any call may wait for the GPU, so calls release the interpreter's lock
    (docs/design/0015-cuda-driver.md).
    """
    library = ctypes.CDLL(path)
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = signature, _int
    return library


def workspace_bytes(major: int) -> int:
    """Bytes of workspace for GPUs of a major compute capability."""
    return _WORKSPACE.get(major, _SMALL_WORKSPACE)


class CuBlas:
    """cuBLAS on one device and stream.

    Args:
        library: from ``load_cublas``.
        stream: default stream of products.
        pool: allocates the workspace.
        major: major compute capability of the device.
        lock: held during each call. The launches of a call share the workspace, so launches of
            other threads must not come between them.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        stream: int,
        pool: Pool,
        major: int,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._library, self._stream, self._lock = library, stream, lock
        self._workspace_bytes = workspace_bytes(major)
        self._workspace = pool.malloc(self._workspace_bytes)
        self._handles: dict[int, int | None] = {}  # by stream
        self.prepare(stream)

    def prepare(self, stream: int) -> None:
        """Create the handle for a stream, on which ``gemm`` may then run.

        All handles share one workspace. That is safe because other streams only record work, which
        is replayed on the stream of products.
        """
        if stream in self._handles:
            return
        library, pointer = self._library, ctypes.c_void_p()
        _check("create", library.cublasCreate_v2(ctypes.byref(pointer)))
        handle = pointer.value
        # In this order, as setting the stream resets the workspace.
        _check("set stream", library.cublasSetStream_v2(handle, stream))
        workspace = self._workspace.ptr
        _check(
            "set workspace", library.cublasSetWorkspace_v2(handle, workspace, self._workspace_bytes)
        )
        _check("set mode", library.cublasSetMathMode(handle, _NO_REDUCED_SUMS))
        self._handles[stream] = handle

    def gemm(self, gemm: Gemm) -> Callable[..., None] | None:
        """A function of the addresses of left, right and out; None if a size exceeds 32 bits.

        Its optional fourth argument is another stream, for which ``prepare`` must have been called.
        It returns while the product may still run.

        Args:
            gemm: the operation; its dtypes must be among ``_DATA_TYPES``.
        """
        sizes = (gemm.m, gemm.n, gemm.k, gemm.left_leading, gemm.right_leading, gemm.count)
        if max(sizes) > _MAX_SIZE:
            return None
        data_type, out_type = _DATA_TYPES[gemm.dtype], _DATA_TYPES[gemm.out_dtype]
        one, zero = _scalars(gemm.dtype)
        component_bytes = gemm.dtype.itemsize // _components(gemm.dtype)
        compute_type = _COMPUTE_64F if component_bytes == 8 else _COMPUTE_32F
        if gemm.reduced:
            compute_type = _COMPUTE_32F_FAST_TF32
        # Arguments before the operands, and after the output. cuBLAS is column-major and sees
        # transposed matrices: out' = right' left'.
        leading = (
            int(gemm.right_transposed),
            int(gemm.left_transposed),
            gemm.n,
            gemm.m,
            gemm.k,
            ctypes.byref(one),
        )
        handles, compute_stream, lock = self._handles, self._stream, self._lock
        trailing, operation = (compute_type, _DEFAULT_ALGORITHM), "a product of matrices"
        beta = ctypes.byref(zero)
        if gemm.count == 1:
            gemm_ex = self._library.cublasGemmEx
            right_leading, left_leading = gemm.right_leading, gemm.left_leading

            def multiply(left: int, right: int, out: int, stream: int = compute_stream) -> None:
                with lock:
                    status = gemm_ex(
                        handles[stream],
                        *leading,
                        right,
                        data_type,
                        right_leading,
                        left,
                        data_type,
                        left_leading,
                        beta,
                        out,
                        out_type,
                        gemm.n,
                        *trailing,
                    )
                if status:
                    _check(operation, status)

            return multiply
        batched_gemm_ex = self._library.cublasGemmStridedBatchedEx

        def multiply_all(left: int, right: int, out: int, stream: int = compute_stream) -> None:
            with lock:
                status = batched_gemm_ex(
                    handles[stream],
                    *leading,
                    right,
                    data_type,
                    gemm.right_leading,
                    gemm.right_step,
                    left,
                    data_type,
                    gemm.left_leading,
                    gemm.left_step,
                    beta,
                    out,
                    out_type,
                    gemm.n,
                    gemm.out_step,
                    gemm.count,
                    *trailing,
                )
            if status:
                _check(operation, status)

        return multiply_all


def _components(dtype: np.dtype) -> int:
    """Real components of an element: 2 for complex dtypes, else 1."""
    return 2 if dtype.kind == "c" else 1


def _scalars(dtype: np.dtype) -> tuple[Any, Any]:
    """alpha = 1 and beta = 0, in the dtype of the accumulator."""
    real = ctypes.c_double if dtype.itemsize // _components(dtype) == 8 else ctypes.c_float
    scalar_type = real * _components(dtype)
    return scalar_type(1.0), scalar_type(0.0)


def _check(operation: str, status: int) -> None:
    if status:
        raise StatusError(
            f"[cublas] {operation} must succeed; got status {status} (cublasStatus_t). "
            "Fix: look the number up in cuBLAS's documentation; gpuflow doctor checks the library."
        )
