"""Reductions over sliding windows: sums, largest and smallest elements.

Holes between elements (base dilation) and margins hold the neutral element. The derivative of an
extreme reads the tangent where the extreme stands: ``window_place`` says where.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.ops.axes import move_axis, reshape
from gpuflow.ops.convolution import Dims, Pads, dilated, padded, window_count
from gpuflow.ops.define import (
    check_kind,
    define,
    is_number,
    is_ordered,
    linear_jvp,
    unary_transpose,
)
from gpuflow.ops.indexing import row_gather
from gpuflow.ops.reductions import highest, lowest


def _out_shape(
    name: str, x: ShapedArray, window_dimensions: Dims, window_strides: Dims, padding: Pads,
    base_dilation: Dims, window_dilation: Dims,
) -> Dims:  # fmt: skip
    parts = (window_dimensions, window_strides, padding, base_dilation, window_dilation)
    check(
        all(len(part) == x.ndim for part in parts)
        and all(n >= 1 for part in (*parts[:2], *parts[3:]) for n in part),
        lambda: (
            f"[{name}] window sizes, strides, margins and dilations must be given for each "
            f"dimension and be at least 1; got {parts} for {x}. Fix: 1 where nothing slides."
        ),
        ValueError,
    )
    return tuple(
        window_count(dilated(n, db), dilated(w, dw), stride, pads)
        for n, w, stride, pads, db, dw in zip(x.shape, *parts, strict=True)
    )


def _window_shape(
    name: str, accepts: Callable[[Any], bool], x: ShapedArray, **params: Any
) -> ShapedArray:
    check_kind(name, x, accepts, "a number that the reduction takes")
    return x.update(shape=_out_shape(name, x, **params))


def _slices(counts: Dims, offsets: Sequence[int], strides: Dims) -> tuple[slice, ...]:
    return tuple(
        slice(offset, offset + (count - 1) * stride + 1, stride) if count else slice(0, 0)
        for count, offset, stride in zip(counts, offsets, strides, strict=True)
    )


def _impl(
    combine: str, neutral: Callable[[Any], Any], xp: Any, x: Any, *, window_dimensions: Dims,
    window_strides: Dims, padding: Pads, base_dilation: Dims, window_dilation: Dims,
) -> Any:  # fmt: skip
    """One dimension after the other: the work grows with the sum of the window's sizes."""
    aval = ShapedArray(x.shape, x.dtype)
    counts = _out_shape(
        "reduce_window", aval, window_dimensions, window_strides, padding, base_dilation,
        window_dilation,
    )  # fmt: skip
    narrow = combine == "add" and dtypes.is_floating(x.dtype) and x.dtype.itemsize <= 2
    wide = x.astype(np.float32) if narrow else x
    filling = neutral(x.dtype)
    out = padded(xp, wide, 0, padding, base_dilation, filling)
    for d, (window, stride, dilation) in enumerate(
        zip(window_dimensions, window_strides, window_dilation, strict=True)
    ):
        sizes = (*out.shape[:d], counts[d], *out.shape[d + 1 :])
        steps = tuple(stride if k == d else 1 for k in range(x.ndim))
        total = None
        for k in range(window):
            offsets = [k * dilation if e == d else 0 for e in range(x.ndim)]
            part = out[_slices(sizes, offsets, steps)]
            total = part if total is None else getattr(xp, combine)(total, part)
        assert total is not None  # windows have at least one element
        out = total
    return xp.ascontiguousarray(out).reshape(counts).astype(x.dtype, copy=False)


def _batch(
    get: Callable[[], Primitive], axis: AxisData, operands: Sequence[Any], dims: Sequence[int],
    **params: Any,
) -> tuple[Any, int]:  # fmt: skip
    del axis
    x = move_axis(operands[0], dims[0], 0)
    return get().bind(x, **_with_leading(params)), 0


def _with_leading(params: dict[str, Any]) -> dict[str, Any]:
    """The params with a leading dimension in which nothing slides."""
    changed = {k: (1, *v) for k, v in params.items() if k not in ("padding", "batch_dims", "least")}
    return {**params, **changed, "padding": ((0, 0), *params["padding"])}


# --- sums ----------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: ShapedArray, **params: Any) -> Any:
    """A window of the cotangent for each element: strides become holes and holes strides."""
    pads = []
    for n, w, stride, (low, _), db, dw, out in zip(
        x.shape, params["window_dimensions"], params["window_strides"], params["padding"],
        params["base_dilation"], params["window_dilation"], aval_of(ct).shape, strict=True,
    ):  # fmt: skip
        before = dilated(w, dw) - low - 1
        pads.append((before, dilated(n, db) + dilated(w, dw) - 1 - dilated(out, stride) - before))
    return reduce_window_sum_p.bind(
        ct, window_dimensions=params["window_dimensions"], window_strides=params["base_dilation"],
        padding=tuple(pads), base_dilation=params["window_strides"],
        window_dilation=params["window_dilation"],
    )  # fmt: skip


reduce_window_sum_p = define(
    "reduce_window_sum",
    shape=partial(_window_shape, "reduce_window_sum", is_number),
    impl=partial(_impl, "add", lambda dtype: 0),
    jvp=linear_jvp(lambda x, **params: reduce_window_sum_p.bind(x, **params)),
    transpose=unary_transpose(_sum_transpose),
    batch=partial(_batch, lambda: reduce_window_sum_p),
    lower=Library(),
    tolerance=16,
)


# --- extremes ------------------------------------------------------------------------------


def _has_bounds(dtype: Any) -> bool:
    return is_ordered(dtype) and not dtypes.is_bool(dtype)


def _place_shape(x: ShapedArray, *, least: bool, batch_dims: int, **params: Any) -> ShapedArray:
    del least, batch_dims
    check_kind("window_place", x, _has_bounds, "a real number")
    return ShapedArray(_out_shape("window_place", x, **params), np.dtype(np.int32))


def _place_impl(
    xp: Any, x: Any, *, least: bool, batch_dims: int, window_dimensions: Dims,
    window_strides: Dims, padding: Pads, base_dilation: Dims, window_dilation: Dims,
) -> Any:  # fmt: skip
    """The first extreme in each window; nan is one, margins are not."""
    aval = ShapedArray(x.shape, x.dtype)
    counts = _out_shape(
        "window_place", aval, window_dimensions, window_strides, padding, base_dilation,
        window_dilation,
    )  # fmt: skip
    own = x.shape[batch_dims:]
    numbers = xp.broadcast_to(xp.arange(prod(own), dtype=np.int32).reshape(own), x.shape)
    filling = (highest if least else lowest)(x.dtype)
    values = padded(xp, x, 0, padding, base_dilation, filling)
    places = padded(xp, numbers, 0, padding, base_dilation, -1)
    first = _slices(counts, [0] * x.ndim, window_strides)
    best, found = values[first].copy(), places[first].copy()
    for offset in itertools.product(*map(range, window_dimensions)):
        if not any(offset):
            continue
        at = [k * d for k, d in zip(offset, window_dilation, strict=True)]
        slices = _slices(counts, at, window_strides)
        value, place = values[slices], places[slices]
        better = value < best if least else value > best
        better = (better & (place >= 0)) | ((found < 0) & (place >= 0))
        if dtypes.is_floating(x.dtype):
            better = (better & ~xp.isnan(best)) | (xp.isnan(value) & ~xp.isnan(best))
        best, found = xp.where(better, value, best), xp.where(better, place, found)
    return found


def _place_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], **params: Any
) -> tuple[Any, int]:
    del axis
    x = move_axis(operands[0], dims[0], 0)
    changed = {**_with_leading(params), "batch_dims": params["batch_dims"] + 1}
    return window_place_p.bind(x, **changed), 0


def _place_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    del tangents
    out = window_place_p.bind(*primals, **params)
    return out, zero_tangent(out)


window_place_p = define(
    "window_place",
    shape=_place_shape,
    impl=_place_impl,
    jvp=_place_jvp,
    batch=_place_batch,
    lower=Library(),
)


def _extreme(name: str, combine: str, neutral: Callable[[Any], Any], least: bool) -> Primitive:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (tangent,) = primals, tangents
        out = primitive.bind(x, **params)
        if type(tangent) is Zero:
            return out, zero_tangent(out)
        places = window_place_p.bind(x, least=least, batch_dims=0, **params)
        size = aval_of(x).size
        return out, row_gather(reshape(tangent, (size,)), places, "zero")

    primitive = define(
        name,
        shape=partial(_window_shape, name, _has_bounds),
        impl=partial(_impl, combine, neutral),
        jvp=jvp,
        batch=partial(_batch, lambda: primitive),
        lower=Library(),
    )
    return primitive


reduce_window_max_p = _extreme("reduce_window_max", "maximum", lowest, least=False)
reduce_window_min_p = _extreme("reduce_window_min", "minimum", highest, least=True)
