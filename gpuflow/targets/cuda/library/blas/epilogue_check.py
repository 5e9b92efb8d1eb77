"""Self-check: compare each epilogue of a BLAS with NumPy on small matrices before its first use.

Tests: tests/targets/cuda/test_cuda_blas_lt.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpuflow.compiler.debugging import show
from gpuflow.core.epilogues import Epilogue, aux_type, with_epilogue
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.runtime.driver.api import Gemm, GpuApi
from gpuflow.targets.cuda.runtime.driver.faults import is_fault

_M, _N, _K = 24, 16, 32  # sizes of the small product
_LARGE = 1000  # sums of such values are in the range of float16, their cubes (in gelu) are not
# Binds a product with an epilogue to a stream, as ``GpuApi.gemm_with``; None: the library has none.
_Bind = Callable[[Gemm, Epilogue, int], Callable[..., None] | None]


class CheckedEpilogues:
    """The epilogues of a library on one device, each checked once; thread-safe.

    Args:
        api: the device.
        bind: binds a product with an epilogue to a stream.
    """

    def __init__(self, api: GpuApi, bind: _Bind) -> None:
        self._api, self._bind = api, bind
        # By epilogue, dtype and ``reduced``: whether results are right.
        self._checked: dict[tuple[Epilogue, np.dtype, bool], bool] = {}
        self._lock = threading.Lock()
        self._stream: int | None = None

    def supports(self, epilogue: Epilogue, dtype: np.dtype, reduced: bool) -> bool:
        """Whether the library has the epilogue, with right results.

        Args:
            epilogue: the epilogue.
            dtype: dtype of all matrices.
            reduced: whether float32 may be rounded to TF32.
        """
        key = (epilogue, dtype, reduced)
        with self._lock:
            if key not in self._checked:
                self._checked[key] = self._is_right(*key)
            return self._checked[key]

    def _is_right(self, epilogue: Epilogue, dtype: np.dtype, reduced: bool) -> bool:
        if self._stream is None:
            self._stream = self._api.stream()
        try:
            is_right = epilogue_is_right(
                self._api, self._stream, self._bind, epilogue, dtype, reduced
            )
        except Exception as error:  # nvmath has an error class of its own
            if is_fault(error):
                raise
            is_right = False
        if not is_right:
            show(1, "cublaslt", lambda: f"not used: {epilogue} of {dtype}")
        return is_right


def epilogue_is_right(
    api: GpuApi,
    stream: int,
    bind: _Bind,
    epilogue: Epilogue,
    dtype: np.dtype,
    reduced: bool = False,
) -> bool:
    """Whether an epilogue agrees with NumPy; a gradient is checked after its forward pass.

    Args:
        api: the device.
        stream: stream for the products.
        bind: binds a product with an epilogue to a stream.
        epilogue: the epilogue.
        dtype: dtype of all matrices.
        reduced: whether float32 may be rounded to TF32.
    """
    small = Gemm(_M, _N, _K, False, False, _K, _N, 1, 0, 0, _M * _N, dtype, dtype, reduced)
    if not epilogue.keeps and not epilogue.gradient:
        return _agrees(api, stream, bind, small, (epilogue,))
    forward = replace(epilogue, keeps=True, gradient=False)
    backward = replace(forward, keeps=False, gradient=True)
    return _agrees(api, stream, bind, small, (forward, backward))


def _agrees(
    api: GpuApi, stream: int, bind: _Bind, gemm: Gemm, epilogues: tuple[Epilogue, ...]
) -> bool:
    """Whether products with these epilogues, one after the other, agree with NumPy.

    The second one is the gradient of the first, of which it reads the auxiliary buffer.
    """
    api.activate()
    rng, pool = np.random.default_rng(0), api.pool()

    def quarters(*shape: int) -> np.ndarray:
        return (rng.integers(-4, 5, shape) / 4).astype(gemm.dtype)

    left, right, bias = quarters(len(epilogues), _M, _K), quarters(_K, _N), quarters(_N)
    left[0, ::5], bias[::3] = 0, 0  # inputs of 0, at which the slope of relu must be 0
    left[0, 1], left[0, 2] = np.nan, left[0, 2] * _LARGE
    aux = np.zeros(*aux_type(epilogues[0], _M, _N, gemm.dtype))
    sizes = (left[0].nbytes, right.nbytes, _M * _N * gemm.dtype.itemsize, bias.nbytes, aux.nbytes)
    memory = [pool.malloc(size) for size in sizes]  # owns the memory until this call returns
    left_at, right_at, out_at, bias_at, aux_at = (block.ptr for block in memory)
    api.copy_in(right_at, address(right), right.nbytes, stream)
    api.copy_in(bias_at, address(bias), bias.nbytes, stream)
    forward_aux: np.ndarray | None = None  # NumPy's
    for epilogue, operand in zip(epilogues, left, strict=True):
        run = bind(gemm, epilogue, stream)
        if run is None:
            return False
        api.copy_in(left_at, address(operand), operand.nbytes, stream)
        run(left_at, right_at, out_at, bias_at, aux_at)
        output = _read(api, stream, out_at, (_M, _N), gemm.dtype)
        vector = bias if epilogue.bias and not epilogue.gradient else None
        with np.errstate(all="ignore"):
            product = operand.astype(np.float32) @ right.astype(np.float32)
            expected, extra = with_epilogue(np, epilogue, product, vector, forward_aux)
        pairs = [(output, expected)]
        if epilogue.gradient and epilogue.bias:
            pairs.append((_read(api, stream, bias_at, (_N,), gemm.dtype), extra))
        if not all(_is_close(result, correct, gemm) for result, correct in pairs):
            return False
        forward_aux = None if extra is None else extra.astype(aux.dtype)
    return True


def _read(api: GpuApi, stream: int, pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Copy a row-major array at a device address to the host, after the work of the stream."""
    result = np.empty(shape, dtype)
    api.copy_out(address(result), pointer, result.nbytes, stream)
    api.synchronize(stream)
    return result


def _is_close(result: np.ndarray, expected: np.ndarray, gemm: Gemm) -> bool:
    """Whether values agree, up to rounding of 16-bit floats and approximation of tanh in gelu."""
    tolerance = 2e-2 if gemm.dtype.itemsize == 2 else 1e-3
    values = result.astype(np.float64), expected.astype(np.float64)
    return np.allclose(*values, rtol=tolerance, atol=tolerance, equal_nan=True)
