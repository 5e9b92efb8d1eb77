"""Convolution in one layout: batch, channels, space; outputs, inputs, space for the kernel.

``conv_p`` knows nothing of other layouts or of batch groups: convolutions.py brings both into this
form. With G groups, group g of the output channels sees group g of the input channels:

    out[n, (g, o), s] = sum of lhs[n, (g, c), s stride + k dilation - pad] rhs[(g, o), c, k]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.ops.axes import move_axis, reshape, transpose
from gpuflow.ops.convert import convert_element_type
from gpuflow.ops.define import check_same_dtype, define, is_number, types_text
from gpuflow.ops.layout import rev
from gpuflow.ops.nary import add_any_p

Dims = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


def dilated(size: int, dilation: int) -> int:
    """The extent of ``size`` elements with ``dilation - 1`` holes between them."""
    return 0 if size == 0 else (size - 1) * dilation + 1


def window_count(size: int, window: int, stride: int, pads: tuple[int, int]) -> int:
    """In how many places a window fits; sizes include holes."""
    room = size + sum(pads) - window
    return 0 if room < 0 else room // stride + 1


def _shape(
    lhs: ShapedArray, rhs: ShapedArray, *, window_strides: Dims, padding: Pads, lhs_dilation: Dims,
    rhs_dilation: Dims, groups: int, preferred_element_type: Any,
) -> ShapedArray:  # fmt: skip
    check_same_dtype("conv_general_dilated", [lhs, rhs])
    check(
        is_number(lhs.dtype),
        lambda: f"[conv_general_dilated] operands must be numbers; got {lhs}. Fix: astype.",
    )
    check(
        lhs.shape[1] == groups * rhs.shape[1] and rhs.shape[0] % groups == 0,
        lambda: (
            "[conv_general_dilated] input channels must be groups times those of the kernel, and "
            f"output channels a multiple of the groups; got {types_text([lhs, rhs])} as (batch, "
            f"channels, space) and (outputs, inputs, space) with {groups} groups. "
            "Fix: dimension_numbers, or feature_group_count."
        ),
        ValueError,
    )
    sizes = [
        window_count(dilated(n, dl), dilated(k, dr), stride, pads)
        for n, k, stride, pads, dl, dr in zip(
            lhs.shape[2:], rhs.shape[2:], window_strides, padding, lhs_dilation, rhs_dilation,
            strict=True,
        )
    ]  # fmt: skip
    dtype = lhs.dtype if preferred_element_type is None else preferred_element_type
    return ShapedArray((lhs.shape[0], rhs.shape[0], *sizes), dtype)


def padded(xp: Any, x: Any, first: int, pads: Pads, dilation: Dims, filling: Any) -> Any:
    """``x`` with holes and margins in the dimensions from ``first`` on; negative margins cut."""
    if all(p == (0, 0) for p in pads) and all(d == 1 for d in dilation):
        return x
    lead = x.shape[:first]
    sizes = [dilated(n, d) for n, d in zip(x.shape[first:], dilation, strict=True)]
    shape = [max(n + low + high, 0) for n, (low, high) in zip(sizes, pads, strict=True)]
    out = xp.full((*lead, *shape), filling, x.dtype)
    source: list[slice] = [slice(None)] * first
    target: list[slice] = [slice(None)] * first
    for n, d, (low, _), whole in zip(x.shape[first:], dilation, pads, shape, strict=True):
        # Element k lies at low + k d; those inside [0, whole) are copied.
        start = max(-(low // d), 0) if low < 0 else 0
        stop = min(n, -(-(whole - low) // d)) if whole > low else 0
        source.append(slice(start, max(stop, start)))
        target.append(slice(low + start * d, low + max(stop, start) * d, d))
    part = x[tuple(source)]
    if part.size:
        out[tuple(target)] = part
    return out


def windows_of(
    xp: Any, x: Any, first: int, window: Dims, strides: Dims, dilation: Dims, counts: Dims
) -> Any:
    """A view with the elements of each window: ``(*lead, *window, *counts)``."""
    step = x.strides[first:]
    inside = [s * d for s, d in zip(step, dilation, strict=True)]
    between = [s * d for s, d in zip(step, strides, strict=True)]
    shape = (*x.shape[:first], *window, *counts)
    every = (*x.strides[:first], *inside, *between)
    return xp.lib.stride_tricks.as_strided(x, shape, every)


def _accumulator(dtype: Any) -> Any:
    narrow = dtypes.is_floating(dtype) and dtype.itemsize <= 2
    return np.dtype(np.float32) if narrow else dtype


def _impl(
    xp: Any, lhs: Any, rhs: Any, *, window_strides: Dims, padding: Pads, lhs_dilation: Dims,
    rhs_dilation: Dims, groups: int, preferred_element_type: Any,
) -> Any:  # fmt: skip
    """Products of the kernel with the matrix of all windows, one for each example and group."""
    out = _shape(
        ShapedArray(lhs.shape, lhs.dtype), ShapedArray(rhs.shape, rhs.dtype),
        window_strides=window_strides, padding=padding, lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation, groups=groups, preferred_element_type=preferred_element_type,
    )  # fmt: skip
    wide = np.result_type(_accumulator(lhs.dtype), _accumulator(out.dtype))
    depth = prod(rhs.shape[1:])
    if out.size == 0 or depth == 0:
        return xp.zeros(out.shape, out.dtype)
    counts, window = out.shape[2:], rhs.shape[2:]
    x = padded(xp, lhs.astype(wide, copy=False), 2, padding, lhs_dilation, 0)
    views = windows_of(xp, x, 2, window, window_strides, rhs_dilation, counts)
    matrix = views.reshape(lhs.shape[0], groups, depth, prod(counts))
    kernel = rhs.astype(wide, copy=False).reshape(groups, rhs.shape[0] // groups, depth)
    return xp.matmul(kernel, matrix).reshape(out.shape).astype(out.dtype, copy=False)


def _flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    del params
    return 2 * out_avals[0].size * prod(in_avals[1].shape[1:])


# --- derivatives ---------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    lhs, rhs = primals
    out = conv_p.bind(lhs, rhs, **params)
    parts = []
    if type(tangents[0]) is not Zero:
        parts.append(conv_p.bind(tangents[0], rhs, **params))
    if type(tangents[1]) is not Zero:
        parts.append(conv_p.bind(lhs, tangents[1], **params))
    if not parts:
        return out, zero_tangent(out)
    return out, parts[0] if len(parts) == 1 else add_any_p.bind(*parts)


def _transpose_lhs(ct: Any, lhs: ShapedArray, rhs: Any, params: dict[str, Any]) -> Any:
    """The cotangent slides over the mirrored kernel; strides become holes and holes strides."""
    groups, strides = params["groups"], params["window_strides"]
    shape = aval_of(rhs).shape
    space = shape[2:]
    per_group = shape[0] // groups
    grouped = reshape(rhs, (groups, per_group, shape[1], *space))
    swapped = transpose(grouped, (0, 2, 1, *range(3, 3 + len(space))))
    kernel = reshape(swapped, (groups * shape[1], per_group, *space))
    kernel = rev(kernel, tuple(range(2, 2 + len(space))))
    pads = []
    for n, k, dl, dr, (low, _), stride, out in zip(
        lhs.shape[2:], space, params["lhs_dilation"], params["rhs_dilation"], params["padding"],
        strides, aval_of(ct).shape[2:], strict=True,
    ):  # fmt: skip
        before = dilated(k, dr) - low - 1
        pads.append((before, dilated(n, dl) + dilated(k, dr) - 1 - dilated(out, stride) - before))
    return conv_p.bind(
        ct, kernel, window_strides=params["lhs_dilation"], padding=tuple(pads),
        lhs_dilation=strides, rhs_dilation=params["rhs_dilation"], groups=groups,
        preferred_element_type=lhs.dtype,
    )  # fmt: skip


def _transpose_rhs(ct: Any, lhs: Any, rhs: ShapedArray, params: dict[str, Any]) -> Any:
    """The cotangent is the kernel that slides over the input; examples are its channels."""
    groups, strides = params["groups"], params["window_strides"]
    shape = aval_of(lhs).shape
    space = tuple(range(3, 1 + len(shape)))
    per_group = shape[1] // groups
    grouped = reshape(lhs, (shape[0], groups, per_group, *shape[2:]))
    swapped = transpose(grouped, (2, 1, 0, *space))
    inputs = reshape(swapped, (per_group, groups * shape[0], *shape[2:]))
    outputs = transpose(ct, (1, 0, *range(2, len(shape))))
    pads = []
    for n, k, dl, dr, (low, _), stride, out in zip(
        shape[2:], rhs.shape[2:], params["lhs_dilation"], params["rhs_dilation"],
        params["padding"], strides, aval_of(ct).shape[2:], strict=True,
    ):  # fmt: skip
        high = dilated(out, stride) - dilated(n, dl) + dilated(k, dr) - low - 1
        pads.append((low, high))
    kernel = conv_p.bind(
        inputs, outputs, window_strides=params["rhs_dilation"], padding=tuple(pads),
        lhs_dilation=params["lhs_dilation"], rhs_dilation=strides, groups=groups,
        preferred_element_type=rhs.dtype,
    )  # fmt: skip
    return transpose(kernel, (1, 0, *range(2, len(shape))))


def _transpose(ct: Any, lhs: Any, rhs: Any, **params: Any) -> list[Any]:
    result: list[Any] = [None, None]
    for k, operand in enumerate((lhs, rhs)):
        if is_undefined(operand):
            aval = operand.aval
            if type(ct) is Zero:
                result[k] = Zero(aval.tangent())
                continue
            # A wider result has a wider cotangent.
            own = convert_element_type(ct, aval.dtype)
            rule = _transpose_rhs if k else _transpose_lhs
            result[k] = rule(own, lhs, aval, params) if k else rule(own, aval, rhs, params)
    return result


# --- batching ------------------------------------------------------------------------------


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    lhs, rhs = operands
    count, groups = axis.size, params["groups"]
    if dims[1] is None:
        assert dims[0] is not None
        lhs = move_axis(lhs, dims[0], 0)
        shape = aval_of(lhs).shape
        out = conv_p.bind(reshape(lhs, (count * shape[1], *shape[2:])), rhs, **params)
        return reshape(out, (count, shape[1], *aval_of(out).shape[1:])), 0
    rhs = move_axis(rhs, dims[1], 0)
    shape = aval_of(rhs).shape
    space = tuple(range(4, 1 + len(shape)))
    per_group = shape[1] // groups
    if dims[0] is None:
        # Each group has the outputs of all kernels.
        grouped = reshape(rhs, (count, groups, per_group, *shape[2:]))
        swapped = transpose(grouped, (1, 0, 2, *range(3, 1 + len(shape))))
        out = conv_p.bind(
            lhs, reshape(swapped, (groups * count * per_group, *shape[2:])), **params
        )
        sizes = aval_of(out).shape
        split = reshape(out, (sizes[0], groups, count, per_group, *sizes[2:]))
        moved = transpose(split, (2, 0, 1, 3, *space))
        return reshape(moved, (count, sizes[0], shape[1], *sizes[2:])), 0
    # Every element of the axis is a group of its own.
    lhs = move_axis(lhs, dims[0], 1)
    own = aval_of(lhs).shape
    lhs = reshape(lhs, (own[0], count * own[2], *own[3:]))
    rhs = reshape(rhs, (count * shape[1], *shape[2:]))
    out = conv_p.bind(lhs, rhs, **{**params, "groups": groups * count})
    sizes = aval_of(out).shape
    return reshape(out, (sizes[0], count, shape[1], *sizes[2:])), 1


conv_p = define(
    "conv_general_dilated",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Library(flops=_flops),
    tolerance=64,
)
