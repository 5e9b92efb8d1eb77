"""The activations that a GEMM can apply to its result, and which kernels may be one of them."""

from __future__ import annotations

import numpy as np

from gpuflow.targets.cuda.driver.api import Epilogue, Gemm

# Functions of kir.scalar. A kernel of the first kind is known by its values: it has one kink at
# most, at 0. One of the second kind is analytic, with few constants, so that a grid tells it apart;
# where it is limited, a grid with numbers far out.
EXACT = {"": frozenset({"add"}), "relu": frozenset({"add", "max", "gt", "ge", "lt", "le"})}
SMOOTH = frozenset({"add", "sub", "mul", "neg", "tanh", "max", "min"})

_WIDE = np.dtype(np.float64)


def value_of(activation: str, z: np.ndarray, dtype: np.dtype = _WIDE) -> np.ndarray:
    """``activation`` of ``z``: the identity, relu, or gelu by its approximation with tanh.

    Args:
        activation: "", "relu" or "gelu".
        z: numbers.
        dtype: the dtype to which gelu's constants are rounded.
    """
    if activation == "relu":
        return np.maximum(z, 0)
    if activation == "gelu":
        slope, cube = _constants(dtype)
        return 0.5 * z * (1 + np.tanh(slope * (z + cube * z**3)))
    return z


def derivative_of(activation: str, z: np.ndarray, dtype: np.dtype = _WIDE) -> np.ndarray:
    """The derivative of ``value_of``; 0 at 0 for relu."""
    if activation == "relu":
        return (z > 0).astype(z.dtype)
    slope, cube = _constants(dtype)
    t = np.tanh(slope * (z + cube * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * slope * (1 + 3 * cube * z**2)


def _constants(dtype: np.dtype) -> tuple[float, float]:
    """Gelu's slope at 0 and the factor of its cube."""
    slope, cube = np.array([np.sqrt(2 / np.pi), 0.044715]).astype(dtype).astype(np.float64)
    return float(slope), float(cube)


def packed(mask: np.ndarray) -> np.ndarray:
    """A mask as bits, each row of it in whole groups of 128, the first element lowest."""
    rows, columns = mask.shape
    padded = np.zeros((rows, -(-columns // 128) * 128), bool)
    padded[:, :columns] = mask
    return np.packbits(padded, axis=1, bitorder="little")


def aux_bytes(gemm: Gemm, epilogue: Epilogue) -> int:
    """Size in bytes of the auxiliary buffer for the backward pass."""
    if not (epilogue.keeps or epilogue.gradient):
        return 0
    if epilogue.activation == "relu":
        return mask_bytes(gemm.m, gemm.n)
    return gemm.m * gemm.n * gemm.dtype.itemsize


def mask_bytes(rows: int, columns: int) -> int:
    """Bytes of a packed mask."""
    return rows * -(-columns // 128) * 16


def with_epilogue(
    product: np.ndarray, epilogue: Epilogue, bias: np.ndarray | None, aux: np.ndarray | None
) -> np.ndarray:
    """The result of an epilogue, in NumPy; ``bias`` and ``aux`` are read or written."""
    activation = epilogue.activation
    if epilogue.gradient:
        assert aux is not None
        if activation == "relu":
            bits = np.unpackbits(aux, axis=1, count=product.shape[1], bitorder="little")
            result = np.where(bits, product, np.float32(0))
        else:
            result = product * derivative_of(activation, aux.astype(product.dtype))
        if bias is not None:
            bias[...] = result.sum(0).astype(bias.dtype)
        return result
    z = product if bias is None else product + bias.astype(product.dtype)
    if epilogue.keeps:
        assert aux is not None
        aux[...] = packed(z > 0) if activation == "relu" else z.astype(aux.dtype)
    return value_of(activation, z)
