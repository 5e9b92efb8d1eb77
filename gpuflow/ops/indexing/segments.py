"""Segment reductions: sum, product, maximum or minimum of the rows with the same segment id.

Tests: tests/ops/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer
from gpuflow.base.errors import ConcretizationTypeError, check
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.indexing.dimension_numbers import GatherScatterMode, ScatterDimensionNumbers
from gpuflow.ops.indexing.gather import scatter_add
from gpuflow.ops.indexing.scatter import scatter_max, scatter_min, scatter_mul
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.reductions.reduce import (
    highest,
    lowest,
    reduce_max,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from gpuflow.ops.zeros import full


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The sums of the rows of ``data`` that have the same segment.

    Args:
        data: ``[n, ...]``; one row may represent ``n`` equal ones.
        segment_ids: integers ``[n]``: the segment of each row, in any order.
        num_segments: number of segments; by default the largest of ``segment_ids`` plus 1,
            which must then be concrete.
        indices_are_sorted, unique_indices: promises about ``segment_ids``.
        bucket_size: number of rows to reduce at a time; their results are reduced then: more exact.
        mode: handling of segments out of bounds: ``"drop"`` (the default), ``"clip"`` or
            ``"promise_in_bounds"``; negative ones are out of bounds.
        out_sharding: the result's NamedSharding or PartitionSpec, or None.

    Returns:
        ``[num_segments, ...]``; segments without rows give 0.

    Raises:
        TypeError: if operands are not arrays, or segment ids are not integers or not concrete.
        ValueError: if shapes do not match, or ``num_segments`` is negative.
    """
    return _reduce(
        "segment_sum",
        (scatter_add, reduce_sum, lambda dtype: 0),
        data,
        segment_ids,
        num_segments,
        (indices_are_sorted, unique_indices, mode),
        bucket_size,
        out_sharding,
    )


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The products of the rows that have the same segment; arguments as in ``segment_sum``.

    Segments without rows give 1. Derivatives are products of the other rows, which takes sorting
    unless ``unique_indices`` holds.
    """
    return _reduce(
        "segment_prod",
        (scatter_mul, reduce_prod, lambda dtype: 1),
        data,
        segment_ids,
        num_segments,
        (indices_are_sorted, unique_indices, mode),
        bucket_size,
        out_sharding,
    )


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The greatest of the rows that have the same segment; arguments as in ``segment_sum``.

    Segments without rows give the least value of the dtype.
    """
    return _reduce(
        "segment_max",
        (scatter_max, reduce_max, lowest),
        data,
        segment_ids,
        num_segments,
        (indices_are_sorted, unique_indices, mode),
        bucket_size,
        out_sharding,
    )


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> Any:
    """The least of the rows that have the same segment; arguments as in ``segment_sum``.

    Segments without rows give the greatest value of the dtype.
    """
    return _reduce(
        "segment_min",
        (scatter_min, reduce_min, highest),
        data,
        segment_ids,
        num_segments,
        (indices_are_sorted, unique_indices, mode),
        bucket_size,
        out_sharding,
    )


Family = tuple[Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]


def _reduce(
    name: str,
    family: Family,
    data: Any,
    segment_ids: Any,
    num_segments: Any,
    promises: tuple[bool, bool, Any],
    bucket_size: int | None,
    out_sharding: Any,
) -> Any:
    """One scatter into neutral elements, or one for each bucket.

    Args:
        name: name of the function.
        family: its scatter, its reduction, and its neutral element by dtype.
        promises: indices_are_sorted, unique_indices and mode.
        data, segment_ids, num_segments, bucket_size, out_sharding: see ``segment_sum``.
    """
    scatter, reduce, neutral = family
    data, ids = _checked(name, data, segment_ids, bucket_size)
    count = _segment_count(name, num_segments, ids)
    length, row_shape = aval_of(ids).shape[0], aval_of(data).shape[1:]
    is_sorted, unique, mode = promises
    columns, lead = [ids], (count,)
    if bucket_size is not None:
        columns = [(np.arange(length) // bucket_size).astype(np.int32), ids]
        lead = (-(-length // bucket_size), count)
    vectors = [broadcast_in_dim(column, (length, 1), (0,)) for column in columns]
    indices = vectors[0] if len(vectors) == 1 else concatenate(vectors, 1)
    axes = tuple(range(len(lead)))
    numbers = ScatterDimensionNumbers(tuple(range(1, 1 + len(row_shape))), axes, axes)
    dtype = aval_of(data).dtype
    out = scatter(
        full(lead + row_shape, neutral(dtype), dtype),
        indices,
        data,
        numbers,
        indices_are_sorted=is_sorted,
        unique_indices=unique,
        mode=GatherScatterMode.from_any(mode),
    )
    out = out if bucket_size is None else reduce(out, (0,))
    return in_sharding(name, out, out_sharding)


def _checked(name: str, data: Any, segment_ids: Any, bucket_size: int | None) -> tuple[Any, Any]:
    """Data with a row for each segment id, and these ids, with at least 32 bits."""
    for operand in (data, segment_ids):
        check(
            is_value(operand),
            lambda operand=operand: (
                f"[{name}] operands must be arrays; got {type(operand).__name__}. "
                "Fix: convert it with jnp.asarray."
            ),
        )
    data_aval, ids_aval = aval_of(data), aval_of(segment_ids)
    check(
        dtypes.is_integer(ids_aval.dtype),
        lambda: f"[{name}] segment_ids must be integers; got {ids_aval}. Fix: x.astype(jnp.int32).",
    )
    count = ids_aval.size
    check(
        ids_aval.ndim == 1 and (not data_aval.shape or data_aval.shape[0] in (1, count)),
        lambda: (
            f"[{name}] segment_ids must have one axis, and data as many rows; got {ids_aval} and "
            f"{data_aval}. Fix: segment_ids.ravel()."
        ),
        ValueError,
    )
    check(
        bucket_size is None or bucket_size > 0,
        lambda: f"[{name}] bucket_size must be positive; got {bucket_size}. Fix: None, or 128.",
        ValueError,
    )
    if ids_aval.dtype.itemsize < 4 or dtypes.is_bool(ids_aval.dtype):
        segment_ids = convert_element_type(segment_ids, np.int32)
    rows = (*ids_aval.shape, *data_aval.shape[1:])
    if data_aval.shape != rows:
        dims = range(len(rows) - data_aval.ndim, len(rows))
        data = broadcast_in_dim(data, rows, tuple(dims))
    return data, segment_ids


def _segment_count(name: str, num_segments: Any, ids: Any) -> int:
    if num_segments is None:
        check(
            not isinstance(ids, Tracer),
            lambda: (
                f"[{name}] the number of segments must be known; got traced segment_ids. "
                "Fix: num_segments=, a Python int."
            ),
        )
        values = np.asarray(ids)
        num_segments = int(values.max()) + 1 if values.size else 0
        num_segments = max(num_segments, 0)
    check(
        not isinstance(num_segments, Tracer),
        lambda: (
            f"[{name}] num_segments must be a Python int, because it is a shape; got a traced "
            "value. Fix: jit(..., static_argnames='num_segments')."
        ),
        ConcretizationTypeError,
    )
    count = as_integer(name, "num_segments", num_segments)
    check(
        count >= 0,
        lambda: f"[{name}] num_segments must not be negative; got {count}. Fix: num_segments=0.",
        ValueError,
    )
    return count
