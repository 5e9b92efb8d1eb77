"""Epilogues: operations of a matrix product on its result before it is stored.

Tests: tests/targets/cuda/test_gpu_epilogues.py, tests/targets/cuda/test_cuda_blas_lt.py.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import numpy as np

from gpuflow.base.records import record

GELU_SLOPE, GELU_CUBE = sqrt(2 / np.pi), 0.044715
# tanh is 1 beyond 8, and the square of 30 is in the range of float16.
GELU_LIMIT = 30.0

_GROUP = 128  # bits of a mask's row come in groups of so many


@record
class Epilogue:
    """Operation on the result of a product of matrices before it is stored.

    ``out = activation(left @ right + vector)``; or, for a gradient, ``out = (left @ right) *
    activation'(aux)``, with the sums of its columns.

    Attributes:
        activation: "", "relu" or "gelu" (by its approximation with tanh).
        bias: whether there is a vector with one element for each column: added, or the sums.
        keeps: whether ``aux`` is stored for the gradient: the operand of gelu, or the mask of
            positive operands of relu.
        gradient: whether it is the gradient.
    """

    activation: str = ""
    bias: bool = False
    keeps: bool = False
    gradient: bool = False


def aux_type(
    epilogue: Epilogue, rows: int, columns: int, dtype: Any
) -> tuple[tuple[int, int], Any]:
    """Shape and dtype of ``aux``: masks have bits, the first one lowest, in rows of 128.

    Args:
        epilogue: the epilogue that stores or reads it.
        rows, columns: of the result.
        dtype: of the result.
    """
    if epilogue.activation == "relu":
        return (rows, -(-columns // _GROUP) * _GROUP // 8), np.dtype(np.uint8)
    return (rows, columns), dtype


def with_epilogue(
    xp: Any, epilogue: Epilogue, product: Any, vector: Any = None, aux: Any = None
) -> tuple[Any, Any]:
    """The result of an epilogue, and ``aux`` or the sums; None where there is neither.

    Args:
        xp: NumPy or CuPy.
        epilogue: the operation.
        product: f32 or f64 of two dimensions.
        vector: added to each row.
        aux: stored by the product of the forward pass.
    """
    activation = epilogue.activation
    if epilogue.gradient:
        if activation == "relu":
            result = xp.where(_unpacked(xp, aux, product.shape), product, xp.float32(0))
        else:
            result = product * _gelu_derivative(xp, aux.astype(product.dtype))
        return result, result.sum(0) if epilogue.bias else None
    z = product if vector is None else product + vector.astype(product.dtype)
    if activation == "relu":
        return xp.maximum(z, 0), _packed(xp, z > 0) if epilogue.keeps else None
    result = z
    if activation == "gelu":
        result = 0.5 * z * (1 + _gelu_bend(xp, z))
    return result, z if epilogue.keeps else None


def _gelu_bend(xp: Any, z: Any) -> Any:
    return xp.tanh(GELU_SLOPE * (z + GELU_CUBE * z**3))


def _gelu_derivative(xp: Any, z: Any) -> Any:
    bend, near = _gelu_bend(xp, z), xp.clip(z, -GELU_LIMIT, GELU_LIMIT)
    slope = GELU_SLOPE * (1 + 3 * GELU_CUBE * near**2)
    return 0.5 * (1 + bend) + 0.5 * near * (1 - bend * bend) * slope


def _packed(xp: Any, mask: Any) -> Any:
    rows, columns = mask.shape
    padded = xp.zeros((rows, -(-columns // _GROUP) * _GROUP), bool)
    padded[:, :columns] = mask
    return xp.packbits(padded.ravel(), bitorder="little").reshape(rows, padded.shape[1] // 8)


def _unpacked(xp: Any, bits: Any, shape: tuple[int, int]) -> Any:
    rows, columns = shape
    flat = xp.unpackbits(bits.ravel(), bitorder="little")
    return flat.reshape(rows, prod(flat.shape) // max(rows, 1))[:, :columns].astype(bool)
