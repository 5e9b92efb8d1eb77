"""A library's epilogues on small matrices, compared with NumPy, before programs use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpuflow.compiler.debugging import show
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.blas.activations import aux_bytes, with_epilogue
from gpuflow.targets.cuda.driver.api import Epilogue, Gemm, GpuApi
from gpuflow.targets.cuda.driver.faults import is_fault

_M, _N, _K = 24, 16, 32
_Make = Callable[[Gemm, Epilogue], Callable[..., None] | None]


class CheckedProducts:
    """Products with those epilogues that were found to be right.

    Args:
        api: of the device.
        stream: that ``make``'s products run on.
        make: a product with an epilogue, or None.
    """

    def __init__(self, api: GpuApi, stream: int, make: _Make) -> None:
        self._api, self._stream, self._make = api, stream, make
        self._known: dict[tuple[Epilogue, np.dtype, bool], bool] = {}

    def __call__(self, gemm: Gemm, epilogue: Epilogue) -> Callable[..., None] | None:
        key = (epilogue, gemm.dtype, gemm.reduced)
        if key not in self._known:
            self._known[key] = self._is_right(gemm, epilogue)
        return self._make(gemm, epilogue) if self._known[key] else None

    def _is_right(self, gemm: Gemm, epilogue: Epilogue) -> bool:
        try:
            right = epilogue_is_right(self._api, self._stream, self._make, gemm, epilogue)
        except Exception as error:  # nvmath has an error class of its own
            if is_fault(error):
                raise
            right = False
        if not right:
            show(1, "cublaslt", lambda: f"not used: {epilogue} of {gemm.dtype}")
        return right


def epilogue_is_right(
    api: GpuApi, stream: int, make: _Make, gemm: Gemm, epilogue: Epilogue
) -> bool:
    """Whether an epilogue agrees with NumPy; for a gradient, after its forward pass.

    Args:
        api: of the device.
        stream: that ``make``'s products run on.
        make: a product with an epilogue, or None.
        gemm: its dtype, and how float32 is multiplied, count.
        epilogue: to check.
    """
    small = Gemm(
        _M, _N, _K, False, False, _K, _N, 1, 0, 0, _M * _N, gemm.dtype, gemm.dtype, gemm.reduced
    )  # fmt: skip
    if not epilogue.keeps and not epilogue.gradient:
        return _agrees(api, stream, make, small, (epilogue,))
    there = replace(epilogue, keeps=True, gradient=False)
    return _agrees(api, stream, make, small, (there, replace(there, keeps=False, gradient=True)))


def _agrees(
    api: GpuApi, stream: int, make: _Make, gemm: Gemm, epilogues: tuple[Epilogue, ...]
) -> bool:
    rng, pool = np.random.default_rng(0), api.pool()

    def numbers(*shape: int) -> np.ndarray:
        return (rng.integers(-4, 5, shape) / 4).astype(gemm.dtype)

    left, right, bias = numbers(len(epilogues), _M, _K), numbers(_K, _N), numbers(_N)
    left[0, ::5], bias[::3] = 0, 0  # what comes to 0 has no slope on the way back
    counts = (left[0].nbytes, right.nbytes, _M * _N * gemm.dtype.itemsize, bias.nbytes)
    memory = [pool.malloc(count) for count in (*counts, aux_bytes(gemm, epilogues[0]) or 1)]
    places = [piece.ptr for piece in memory]
    for place, array in zip(places[1::2], (right, bias), strict=True):
        api.copy_in(place, address(array), array.nbytes, stream)
    is_mask = epilogues[0].activation == "relu"
    kept = np.zeros((_M, 16), np.uint8) if is_mask else np.zeros((_M, _N), gemm.dtype)
    for epilogue, operand in zip(epilogues, left, strict=True):
        run = make(gemm, epilogue)
        if run is None:
            return False
        api.copy_in(places[0], address(operand), operand.nbytes, stream)
        run(*places)
        product = operand.astype(np.float32) @ right.astype(np.float32)
        output = _read(api, stream, places[2], (_M, _N), gemm.dtype)
        vector = bias.copy() if epilogue.bias else None
        want = with_epilogue(product, epilogue, vector, kept)
        pairs = [(output, want)]
        if epilogue.gradient and vector is not None:
            pairs.append((_read(api, stream, places[3], (_N,), gemm.dtype), vector))
        if not all(_is_close(got, wanted, gemm) for got, wanted in pairs):
            return False
    return True


def _read(
    api: GpuApi, stream: int, place: int, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    result = np.empty(shape, dtype)
    api.copy_out(address(result), place, result.nbytes, stream)
    api.synchronize(stream)
    return result


def _is_close(got: np.ndarray, want: np.ndarray, gemm: Gemm) -> bool:
    """Whether numbers agree; half precision rounds, and gelu's tanh is an approximation."""
    tolerance = 2e-2 if gemm.dtype.itemsize == 2 else 1e-3
    a, b = got.astype(np.float64), want.astype(np.float64)
    return bool(np.all(np.abs(a - b) <= tolerance * (1 + np.abs(b))))
