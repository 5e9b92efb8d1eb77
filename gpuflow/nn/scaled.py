"""Products of low-precision arrays with block scales.

Tests: tests/nn/test_nn_scaled.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.programs import eval_shape
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.control.composite import composite
from gpuflow.control.custom.vjp import custom_vjp
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.numpy.promotion import convert, user_dtype
from gpuflow.ops.contractions.dot_general import as_dimension_numbers

_RESULTS = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))


@record(eq=False)
class BlockScaleConfig:
    """Quantization of an operand: each block of ``block_size`` elements has a scale.

    Attributes:
        mode: ``"mxfp8"`` or ``"nvfp4"``.
        block_size: elements of a block, along the axis that is summed.
        data_type, scale_type: the dtypes of elements and of scales.
        global_scale: f32[1], a scale of the whole array, or None.
        infer_only: whether no gradients are needed.
    """

    mode: str
    block_size: int
    data_type: Any
    scale_type: Any
    global_scale: Any
    infer_only: bool


@explained
def get_scaled_dot_general_config(
    mode: str, global_scale: ArrayLike | None = None
) -> BlockScaleConfig:
    """Return the rounding configuration of one operand of ``scaled_dot_general``.

    Args:
        mode: ``"mxfp8"``: float8_e4m3fn in blocks of 32 with powers of two as scales; ``"nvfp4"``:
            float4_e2m1fn in blocks of 16 with scales in float8_e4m3fn.
        global_scale: scale of nvfp4, f32[1]; 1 by default.

    Returns:
        A BlockScaleConfig.

    Raises:
        ValueError: if the mode is unknown.

    Example:
        >>> gf.nn.get_scaled_dot_general_config("mxfp8").block_size
        32
    """
    if mode == "mxfp8":
        types = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu))
        return BlockScaleConfig(mode, 32, *types, None, False)
    check(
        mode == "nvfp4",
        lambda: (
            "[get_scaled_dot_general_config] mode must be 'mxfp8' or 'nvfp4'; "
            f"got {mode!r}. Fix: mode='mxfp8'."
        ),
        ValueError,
    )
    scale = jnp.ones((1,), jnp.float32) if global_scale is None else global_scale
    types = (np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(ml_dtypes.float8_e4m3fn))
    return BlockScaleConfig(mode, 16, *types, scale, False)


@composite
def scaled_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    lhs_scales: ArrayLike,
    rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = np.float32,
) -> Array:
    """Compute ``sum_k lhs[b, m, k] * rhs[b, n, k]`` with a scale for each block of ``k``.

    Products and sums are in float32; GPUs round operands to TF32 by default, which is exact for
    8-bit operands and scales.

    Args:
        lhs, rhs: ``[B, M, K]`` and ``[B, N, K]``.
        lhs_scales, rhs_scales: ``[B, M, K / block]`` and ``[B, N, K / block]``.
        preferred_element_type: the dtype of the result.

    Returns:
        ``[B, M, N]``.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> lhs = rhs = jnp.ones((1, 2, 32), jnp.float8_e4m3fn)
        >>> scales = jnp.full((1, 2, 1), 0.5)
        >>> gf.nn.scaled_matmul(lhs, rhs, scales, scales)
        Array([[[8., 8.],
                [8., 8.]]], dtype=float32)
    """
    dtype = user_dtype(preferred_element_type, "scaled_matmul")
    operands = [jnp.asarray(x) for x in (lhs, rhs, lhs_scales, rhs_scales)]
    _check_scaled(*[x.shape for x in operands])
    left, right, left_scales, right_scales = (x.astype(np.float32) for x in operands)
    out = _product(_times_blocks(left, left_scales), _times_blocks(right, right_scales))
    return convert(out, dtype)


def _product(left: Any, right: Any) -> Any:
    return lax.dot_general(left, right, (((2,), (2,)), ((0,), (0,))))


def _times_blocks(x: Any, scales: Any) -> Any:
    """``x`` with each block along the last axis multiplied by its scale."""
    batch, rows, blocks = scales.shape
    split = jnp.reshape(x, (batch, rows, blocks, x.shape[2] // max(blocks, 1)))
    return jnp.reshape(jnp.multiply(split, scales[..., None]), x.shape)


def _check_scaled(*shapes: tuple[int, ...]) -> None:
    left, right, left_scales, right_scales = shapes
    check(
        all(len(shape) == 3 for shape in shapes)
        and left[0] == right[0]
        and left[2] == right[2]
        and left[:2] == left_scales[:2]
        and right[:2] == right_scales[:2]
        and left_scales[2] == right_scales[2]
        and left_scales[2] > 0
        and left[2] % left_scales[2] == 0,
        lambda: (
            "[scaled_matmul] operands must be [B, M, K] and [B, N, K] and scales [B, M, C] and "
            f"[B, N, C], C a divisor of K; got {', '.join(map(str, shapes))}. "
            "Fix: one scale for each block of K."
        ),
        ValueError,
    )


@explained
def scaled_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    preferred_element_type: Any = np.float32,
    configs: Sequence[BlockScaleConfig] | None = None,
    implementation: str | None = None,
) -> Array:
    """Compute ``lax.dot_general`` of operands that are rounded in blocks.

    The gradient is that of the exact product, computed with operands rounded in the same way.

    Args:
        lhs, rhs: arrays.
        dimension_numbers: as for ``lax.dot_general``.
        preferred_element_type: float32, bfloat16 or float16.
        configs: results of ``get_scaled_dot_general_config`` for lhs, rhs and gradients; None
            disables rounding.
        implementation: deprecated; no effect.

    Returns:
        An array of ``preferred_element_type`` with the shape of ``lax.dot_general``.

    Raises:
        TypeError: if the result dtype is not supported.
        NotImplementedError: if the format is nvfp4, which is not implemented.
        ValueError: if axes do not match, or their size is not a multiple of the block.

    Example:
        >>> config = gf.nn.get_scaled_dot_general_config("mxfp8")
        >>> x = jnp.ones((2, 32))
        >>> gf.nn.scaled_dot_general(x, x, (((1,), (1,)), ((), ())), configs=[config] * 3)
        Array([[32., 32.],
               [32., 32.]], dtype=float32)
    """
    if implementation is not None:
        warn(
            "[scaled_dot_general] implementation has no effect; leave it out.",
            DeprecationWarning,
        )
    if configs is None:
        return lax.dot_general(
            lhs, rhs, dimension_numbers, preferred_element_type=preferred_element_type
        )
    dtype = user_dtype(preferred_element_type, "scaled_dot_general")
    _check_configs(dtype, configs)
    dnums = as_dimension_numbers("scaled_dot_general", dimension_numbers)
    # The product without rounding has the same requirements.
    eval_shape(lambda x, y: lax.dot_general(x, y, dnums), lhs, rhs)
    return _rounded_dot(lhs, rhs, dnums, dtype, tuple(configs))


def _check_configs(dtype: Any, configs: Sequence[BlockScaleConfig]) -> None:
    check(
        dtype in _RESULTS,
        lambda: (
            "[scaled_dot_general] preferred_element_type must be float32, bfloat16 or float16; "
            f"got {dtype}. Fix: preferred_element_type=jnp.float32."
        ),
    )
    check(
        isinstance(configs, tuple | list)
        and len(configs) == 3
        and all(isinstance(c, BlockScaleConfig) for c in configs),
        lambda: (
            "[scaled_dot_general] configs must be three of get_scaled_dot_general_config, for lhs, "
            f"rhs and gradients; got {configs!r}. "
            "Fix: configs=[nn.get_scaled_dot_general_config('mxfp8')] * 3."
        ),
        ValueError,
    )
    check(
        all(c.mode == "mxfp8" for c in configs),
        lambda: (
            "[scaled_dot_general] configs must be of mode 'mxfp8', the only one that is written; "
            f"got {[c.mode for c in configs]}. "
            "Fix: nn.get_scaled_dot_general_config('mxfp8')."
        ),
        NotImplementedError,
    )


@partial(custom_vjp, nondiff_argnums=(2, 3, 4))
def _rounded_dot(lhs: Any, rhs: Any, dnums: Any, dtype: Any, configs: Any) -> Any:
    (left_sum, right_sum), (left_batch, right_batch) = dnums
    left, left_free = _three_axes(lhs, left_sum, left_batch)
    right, right_free = _three_axes(rhs, right_sum, right_batch)
    out = convert(_product(_rounded(left, configs[0]), _rounded(right, configs[1])), dtype)
    batch = tuple(aval_of(lhs).shape[k] for k in left_batch)
    return jnp.reshape(out, batch + left_free + right_free)


def _three_axes(x: Any, summed: Sequence[int], batch: Sequence[int]) -> tuple[Any, Any]:
    """``x`` as ``[batch, free, summed]``, and the shape of its free axes."""
    shape = aval_of(x).shape
    free = [k for k in range(len(shape)) if k not in summed and k not in batch]
    sizes = [int(np.prod([shape[k] for k in axes])) for axes in (batch, free, summed)]
    transposed = jnp.transpose(x, (*batch, *free, *summed))
    return jnp.reshape(transposed, sizes), tuple(shape[k] for k in free)


def _rounded(x: Any, config: BlockScaleConfig) -> Any:
    """``x`` in float32, rounded to scaled low-precision blocks.

    A scale is the least power of two that brings its block into the range of the elements' dtype.

    Source: Rouhani et al. 2023, "Microscaling data formats for deep learning".
    """
    length = x.shape[-1]
    check(
        length > 0 and length % config.block_size == 0,
        lambda: (
            "[scaled_dot_general] axes that are summed must hold a multiple of "
            f"{config.block_size} elements; got {length}. Fix: pad them with zeros."
        ),
        ValueError,
    )
    blocks = jnp.reshape(x.astype(np.float32), (*x.shape[:-1], -1, config.block_size))
    largest = float(ml_dtypes.finfo(config.data_type).max)
    needed = jnp.divide(jnp.max(jnp.abs(blocks), axis=-1, keepdims=True), largest)
    scale = _power_of_two_above(needed)
    shrunk = jnp.clip(jnp.divide(blocks, scale), -largest, largest)
    return jnp.reshape(shrunk.astype(config.data_type).astype(np.float32) * scale, x.shape)


def _power_of_two_above(x: Any) -> Any:
    """The least power of two that is not below positive ``x``; 2**-126 at the least."""
    bits = lax.bitcast_convert_type(jnp.maximum(x, float(np.finfo(np.float32).tiny)), np.uint32)
    # Any fraction carries into the exponent; its remaining bits are dropped.
    up = lax.bitwise_and(lax.add(bits, np.uint32(0x7FFFFF)), np.uint32(0x7F800000))
    return lax.bitcast_convert_type(up, np.float32)


def _rounded_dot_forward(lhs: Any, rhs: Any, dnums: Any, dtype: Any, configs: Any) -> Any:
    return _rounded_dot(lhs, rhs, dnums, dtype, configs), (lhs, rhs)


def _rounded_dot_backward(dnums: Any, dtype: Any, configs: Any, saved: Any, g: Any) -> Any:
    lhs, rhs = saved
    (left_sum, right_sum), (left_batch, right_batch) = dnums
    swapped = ((right_sum, left_sum), (right_batch, left_batch))
    batch = len(left_batch)
    free = [aval_of(x).ndim - batch - len(left_sum) for x in (lhs, rhs)]
    of_left, of_right = (range(batch, batch + free[0]), range(batch + free[0], sum(free) + batch))
    left = _gradient(g, rhs, dnums, of_right, aval_of(lhs), dtype, (configs[2], configs[1]))
    right = _gradient(g, lhs, swapped, of_left, aval_of(rhs), dtype, (configs[2], configs[0]))
    return left, right


def _gradient(
    g: Any, other: Any, dnums: Any, g_free: Any, aval: Any, dtype: Any, configs: Any
) -> Any:
    """The cotangent of an operand: ``g`` times the other operand, summed over its free axes."""
    (summed, other_summed), (batch, other_batch) = dnums
    other_free = [
        k for k in range(aval_of(other).ndim) if k not in other_summed and k not in other_batch
    ]
    g_batch = tuple(range(len(batch)))
    both = ((tuple(g_free), tuple(other_free)), (g_batch, tuple(other_batch)))
    out = _rounded_dot(g, other, both, dtype, (*configs, configs[0]))
    free = [k for k in range(aval.ndim) if k not in summed and k not in batch]
    # The other operand's summed axes come in their own order after batch and free axes.
    order = [s for _, s in sorted(zip(other_summed, summed, strict=True))]
    return convert(jnp.transpose(out, np.argsort([*batch, *free, *order]).tolist()), aval.dtype)


_rounded_dot.defvjp(_rounded_dot_forward, _rounded_dot_backward)
