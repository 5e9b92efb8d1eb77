"""Products of the other factors of each index: the derivative of products with repeated indices.

Factors are sorted by their indices; the products of other factors with the same index are then
prefixes and suffixes within a segment. There is no division, so zeros are not special.

Source of the scan: W. D. Hillis and G. L. Steele, Data parallel algorithms, 1986.
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


def products_of_others(places: Any, factors: Any) -> Any:
    """For each of the vector ``factors``, the product of the others with the same index."""
    count = aval_of(factors).shape[0]
    if count == 0:
        return factors
    places, order, factors = sort([places, iota(np.int32, (count,), 0), factors])
    before = _products_before(places, factors)
    behind = rev(_products_before(rev(places, (0,)), rev(factors, (0,))), (0,))
    return sort([order, mul(before, behind)])[1]


def _products_before(places: Any, factors: Any) -> Any:
    """The product of the factors before each one with the same index, for sorted indices."""
    count = aval_of(factors).shape[0]
    total = where(_is_shared(places, 1), _shifted(factors, 1, 1), 1)
    step = 1
    while step < count:
        shared = _is_shared(places, step)
        total = mul(total, where(shared, _shifted(total, step, 1), 1))
        step *= 2
    return total


def _is_shared(places: Any, step: int) -> Any:
    """Whether the element so many steps before has the same place."""
    return eq(places, _shifted(places, step, -1))


def _shifted(x: Any, step: int, first: int) -> Any:
    aval = aval_of(x)
    parts: Sequence[Any] = (
        full((step,), first, aval.dtype), slice_in_dim(x, 0, aval.shape[0] - step, axis=0)
    )  # fmt: skip
    return concatenate(parts, 0)
