"""cublasLt: products with epilogues, through nvmath's bindings or the C interface.

Both have the same functions with the same arguments, and this module works with either. Not
measured on a GPU. Therefore ``epilogue_check`` compares each epilogue with NumPy before its first
use, and excludes those that differ.

Source: NVIDIA, cuBLAS documentation: cublasLtMatmul, cublasLtMatmulDescAttributes_t,
cublasLtEpilogue_t, cublasLtMatmulPreferenceAttributes_t, cublasLtMatmulHeuristicResult_t.

Tests: tests/targets/cuda/test_cuda_blas_lt.py, tests/targets/cuda/test_gpu_epilogues.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base.dtypes import bfloat16
from gpuflow.core.epilogues import Epilogue
from gpuflow.targets.cuda.library.blas.gemm import find_cublas
from gpuflow.targets.cuda.runtime.driver.api import Gemm
from gpuflow.targets.cuda.runtime.driver.faults import StatusError

# cudaDataType_t and cublasComputeType_t.
_DATA_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 2, bfloat16: 14}
_FLOAT32, _COMPUTE_32F, _COMPUTE_32F_FAST_TF32 = 0, 68, 77
# cublasLtMatmulDescAttributes_t, and the bytes of each attribute.
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _AUX_POINTER, _AUX_LD = 3, 4, 7, 8, 11, 12
# cublasLtMatmulPreferenceAttributes_t.
_MAX_WORKSPACE_BYTES, _REDUCTION_SCHEMES, _MIN_ALIGNMENTS = 1, 3, (5, 6, 7, 8)
# cublasLtReductionScheme_t: sums of 16-bit floats stay in float32.
_INPLACE_OR_FLOAT32 = 1 | 2
# cublasLtEpilogue_t.
_ACTIVATIONS = {"": 0, "relu": 2, "gelu": 32}
_DERIVATIVES = {"relu": 136, "gelu": 192}
_WITH_BIAS, _WITH_AUX, _WITH_SUMS = 4, 128, 16
_RESULT_BYTES = 96  # size of cublasLtMatmulHeuristicResult_t, which begins with the algorithm
_MAX_ALIGNMENT = 256  # bytes; larger alignments of addresses count as this one
# Leading dimensions of relu's aux, a mask of bits, must be multiples of it (see ``aux_type``).
_MASK_GROUP = 128
_Algorithm = ctypes.Array[ctypes.c_uint64]  # a cublasLtMatmulHeuristicResult_t

_int, _long, _size, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p
# Parameters of functions whose first one returns a handle, without that one; and of the others.
_CREATING: dict[str, tuple[Any, ...]] = {
    "create": (),
    "matmul_desc_create": (_int, _int),
    "matrix_layout_create": (_int, ctypes.c_uint64, ctypes.c_uint64, _long),
    "matmul_preference_create": (),
}
_OTHER: dict[str, tuple[Any, ...]] = {
    "matmul_desc_destroy": (_pointer,),
    "matrix_layout_destroy": (_pointer,),
    "matmul_preference_destroy": (_pointer,),
    "matmul_desc_set_attribute": (_pointer, _int, _pointer, _size),
    "matmul_preference_set_attribute": (_pointer, _int, _pointer, _size),
    "matmul_algo_get_heuristic": (_pointer,) * 7 + (_int, _pointer, _pointer),
    "matmul": (_pointer,) * 14 + (_size, _pointer),
}


class CtypesLt:
    """The functions of ``nvmath.bindings.cublasLt`` that this module uses, over the C library.

    Args:
        library: the C library.

    Raises:
        AttributeError: if a function is missing.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, signature in _CREATING.items():
            setattr(self, name, _creating(library, name, signature))
        for name, signature in _OTHER.items():
            setattr(self, name, _checked(_function(library, name, signature), name))


def _function(library: ctypes.CDLL, name: str, signature: tuple[Any, ...]) -> Callable[..., int]:
    suffix = "".join(segment.capitalize() for segment in name.split("_"))
    function = getattr(library, f"cublasLt{suffix}")
    function.argtypes, function.restype = signature, _int
    return function


def _checked(function: Callable[..., int], name: str) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        status = function(*arguments)
        if status:
            raise StatusError(
                f"[cublaslt] {name} must succeed; got status {status} (cublasStatus_t). "
                "Fix: set GPUFLOW_CUDA_EPILOGUES=0, and report it."
            )

    return call


def _creating(library: ctypes.CDLL, name: str, signature: tuple[Any, ...]) -> Callable[..., int]:
    call = _checked(_function(library, name, (_pointer, *signature)), name)

    def create(*arguments: Any) -> int:
        handle = ctypes.c_void_p()
        call(ctypes.byref(handle), *arguments)
        return handle.value or 0

    return create


def load_cublaslt() -> ModuleType | CtypesLt:
    """Load nvmath's bindings if they are installed, else the C library.

    Raises:
        OSError, AttributeError: if neither is available.
    """
    with suppress(Exception):  # incomplete installations raise many classes
        from nvmath.bindings import cublasLt

        cublasLt.get_version()
        return cublasLt
    return CtypesLt(ctypes.CDLL(find_cublas("cublasLt")))


class CuBlasLt:
    """cublasLt on one device.

    Args:
        calls: functions of the library, from ``load_cublaslt``.
        workspace: address and size in bytes of the memory that products use.
        lock: held during each product, as products share pointers and the workspace.
    """

    def __init__(
        self,
        calls: ModuleType | CtypesLt,
        workspace: tuple[int, int],
        lock: AbstractContextManager[Any],
    ) -> None:
        self.calls, self.workspace, self.lock = calls, workspace, lock
        self.handle: int = calls.create()

    def gemm_with(self, gemm: Gemm, epilogue: Epilogue, stream: int) -> LtProduct | None:
        """Bind a product with an epilogue to a stream; None if the library does not support it."""
        if gemm.dtype not in _DATA_TYPES or gemm.dtype != gemm.out_dtype or gemm.count != 1:
            return None
        try:
            product = LtProduct(self, gemm, epilogue, stream)
            product.algorithm((16,) * 5)
        except Exception:  # nvmath has an error class of its own
            return None
        return product


class LtProduct:
    """A product with an epilogue, as a function of addresses.

    Arguments of a call are the addresses of left, right, out, bias and aux (0 for unused ones), and
    optionally another stream. Calls are thread-safe. cublasLt is column-major and sees transposed
    matrices: out' = right' left'.

    Args:
        lt: the library.
        gemm, epilogue: the operation.
        stream: default stream of calls.
    """

    def __init__(self, lt: CuBlasLt, gemm: Gemm, epilogue: Epilogue, stream: int) -> None:
        self._lt, self._calls, self._stream = lt, lt.calls, stream
        self._has_bias, self._has_aux = epilogue.bias, epilogue.keeps or epilogue.gradient
        data_type, m, n, k = _DATA_TYPES[gemm.dtype], gemm.m, gemm.n, gemm.k
        compute = _COMPUTE_32F_FAST_TF32 if gemm.reduced else _COMPUTE_32F
        self._desc = self._calls.matmul_desc_create(compute, _FLOAT32)
        self._set_attribute(_TRANSA, ctypes.c_int32(gemm.right_transposed))
        self._set_attribute(_TRANSB, ctypes.c_int32(gemm.left_transposed))
        self._set_attribute(_EPILOGUE, ctypes.c_uint32(_epilogue_code(epilogue)))
        if self._has_aux:
            leading = -(-n // _MASK_GROUP) * _MASK_GROUP if epilogue.activation == "relu" else n
            self._set_attribute(_AUX_LD, ctypes.c_int64(leading))
        layout = self._calls.matrix_layout_create
        right = (k, n) if gemm.right_transposed else (n, k)
        left = (m, k) if gemm.left_transposed else (k, m)
        self._right = layout(data_type, *right, gemm.right_leading)
        self._left = layout(data_type, *left, gemm.left_leading)
        self._out = layout(data_type, n, m, n)
        self._one, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._algorithms: dict[tuple[int, ...], _Algorithm] = {}  # by alignments of addresses
        self._pointers = (0, 0)  # addresses of bias and aux in the description

    def __call__(
        self, left: int, right: int, out: int, bias: int, aux: int, stream: int | None = None
    ) -> None:
        addresses = (right, left, out, bias, aux)
        alignments = tuple([min(address & -address, _MAX_ALIGNMENT) for address in addresses])
        workspace, workspace_bytes = self._lt.workspace
        with self._lt.lock:
            if (bias, aux) != self._pointers:
                self._set_pointers(bias, aux)
            algorithm = self._algorithms.get(alignments) or self.algorithm(alignments)
            self._calls.matmul(
                self._lt.handle,
                self._desc,
                ctypes.addressof(self._one),
                right,
                self._right,
                left,
                self._left,
                ctypes.addressof(self._zero),
                out,
                self._out,
                out,
                self._out,
                ctypes.addressof(algorithm),
                workspace,
                workspace_bytes,
                self._stream if stream is None else stream,
            )

    def __del__(self) -> None:
        try:
            for layout in (self._right, self._left, self._out):
                self._calls.matrix_layout_destroy(layout)
            self._calls.matmul_desc_destroy(self._desc)
        except Exception:  # the constructor failed, or the interpreter is shutting down
            return

    def algorithm(self, alignments: tuple[int, ...]) -> _Algorithm:
        """The library's preferred algorithm for aligned addresses; cached.

        Args:
            alignments: alignments of right, left, out, bias and aux in bytes: powers of 2, or 0 for
                unused ones.

        Raises:
            RuntimeError: if the library has none.
        """
        calls, pointers = self._calls, self._pointers
        if pointers == (0, 0):  # the heuristic reads only their alignment
            self._set_pointers(*[_MAX_ALIGNMENT + alignment for alignment in alignments[3:]])
        preference = calls.matmul_preference_create()
        attributes: dict[int, Any] = {_MAX_WORKSPACE_BYTES: ctypes.c_uint64(self._lt.workspace[1])}
        attributes[_REDUCTION_SCHEMES] = ctypes.c_uint32(_INPLACE_OR_FLOAT32)
        # Of A, B, C and D in cublasLt's names, where C and D are both the output.
        for name, alignment in zip(_MIN_ALIGNMENTS, (*alignments[:3], alignments[2]), strict=True):
            attributes[name] = ctypes.c_uint32(alignment)
        for name, value in attributes.items():
            size = ctypes.sizeof(value)
            calls.matmul_preference_set_attribute(preference, name, ctypes.addressof(value), size)
        algorithm = (ctypes.c_uint64 * (_RESULT_BYTES // 8))()
        count = ctypes.c_int(0)
        calls.matmul_algo_get_heuristic(
            self._lt.handle,
            self._desc,
            self._right,
            self._left,
            self._out,
            self._out,
            preference,
            1,
            ctypes.addressof(algorithm),
            ctypes.addressof(count),
        )
        calls.matmul_preference_destroy(preference)
        if count.value == 0:
            raise RuntimeError(
                "[cublaslt] the library must have an algorithm for a product with an epilogue; got "
                f"none for addresses that are multiples of {alignments}. "
                "Fix: set GPUFLOW_CUDA_EPILOGUES=0."
            )
        self._algorithms[alignments] = algorithm
        return algorithm

    def _set_pointers(self, bias: int, aux: int) -> None:
        """Write the addresses of bias and aux to the description; the lock must be held."""
        if self._has_bias:
            self._set_attribute(_BIAS_POINTER, ctypes.c_void_p(bias))
        if self._has_aux:
            self._set_attribute(_AUX_POINTER, ctypes.c_void_p(aux))
        self._pointers = (bias, aux)

    def _set_attribute(self, name: int, value: Any) -> None:
        address, size = ctypes.addressof(value), ctypes.sizeof(value)
        self._calls.matmul_desc_set_attribute(self._desc, name, address, size)


def _epilogue_code(epilogue: Epilogue) -> int:
    """The cublasLtEpilogue_t of an epilogue."""
    if epilogue.gradient:
        return _DERIVATIVES[epilogue.activation] | (_WITH_SUMS if epilogue.bias else 0)
    code = _ACTIVATIONS[epilogue.activation] | (_WITH_BIAS if epilogue.bias else 0)
    return code | (_WITH_AUX if epilogue.keeps else 0)
