"""Indices of the extrema of windows, and their scatter-add: the two steps of a gradient.

``window_extreme`` returns the tap of the first extremum of each window, and ``window_spread`` adds
the source of each window to the element at that tap. The compiler rewrites
``select_and_scatter_add`` as this pair.

Tests: tests/ops/test_windows.py, tests/ops/test_every_op.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Indexed
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.ops.contractions.convolution import Dims, Pads, padded
from gpuflow.ops.define import check_kind, define, types_text
from gpuflow.ops.elementwise.comparison import ge_p, le_p
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.reductions.reduce import highest, lowest
from gpuflow.ops.windows.bodies import extreme_tap, scattered, sizes
from gpuflow.ops.windows.sliding import (
    has_bounds,
    window_counts,
    window_partitionable,
    window_slices,
    with_leading,
)


def selection_counts(
    name: str,
    x: ShapedArray,
    select_prim: Primitive,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Pads,
    base_dilation: Dims | None,
    window_dilation: Dims | None,
) -> Dims:
    """Number of positions of the window, in each dimension; see ``window_counts``.

    Raises:
        TypeError: if the comparison is neither ``ge_p`` nor ``le_p``.
    """
    check(
        select_prim in (ge_p, le_p),
        lambda: (
            f"[{name}] select_prim must be lax.ge_p or lax.le_p; got {select_prim!r}. "
            "Fix: lax.ge_p for the largest element of each window."
        ),
    )
    ones = (1,) * x.ndim
    return window_counts(
        name,
        x,
        window_dimensions,
        window_strides,
        padding,
        base_dilation or ones,
        window_dilation or ones,
    )


def extreme_indices(
    xp: Any,
    x: Any,
    *,
    select_prim: Primitive,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Pads,
    base_dilation: Dims | None = None,
    window_dilation: Dims | None = None,
    as_taps: bool = False,
) -> Any:
    """Flat index of the first extremum of each window; -1 for an empty window.

    A nan is an extremum; padding and dilation are not. With ``as_taps`` the result is the index of
    the window's tap.
    """
    least = select_prim is le_p
    ones = (1,) * x.ndim
    lhs_dilation, rhs_dilation = base_dilation or ones, window_dilation or ones
    aval = ShapedArray(x.shape, x.dtype)
    counts = window_counts(
        "select_and_gather_add",
        aval,
        window_dimensions,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
    )
    narrow = x.size <= np.iinfo(np.int32).max
    positions = xp.arange(x.size, dtype=np.int32 if narrow else np.int64).reshape(x.shape)
    values = padded(xp, x, 0, padding, lhs_dilation, (highest if least else lowest)(x.dtype))
    indices = padded(xp, positions, 0, padding, lhs_dilation, -1)
    first = window_slices(counts, [0] * x.ndim, window_strides)
    best, best_index = values[first].copy(), indices[first].copy()
    if as_taps:
        best_index = xp.minimum(best_index, 0)
    for tap, offset in enumerate(itertools.product(*map(range, window_dimensions))):
        if tap == 0:
            continue
        at = [k * d for k, d in zip(offset, rhs_dilation, strict=True)]
        slices = window_slices(counts, at, window_strides)
        value, index = values[slices], indices[slices]
        better = value < best if least else value > best
        better = (better & (index >= 0)) | ((best_index < 0) & (index >= 0))
        if dtypes.is_floating(x.dtype):
            better = (better & ~xp.isnan(best)) | (xp.isnan(value) & ~xp.isnan(best))
        best = xp.where(better, value, best)
        best_index = xp.where(better, tap if as_taps else index, best_index)
    return best_index


def batch_leading(
    get: Callable[[], Primitive],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[Any, int]:
    """The batch rule of an op whose operands all get a leading batch dimension."""
    batched = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
    return get().bind(*batched, **with_leading(params)), 0


def jvp_of_linear(
    get: Callable[[], Primitive], primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """The jvp rule of an op that is linear in the first operand and constant in the second."""
    out = get().bind(*primals, **params)
    if type(tangents[0]) is Zero:
        return out, zero_tangent(out)
    return out, get().bind(tangents[0], primals[1], **params)


# --- the pair ------------------------------------------------------------------------------


def _extreme_shape(x: ShapedArray, **params: Any) -> ShapedArray:
    check_kind("window_extreme", x, has_bounds, "a real number")
    geometry = {"base_dilation": None, "window_dilation": None, **params}
    return ShapedArray(selection_counts("window_extreme", x, **geometry), np.int32)


def _extreme_impl(xp: Any, x: Any, **params: Any) -> Any:
    return extreme_indices(xp, x, as_taps=True, **params).astype(np.int32)


def _extreme_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    del tangents
    out = window_extreme_p.bind(*primals, **params)
    return out, zero_tangent(out)


window_extreme_p = define(
    "window_extreme",
    shape=_extreme_shape,
    impl=_extreme_impl,
    jvp=_extreme_jvp,
    batch=partial(batch_leading, lambda: window_extreme_p),
    lower=Indexed(extreme_tap, sizes, partitionable=window_partitionable),
)


def _spread_shape(
    source: ShapedArray, taps: ShapedArray, *, shape: Dims, **params: Any
) -> ShapedArray:
    del params
    check_kind("window_spread", source, has_bounds, "a real number")
    check(
        source.shape == taps.shape,
        lambda: (
            "[window_spread] there must be one tap for each element of the source; got "
            f"{types_text([source, taps])}. Fix: the result of window_extreme."
        ),
        ValueError,
    )
    return ShapedArray(shape, source.dtype)


def _spread_impl(
    xp: Any,
    source: Any,
    taps: Any,
    *,
    shape: Dims,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Pads,
    base_dilation: Dims | None = None,
    window_dilation: Dims | None = None,
) -> Any:
    ones = (1,) * len(shape)
    lhs_dilation, rhs_dilation = base_dilation or ones, window_dilation or ones
    total = xp.zeros(shape, source.dtype)
    for tap, offset in enumerate(itertools.product(*map(range, window_dimensions))):
        windows, elements = [], []
        for n, count, k, stride, (low, _), base, dilation in zip(
            shape,
            source.shape,
            offset,
            window_strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            strict=True,
        ):
            at = xp.arange(count) * stride + k * dilation - low
            is_there = (at >= 0) & (at % base == 0) & (at < n * base)
            windows.append(xp.flatnonzero(is_there))
            elements.append(at[is_there] // base)
        pick = xp.ix_(*windows)
        total[xp.ix_(*elements)] += xp.where(taps[pick] == tap, source[pick], 0)
    return total


def _spread_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    shape: Dims,
    **params: Any,
) -> tuple[Any, int]:
    batched = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
    return window_spread_p.bind(*batched, shape=(axis.size, *shape), **with_leading(params)), 0


window_spread_p = define(
    "window_spread",
    shape=_spread_shape,
    impl=_spread_impl,
    jvp=partial(jvp_of_linear, lambda: window_spread_p),
    batch=_spread_batch,
    lower=Indexed(scattered, sizes, partitionable=window_partitionable),
    size_params=frozenset({"shape"}),
    tolerance=16,
)
