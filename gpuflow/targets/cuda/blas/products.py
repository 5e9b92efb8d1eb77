"""Products of matrices on GPUs: one library call as calls of a GEMM.

Operands are views: transposition is a flag, and batch dimensions are steps; nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Library, Product
from gpuflow.core.views import View
from gpuflow.targets.cuda.driver.api import Gemm
from gpuflow.targets.layouts.product_axes import (
    TRANSPOSED,
    batch_axes,
    collapsed_axes,
    leading_dimension,
)

_FLOAT32 = np.dtype(np.float32)
_HALVES = (np.dtype(np.float16), dtypes.bfloat16)
_FULL = (_FLOAT32, np.dtype(np.float64), np.dtype(np.complex64), np.dtype(np.complex128))
_ROUNDED = (_FLOAT32, np.dtype(np.complex64))  # to TF32, where that is allowed
_MOST_CALLS = 64  # of a batch with two axes; more are left to the library


@record
class Products:
    """Calls of one GEMM at several places.

    Attributes:
        gemm: what each call does.
        places: bytes from the start of the operands' buffers and of the output, for each call.
    """

    gemm: Gemm
    places: tuple[tuple[int, int, int], ...]


def products_of(step: CallStep) -> Products | None:
    """A library call as products; None where it is none, or where a GEMM cannot read the operands.

    Sums are made in float32 for operands of 16 bits, else in the operands' dtype.
    """
    rule, params = step.eqn.primitive.lower, step.eqn.params
    if not isinstance(rule, Library) or rule.product is None or len(step.operands) != 2:
        return None
    out = step.eqn.outputs[0].aval
    left, right = step.operands
    dtype, out_dtype = left.aval.dtype, out.dtype
    if dtypes.is_extended(dtype) or right.aval.dtype != dtype or not _has_gemm(dtype, out_dtype):
        return None
    # The dimensions do not depend on dtypes, but the rule is for libraries that add in float32
    # only what is float32.
    avals = [ShapedArray(aval.shape, _FLOAT32) for aval in (left.aval, right.aval, out)]
    product = rule.product(avals[:2], avals[2:], params)
    if product is None:
        return None
    return _products(product, left.lies, right.lies, dtype, out_dtype)


def _has_gemm(dtype: np.dtype, out_dtype: np.dtype) -> bool:
    if dtype in _HALVES:
        return out_dtype in (dtype, _FLOAT32)
    return dtype in _FULL and out_dtype == dtype


def _products(
    product: Product, left: View, right: View, dtype: np.dtype, out_dtype: np.dtype
) -> Products | None:
    sides = ((left, product.left), (right, product.right))
    matrices = [
        [collapsed_axes(view, dims, 1) for dims in dim_groups[1:]] for view, dim_groups in sides
    ]
    batch = batch_axes(left, right, product)
    (rows, depth), (depth_too, columns) = matrices
    if batch is None or rows is None or depth is None or depth_too is None or columns is None:
        return None
    of_left, of_right = leading_dimension(rows, depth), leading_dimension(depth_too, columns)
    m, n, k = (prod(size for size, _ in axes) for axes in (rows, columns, depth))
    outer, inner = ([(1, 0, 0)] * 2 + batch)[-2:]
    if of_left is None or of_right is None or 0 in (m, n, k, outer[0], inner[0]):
        return None
    if outer[0] > _MOST_CALLS:
        return None
    (left_flag, left_leading), (right_flag, right_leading) = of_left, of_right
    gemm = Gemm(
        m, n, k, left_flag == TRANSPOSED, right_flag == TRANSPOSED, left_leading, right_leading,
        inner[0], inner[1], inner[2], m * n, dtype, out_dtype,
        reduced=product.reduced and dtype in _ROUNDED,
    )  # fmt: skip
    size, out_size = dtype.itemsize, out_dtype.itemsize
    places = [
        (
            (left.offset + number * outer[1]) * size,
            (right.offset + number * outer[2]) * size,
            number * inner[0] * m * n * out_size,
        )
        for number in range(outer[0])
    ]
    return Products(gemm, tuple(places))


# Of the addresses of left, right and out, and of the stream where that is another one.
Multiply = Callable[..., None]


def multiplier(
    products: Products, make: Callable[[Gemm], Multiply | None]
) -> Multiply | None:
    """A function of the addresses of the buffers of left, right and out."""
    call = make(products.gemm)
    if call is None:
        return None
    if len(products.places) == 1:
        (at_left, at_right, _) = products.places[0]
        if at_left == 0 and at_right == 0:
            return call

    def multiply(left: int, right: int, out: int, *stream: int) -> None:
        for at_left, at_right, at_out in products.places:
            call(left + at_left, right + at_right, out + at_out, *stream)

    return multiply
