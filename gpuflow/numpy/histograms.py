"""Counting: how many elements fall into each bin.

Tests: tests/test_stored_values.py, tests/numpy/test_numpy_gradients.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, ShardingLike
from gpuflow.numpy.arguments import as_array, as_arrays, known, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.differences import diff
from gpuflow.numpy.grids import ix_, ravel_multi_index
from gpuflow.numpy.joining import stack
from gpuflow.numpy.logic import clip, where
from gpuflow.numpy.promotion import convert, inexact_dtype, promote_dtypes_inexact
from gpuflow.numpy.ranges import linspace
from gpuflow.numpy.reductions import max as largest
from gpuflow.numpy.reductions import min as smallest
from gpuflow.numpy.reductions import sum as sum_of
from gpuflow.numpy.searching import searchsorted
from gpuflow.numpy.shaping import ravel, reshape
from gpuflow.ops.effects.device_put import in_sharding


@composite
def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Count the occurrences of 0, 1, 2, ...

    Args:
        x: vector of integers; negative ones count as 0.
        weights: weight of each occurrence; 1 by default.
        minlength: minimum size of the result.
        length: static size of the result, for use under jit; larger values are ignored.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        A vector of integers, or of the dtype of the weights.

    Raises:
        TypeError: if elements are not integers.
        ValueError: if the argument is not a vector, or weights have another shape.
        ConcretizationTypeError: if the argument is traced and ``length`` is not given.

    Example:
        >>> jnp.bincount(jnp.array([1, 1, 3]))
        Array([0, 2, 0, 1], dtype=int32)
        >>> jnp.bincount(jnp.array([1, 1, 3]), weights=jnp.array([0.5, 0.25, 2.0]), length=3)
        Array([0.  , 0.75, 0.  ], dtype=float32)
    """
    x = as_array("bincount", x)
    if dtypes.is_bool(aval_of(x).dtype):
        x = convert(x, dtypes.int32)
    check(
        dtypes.is_integer(aval_of(x).dtype),
        lambda: f"[bincount] elements must be integers; got {aval_of(x)}. Fix: x.astype(int).",
    )
    check(
        aval_of(x).ndim == 1,
        lambda: f"[bincount] the array must be a vector; got {aval_of(x)}. Fix: jnp.ravel(x).",
        ValueError,
    )
    least = static_int("bincount", "minlength", minlength)
    if length is None:
        host = known("bincount", "the array", x, "jnp.bincount(x, length=...).")
        length = max(least, int(max(host.max(), 0)) + 1 if host.size else 0)
    length = static_int("bincount", "length", length)
    values = convert(1, dtypes.default_int())
    if weights is not None:
        values = as_array("bincount", weights)
        check(
            aval_of(values).shape == aval_of(x).shape,
            lambda: (
                f"[bincount] weights must have the shape of the array; got {aval_of(values)} "
                f"for {aval_of(x)}. Fix: jnp.broadcast_to(weights, x.shape)."
            ),
            ValueError,
        )
    counts = lax.full((length,), 0, aval_of(values).dtype)
    out = counts.at[clip(x, 0, None)].add(values, mode="drop")
    return in_sharding("bincount", out, out_sharding)


@composite
def digitize(
    x: ArrayLike, bins: ArrayLike, right: bool = False, *, method: str | None = None
) -> Array:
    """Return the bin of each element: 0 before the first edge, ``len(bins)`` after the last.

    Args:
        x: array.
        bins: edges in ascending or descending order.
        right: whether a bin includes its right edge instead of its left one.
        method: search method, as for ``searchsorted``; None chooses one.

    Returns:
        int32 of the shape of ``x``.

    Raises:
        ValueError: if edges are not a vector.

    Example:
        >>> jnp.digitize(jnp.array([0.5, 1.0, 7.0]), jnp.array([1.0, 2.0, 5.0]))
        Array([0, 1, 3], dtype=int32)
    """
    x, bins = as_arrays("digitize", x, bins)
    check(
        aval_of(bins).ndim == 1,
        lambda: f"[digitize] bins must be a vector; got {aval_of(bins)}. Fix: jnp.ravel(bins).",
        ValueError,
    )
    count = aval_of(bins).shape[0]
    if not count:
        return lax.full(aval_of(x).shape, 0, dtypes.int32)
    side = "left" if right else "right"
    how: dict[str, Any] = {} if method is None else {"method": method}
    upwards = searchsorted(bins, x, side, **how)
    downwards = count - searchsorted(lax.rev(bins, (0,)), x, side, **how)
    return where(bins[-1] >= bins[0], upwards, downwards)


@composite
def histogram_bin_edges(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: ArrayLike | Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
) -> Array:
    """Return the edges of equal bins.

    Args:
        a: array.
        bins: number of bins, or their edges.
        range: the first and the last edge; None uses the minimum and maximum.
        weights: no effect.

    Returns:
        A vector of floats, with one more element than bins.

    Raises:
        NotImplementedError: if ``bins`` is the name of a rule.
        ValueError: if the range is not a pair.

    Example:
        >>> jnp.histogram_bin_edges(jnp.array([0.0, 1.0, 8.0]), bins=4)
        Array([0., 2., 4., 6., 8.], dtype=float32)
    """
    del weights
    check(
        not isinstance(bins, str),
        lambda: f"[histogram] bins must be a number or edges; got {bins!r}. Fix: bins=10.",
        NotImplementedError,
    )
    x, edges = as_arrays("histogram_bin_edges", a, bins)
    dtype = inexact_dtype(aval_of(x).dtype)
    if aval_of(edges).ndim == 1:
        return convert(edges, dtype)
    count = static_int("histogram_bin_edges", "bins", bins)
    if range is None:
        low, high = smallest(x), largest(x)
    else:
        bounds = asarray(range)
        check(
            aval_of(bounds).shape == (2,),
            lambda: f"[histogram] range must be a pair of numbers; got {range!r}. Fix: (0, 1).",
            ValueError,
        )
        low, high = bounds[0], bounds[1]
    low, high = convert(low, dtype), convert(high, dtype)
    empty = high == low
    half = convert(0.5, dtype)
    low, high = where(empty, low - half, low), where(empty, high + half, high)
    return linspace(low, high, count + 1, dtype=dtype)


@composite
def histogram(
    a: ArrayLike,
    bins: ArrayLike = 10,
    range: ArrayLike | Sequence[ArrayLike] | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array]:
    """Count the elements in each bin; the last bin includes its right edge.

    Args:
        a: array.
        bins: number of bins, or their edges.
        range: the first and the last edge; None uses the minimum and maximum.
        weights: weights of the elements, an array like ``a``; None weights all equally.
        density: whether to normalize the histogram to an integral of 1.

    Returns:
        The counts as floats, and the edges, one more.

    Raises:
        ValueError: if weights have another shape, or the range is not a pair.
        NotImplementedError: if ``bins`` is the name of a rule.

    Example:
        >>> counts, edges = jnp.histogram(jnp.array([0.0, 1.0, 1.5, 8.0]), bins=4)
        >>> counts
        Array([3., 0., 0., 1.], dtype=float32)
        >>> edges
        Array([0., 2., 4., 6., 8.], dtype=float32)
    """
    if weights is None:
        (x,) = promote_dtypes_inexact(as_array("histogram", a))
        weights = lax.full(aval_of(x).shape, 1, aval_of(x).dtype)
    else:
        x, weights = as_arrays("histogram", a, weights)
        check(
            aval_of(x).shape == aval_of(weights).shape,
            lambda: (
                f"[histogram] weights must have the shape of the array; got {aval_of(weights)} "
                f"for {aval_of(x)}. Fix: jnp.broadcast_to(weights, x.shape)."
            ),
            ValueError,
        )
        x, weights = promote_dtypes_inexact(x, weights)
    edges = histogram_bin_edges(x, bins, range)
    count = aval_of(edges).shape[0]
    which = searchsorted(edges, x, "right")
    which = where(x == edges[-1], count - 1, which)
    counts = lax.full((count,), 0, aval_of(weights).dtype)
    counts = counts.at[ravel(which)].add(ravel(weights), mode="drop")[1:]
    if density:
        counts = counts / diff(edges) / sum_of(counts)
    return counts, edges


@composite
def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArraysLike | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, Array, Array]:
    """Count the points of a plane in each bin.

    Args:
        x, y: vectors of coordinates.
        bins: number of bins along both axes, edges for both, or a pair of these.
        range: pairs of the first and last edge for each axis; None uses the minimum and maximum of
            the coordinates.
        weights: vector of the weights of points; None weights all equally.
        density: whether to normalize the histogram to an integral of 1.

    Returns:
        The counts, integers unless ``weights`` or ``density`` are given, and the edges along both
        axes.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> x, y = jnp.array([0.0, 0.5, 1.0]), jnp.array([0.0, 0.0, 1.0])
        >>> jnp.histogram2d(x, y, bins=2)[0]
        Array([[1, 0],
               [1, 1]], dtype=int32)
    """
    x, y = as_arrays("histogram2d", x, y)
    count = len(bins) if isinstance(bins, (tuple, list)) or np.ndim(bins) else 1
    if count not in (1, 2):
        edges = asarray(bins)
        bins = [edges, edges]
    counts, edges = histogramdd(stack([x, y], 1), bins, range, weights, density)
    return counts, edges[0], edges[1]


@composite
def histogramdd(
    sample: ArrayLike,
    bins: ArrayLike | Sequence[ArrayLike] = 10,
    range: ArraysLike | None = None,
    weights: ArrayLike | None = None,
    density: bool | None = None,
) -> tuple[Array, list[Array]]:
    """Count the points of a space in each bin.

    Args:
        sample: matrix with a row for each point.
        bins: number of bins along all axes, or a list of numbers or edges.
        range: the first and last edge for each axis, or None.
        weights: vector of the weights of points; None weights all equally.
        density: whether to normalize the histogram to an integral of 1.

    Returns:
        The counts, integers unless ``weights`` or ``density`` are given, and a list of the edges
        along each axis.

    Raises:
        ValueError: if shapes do not match.
        NotImplementedError: if ``bins`` is the name of a rule.

    Example:
        >>> points = jnp.array([[0.0, 0.0], [0.5, 0.0], [1.0, 1.0]])
        >>> counts, edges = jnp.histogramdd(points, bins=[2, 1])
        >>> counts
        Array([[1],
               [2]], dtype=int32)
        >>> edges
        [Array([0. , 0.5, 1. ], dtype=float32), Array([0., 1.], dtype=float32)]
    """
    operands = as_arrays("histogramdd", sample, *([] if weights is None else [weights]))
    rank = _rank_of_points(operands)
    x, *optional_weights = promote_dtypes_inexact(*operands)
    per_axis = list(bins) if isinstance(bins, (tuple, list)) or np.ndim(bins) else [bins] * rank
    pairs = [None] * rank if range is None else as_items("histogramdd", "range", range)
    check(
        len(per_axis) == rank and len(pairs) == rank,
        lambda: (
            f"[histogramdd] there must be bins, and a range or None, for each of {rank} axes; "
            f"got {len(per_axis)} and {brief(range)}. Fix: bins=[10] * {rank}."
        ),
        ValueError,
    )
    edges, bin_indices = [], []
    for d, axis_bins in enumerate(per_axis):
        column = x[:, d]
        axis_edges = histogram_bin_edges(column, axis_bins, None if range is None else range[d])
        bin_index = searchsorted(axis_edges, column, "right")
        bin_indices.append(where(column == axis_edges[-1], bin_index - 1, bin_index))
        edges.append(axis_edges)
    sizes = [aval_of(axis_edges).shape[0] + 1 for axis_edges in edges]
    flat = ravel_multi_index(bin_indices, sizes, "clip")
    counts = bincount(flat, optional_weights[0] if optional_weights else None, length=prod(sizes))
    counts = reshape(counts, sizes)[(slice(1, -1),) * rank]
    if density:
        counts = convert(counts, aval_of(x).dtype)
        counts = counts / sum_of(counts)
        for width in ix_(*[diff(axis_edges) for axis_edges in edges]):
            counts = counts / width
    return counts, edges


def _rank_of_points(operands: list[Any]) -> int:
    shape = aval_of(operands[0]).shape
    fits = len(shape) == 2 and all(aval_of(w).shape == shape[:1] for w in operands[1:])
    check(
        fits,
        lambda: (
            "[histogramdd] sample must be a matrix, with one weight for each row; got "
            f"{', '.join(str(aval_of(x)) for x in operands)}. Fix: jnp.stack([x, y], 1)."
        ),
        ValueError,
    )
    return shape[1]
