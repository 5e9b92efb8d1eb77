"""Products with a vector as sums of products.

    y[b, n] = sum over k of  a[b, k, n] * x[b, k]

One operand has no free dimension, so that each element of the other is used once, and reading it
takes all the time. A reduction reads at the speed of memory with all threads, sums in blocks, and
fuses with its neighbors; the compiler replaces the product by it.
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
    """Whether an operand of numbers has only batch and contracting dimensions.

    Others of size 1 do not count: a batch of one would need other kernels than any other batch.
    """
    if dtypes.is_bool(lhs.dtype) or dtypes.is_bool(rhs.dtype) or not dimension_numbers[0][0]:
        return False
    return any(map(_is_vector, (lhs, rhs), *dimension_numbers))


def vector_product(
    lhs: Any, rhs: Any, *, dimension_numbers: Any, accumulator: Any, result: Any
) -> list[Any]:
    """The sum, along the free dimensions of the operand that has them.

    Args:
        lhs, rhs: the operands.
        dimension_numbers: of the product.
        accumulator: the dtype in which products are added.
        result: the dtype of the product.
    """
    (left, right), (left_batch, right_batch) = dimension_numbers
    sides = [(lhs, left, left_batch), (rhs, right, right_batch)]
    is_first = _is_vector(aval_of(lhs), left, left_batch)
    (vector, contracted, batch), (whole, summed, whole_batch) = sides if is_first else sides[::-1]
    place_of = dict(zip((*contracted, *batch), (*summed, *whole_batch), strict=True))
    places = [place_of[d] for d in range(aval_of(vector).ndim)]
    vector = transpose(vector, sorted(range(len(places)), key=lambda k: places[k]))
    vector, whole = (convert_element_type(x, accumulator) for x in (vector, whole))
    vector = broadcast_in_dim(vector, aval_of(whole).shape, sorted(places))
    total = reduce_sum(mul(vector, whole), summed)
    kept = [d for d in range(aval_of(whole).ndim) if d not in summed]
    rest = [d for d in kept if d not in whole_batch]
    total = transpose(total, [kept.index(d) for d in (*whole_batch, *rest)])
    return [convert_element_type(total, result)]


def _is_vector(aval: ShapedArray, contracting: Sequence[int], batch: Sequence[int]) -> bool:
    return aval.ndim == len(contracting) + len(batch)
