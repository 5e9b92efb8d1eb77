"""Reductions over sliding windows: sums, maxima and minima.

Base dilation and padding insert the neutral element. The derivative of an extremum reads the
tangent at the extremum: at_extremes.py.

Tests: tests/control/test_reduce.py, tests/ops/test_windows.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Indexed
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.ops.contractions.convolution import Dims, Pads, dilated, padded
from gpuflow.ops.define import check_kind, define, is_number, linear_jvp, unary_transpose
from gpuflow.ops.elementwise.comparison import ge_p, le_p
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.reductions.reduce import highest, lowest
from gpuflow.ops.windows.at_extremes import select_and_gather_add_p
from gpuflow.ops.windows.bodies import reduction, sizes
from gpuflow.ops.windows.sliding import (
    has_bounds,
    window_counts,
    window_halo,
    window_partitionable,
    window_slices,
    with_leading,
)


def _window_shape(
    name: str, accepts: Callable[[Any], bool], x: ShapedArray, **params: Any
) -> ShapedArray:
    check_kind(name, x, accepts, "a number that the reduction takes")
    return x.update(shape=window_counts(name, x, **params))


def _impl(
    combine: str,
    neutral: Callable[[Any], Any],
    xp: Any,
    x: Any,
    *,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Pads,
    base_dilation: Dims,
    window_dilation: Dims,
) -> Any:
    """Reduce dimension by dimension: the work grows with the sum of the window's sizes."""
    aval = ShapedArray(x.shape, x.dtype)
    counts = window_counts(
        "reduce_window",
        aval,
        window_dimensions,
        window_strides,
        padding,
        base_dilation,
        window_dilation,
    )
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
            elements = out[window_slices(sizes, offsets, steps)]
            total = elements if total is None else getattr(xp, combine)(total, elements)
        assert total is not None  # windows have at least one element
        out = total
    return xp.ascontiguousarray(out).reshape(counts).astype(x.dtype, copy=False)


def _batch(
    get: Callable[[], Primitive],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int],
    **params: Any,
) -> tuple[Any, int]:
    del axis
    x = move_axis(operands[0], dims[0], 0)
    return get().bind(x, **with_leading(params)), 0


# --- sums ----------------------------------------------------------------------------------


def _sum_transpose(ct: Any, x: ShapedArray, **params: Any) -> Any:
    """A window sum of the cotangent, with strides and base dilation exchanged."""
    pads = []
    for n, w, stride, (low, _), db, dw, out in zip(
        x.shape,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params["base_dilation"],
        params["window_dilation"],
        aval_of(ct).shape,
        strict=True,
    ):
        before = dilated(w, dw) - low - 1
        pads.append((before, dilated(n, db) + dilated(w, dw) - 1 - dilated(out, stride) - before))
    return reduce_window_sum_p.bind(
        ct,
        window_dimensions=params["window_dimensions"],
        window_strides=params["base_dilation"],
        padding=tuple(pads),
        base_dilation=params["window_strides"],
        window_dilation=params["window_dilation"],
    )


reduce_window_sum_p = define(
    "reduce_window_sum",
    shape=partial(_window_shape, "reduce_window_sum", is_number),
    impl=partial(_impl, "add", lambda dtype: 0),
    jvp=linear_jvp(lambda x, **params: reduce_window_sum_p.bind(x, **params)),
    transpose=unary_transpose(_sum_transpose),
    batch=partial(_batch, lambda: reduce_window_sum_p),
    lower=Indexed(reduction("add", lambda dtype: 0), sizes, partitionable=window_partitionable),
    tolerance=16,
    halo=partial(window_halo, lambda dtype: 0),
)


# --- extremes ------------------------------------------------------------------------------


def _extreme(
    name: str, combine: str, function: str, neutral: Callable[[Any], Any], select_prim: Primitive
) -> Primitive:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (tangent,) = primals, tangents
        out = primitive.bind(x, **params)
        if type(tangent) is Zero:
            return out, zero_tangent(out)
        return out, select_and_gather_add_p.bind(tangent, x, select_prim=select_prim, **params)

    primitive = define(
        name,
        shape=partial(_window_shape, name, has_bounds),
        impl=partial(_impl, combine, neutral),
        jvp=jvp,
        batch=partial(_batch, lambda: primitive),
        lower=Indexed(reduction(function, neutral), sizes, partitionable=window_partitionable),
        halo=partial(window_halo, neutral),
    )
    return primitive


reduce_window_max_p = _extreme("reduce_window_max", "maximum", "max", lowest, ge_p)
reduce_window_min_p = _extreme("reduce_window_min", "minimum", "min", highest, le_p)
