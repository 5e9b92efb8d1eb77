"""Matrix-vector products as reductions.

    y[b, n] = sum over k of  a[b, k, n] * x[b, k]

One operand has no free dimension, so each element of the other is used once, and the product is
bound by memory bandwidth. A reduction reads at the speed of memory with all threads, sums in
blocks, and fuses with its neighbors; the compiler replaces the product by it.

Tests: tests/ops/test_contractions.py, tests/ops/test_identities.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout.axes import broadcast_in_dim, reduce_sum
from gpuflow.ops.layout.transpose import transpose


def is_vector_product(lhs: ShapedArray, rhs: ShapedArray, dimension_numbers: Any) -> bool:
    """Whether an operand has only batch and contracting dimensions.

    Free dimensions of size 1 count: else a batch of one would need other kernels.
    """
    if dtypes.is_bool(lhs.dtype) or dtypes.is_bool(rhs.dtype) or not dimension_numbers[0][0]:
        return False
    return any(map(_is_vector, (lhs, rhs), *dimension_numbers))


def vector_product(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, accumulator: Any, result: Any
) -> list[Any]:
    """The product as a reduction over the operand with free dimensions.

    Args:
        lhs, rhs: the operands.
        dimension_numbers: of the product.
        accumulator: the dtype in which products are added.
        result: the dtype of the product.
    """
    (left, right), (left_batch, right_batch) = dimension_numbers
    sides = [(lhs, left, left_batch), (rhs, right, right_batch)]
    is_first = _is_vector(aval_of(lhs), left, left_batch)
    (vector, contracted, batch), (matrix, summed, matrix_batch) = sides if is_first else sides[::-1]
    dim_of = dict(zip((*contracted, *batch), (*summed, *matrix_batch), strict=True))
    positions = [dim_of[d] for d in range(aval_of(vector).ndim)]
    vector = transpose(vector, sorted(range(len(positions)), key=lambda k: positions[k]))
    vector, matrix = (convert_element_type(x, accumulator) for x in (vector, matrix))
    vector = broadcast_in_dim(vector, aval_of(matrix).shape, sorted(positions))
    total = reduce_sum(mul(vector, matrix), summed)
    remaining = [d for d in range(aval_of(matrix).ndim) if d not in summed]
    free = [d for d in remaining if d not in matrix_batch]
    total = transpose(total, [remaining.index(d) for d in (*matrix_batch, *free)])
    return [convert_element_type(total, result)]


def _is_vector(aval: ShapedArray, contracting: Sequence[int], batch: Sequence[int]) -> bool:
    return aval.ndim == len(contracting) + len(batch)
