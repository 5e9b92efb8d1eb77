"""Search in sorted arrays.

Tests: tests/numpy/test_numpy_sorting.py, tests/numpy/test_complex_order.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.logic import isnan, less
from gpuflow.numpy.promotion import convert, promote_dtypes
from gpuflow.numpy.shaping import ravel, reshape
from gpuflow.numpy.sorting import argsort
from gpuflow.ops.elementwise.select import where as select_where

METHODS = ("scan", "scan_unrolled", "sort", "compare_all")


@composite
def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: str = "left",
    sorter: ArrayLike | None = None,
    *,
    method: str = "scan",
) -> Array:
    """Return the indices at which elements must be inserted into a sorted array.

    Args:
        a: vector in ascending order (after ``sorter``); nan last.
        v: array of any shape.
        side: ``"left"`` inserts before equal elements; ``"right"`` after them.
        sorter: indices that sort ``a``, if it is not sorted.
        method: ``"scan"``: bisection in a loop; ``"scan_unrolled"``: bisection without a loop;
            ``"sort"``: sorts both together; ``"compare_all"``: compares all pairs.

    Returns:
        Indices in [0, len(a)], of the shape of ``v``, as int32 (int64 if there are more).

    Raises:
        ValueError: if the side or method is unknown, or the array has another rank.

    Cost: O(m log n) by bisection, which is one kernel.

    Example:
        >>> jnp.searchsorted(jnp.array([10, 20, 30]), jnp.array([5, 20, 99]))
        Array([0, 1, 3], dtype=int32)
    """
    check_choice("searchsorted", "side", side, ("left", "right"))
    check_choice("searchsorted", "method", method, METHODS)
    a, v = as_arrays("searchsorted", a, v)
    check(
        aval_of(a).ndim == 1,
        lambda: f"[searchsorted] a must have rank 1; got {aval_of(a)}. Fix: gpuflow.vmap.",
        ValueError,
    )
    a, v = promote_dtypes(a, v)
    if sorter is not None:
        a = lax.row_gather(a, as_array("searchsorted", sorter), "clip")
    if method == "sort":
        return _by_sorting(a, v, side)
    if method == "compare_all":
        row = lax.expand_dims(a, range(aval_of(v).ndim))
        before = _comes_before(row, lax.expand_dims(v, (aval_of(v).ndim,)), side)
        index = dtypes.index_dtype(aval_of(a).shape[0])
        return lax.reduce_sum(before.astype(index), (aval_of(v).ndim,))
    return _by_bisection(a, v, side, in_loop=method == "scan")


def _comes_before(x: Any, v: Any, side: str) -> Any:
    """Whether ``v`` belongs after ``x``; nan is larger than all numbers, and equal to itself."""
    if dtypes.is_complex(aval_of(x).dtype):
        return _precedes(x, v) if side == "left" else ~_precedes(v, x)
    after = less(x, v) if side == "left" else ~less(v, x)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return after
    if side == "left":
        return after | (isnan(v) & ~isnan(x))
    return (after & ~isnan(x)) | isnan(v)


def _precedes(x: Any, y: Any) -> Any:
    """Whether a complex ``x`` comes before ``y`` in the order of ``jnp.sort``."""

    def component(x: Any, y: Any) -> Any:
        return less(x, y) | (isnan(y) & ~isnan(x))

    real, imag = (lax.real(x), lax.real(y)), (lax.imag(x), lax.imag(y))
    inner = component(*real) | (~component(*real[::-1]) & component(*imag))
    return select_where(lax.eq(isnan(x), isnan(y)), inner, isnan(y))


def _by_bisection(a: Any, v: Any, side: str, in_loop: bool) -> Any:
    """Binary search: halve the interval of each element.

    The sizes of the intervals depend on the size of ``a`` alone. In a loop, kernels do a step for
    many elements before the next, so that their memory reads overlap.
    """
    count = aval_of(a).shape[0]
    index = dtypes.index_dtype(count)
    low = lax.full(aval_of(v).shape, 0, index)
    if not count:
        return low

    def step(low: Any, half: Any) -> Any:
        # Elements before `low` come before v; step over `half` more where these do too.
        candidate = lax.add(low, half)
        last = lax.sub(candidate, convert(1, index))
        reached = lax.row_gather(a, last, "clip")
        return select_where(_comes_before(reached, v, side), candidate, low)

    if not in_loop:
        remaining = count
        while remaining > 1:
            low, remaining = step(low, convert(remaining // 2, index)), remaining - remaining // 2
        return step(low, convert(1, index))

    def halved(k: Any, carry: Any) -> Any:
        low, remaining = carry
        half = lax.shift_right_logical(remaining, convert(1, index))
        return step(low, half), lax.sub(remaining, half)

    low, _ = lax.fori_loop(0, (count - 1).bit_length(), halved, (low, convert(count, index)))
    return step(low, convert(1, index))


def _by_sorting(a: Any, v: Any, side: str) -> Any:
    query, count, size = ravel(v), aval_of(v).size, aval_of(a).shape[0]
    operands = [query, a] if side == "left" else [a, query]
    rank = _ranks(lax.concatenate(operands, 0))
    start = 0 if side == "left" else size
    among_all = lax.slice_in_dim(rank, start, start + count)
    positions = reshape(lax.sub(among_all, _ranks(query)), aval_of(v).shape)
    return lax.convert_element_type(positions, dtypes.index_dtype(aval_of(a).shape[0]))


def _ranks(x: Any) -> Any:
    """Rank of each element in sorted order."""
    return argsort(argsort(x))
