"""Exclusive products by segment: the derivative of products with repeated indices.

Factors are sorted by their indices; the products of other factors with the same index are then
prefixes and suffixes within a segment. There is no division, so zeros are not special.

Source of the scan: W. D. Hillis and G. L. Steele, Data parallel algorithms, 1986.

Tests: tests/ops/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import aval_of
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.rev import rev
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.sorting.sort import sort
from gpuflow.ops.zeros import full


def products_of_others(indices: Any, factors: Any) -> Any:
    """For each of the vector ``factors``, the product of the others with the same index.

    Indices must not be negative: -1 marks the start of a vector.
    """
    count = aval_of(factors).shape[0]
    if count == 0:
        return factors
    indices, order, factors = sort([indices, iota(np.int32, (count,), 0), factors])
    preceding = _products_before(indices, factors)
    after = rev(_products_before(rev(indices, (0,)), rev(factors, (0,))), (0,))
    return sort([order, mul(preceding, after)])[1]


def _products_before(indices: Any, factors: Any) -> Any:
    """The product of the factors before each one with the same index, for sorted indices."""
    count = aval_of(factors).shape[0]
    total = where(_is_shared(indices, 1), _shifted(factors, 1, 1), 1)
    step = 1
    while step < count:
        shared = _is_shared(indices, step)
        total = mul(total, where(shared, _shifted(total, step, 1), 1))
        step *= 2
    return total


def _is_shared(indices: Any, step: int) -> Any:
    """Whether the element ``step`` positions earlier has the same index."""
    return eq(indices, _shifted(indices, step, -1))


def _shifted(x: Any, step: int, first: int) -> Any:
    aval = aval_of(x)
    chunks: Sequence[Any] = (
        full((step,), first, aval.dtype),
        slice_in_dim(x, 0, aval.shape[0] - step, axis=0),
    )
    return concatenate(chunks, 0)
