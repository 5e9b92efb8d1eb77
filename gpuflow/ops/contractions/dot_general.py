"""dot_general: products summed over any pairs of dimensions, the op after matmul and einsum.

Dimension numbers are ``((lhs contracting, rhs contracting), (lhs batch, rhs batch))``. The result
has the batch dimensions, then the free ones of lhs, then those of rhs.

Tests: tests/ops/test_contractions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers
from gpuflow.base.foreign import brief
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.contractions.precision import algorithm_dtypes, canonical_precision
from gpuflow.ops.contractions.product_epilogues import fuse_epilogue
from gpuflow.ops.contractions.products import (
    DimensionNumbers,
    Dims,
    accumulator_dtype,
    free_dims,
    operand_dtype,
    prepare_product,
    product_block,
    product_flops,
    product_of_arrays,
    product_shape,
)
from gpuflow.ops.contractions.vector_products import is_vector_product, vector_product
from gpuflow.ops.define import define
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.nary import add_any_p, match_scalars
from gpuflow.ops.layout.transpose import transpose
from gpuflow.ops.linalg.small_matrices import is_small_product, small_product
from gpuflow.ops.written_out import written_out


def _dot_transposed(eqn: Any, permutation: Dims, build: EqnBuilder) -> Any:
    """The product with its free dimensions exchanged: swap the operands."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = eqn.inputs
    batch = len(left_batch)
    first = len(free_dims(lhs.aval.ndim, left, left_batch))
    ndim = eqn.outputs[0].aval.ndim
    exchanged = (*range(batch), *range(batch + first, ndim), *range(batch, batch + first))
    if permutation != exchanged:
        return None
    numbers = ((right, left), (right_batch, left_batch))
    params = {**eqn.params, "dimension_numbers": numbers}
    return build.apply(dot_general_p, rhs, lhs, **params)


def _dot_summed(eqn: Any, axes: Dims, build: EqnBuilder) -> Any:
    """The sum over batch dimensions: contract them instead."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if any(axis >= len(left_batch) for axis in axes):
        return None
    remaining = [k for k in range(len(left_batch)) if k not in axes]
    numbers = (
        tuple((*dims, *[batch[k] for k in axes]))
        for dims, batch in ((left, left_batch), (right, right_batch))
    )
    batches = tuple(tuple(batch[k] for k in remaining) for batch in (left_batch, right_batch))
    params = {**eqn.params, "dimension_numbers": (tuple(numbers), batches)}
    return build.apply(dot_general_p, *eqn.inputs, **params)


# --- derivatives ---------------------------------------------------------------------------


def _dot_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    lhs, rhs = primals
    out = dot_general(lhs, rhs, **params)
    terms = []
    if dtypes.is_inexact(aval_of(out).dtype):
        if type(tangents[0]) is not Zero:
            terms.append(dot_general(tangents[0], rhs, **params))
        if type(tangents[1]) is not Zero:
            terms.append(dot_general(lhs, tangents[1], **params))
    if not terms:
        return out, zero_tangent(out)
    return out, terms[0] if len(terms) == 1 else add_any_p.bind(*terms)


def _cotangent_of(
    cotangent: Any,
    x: ShapedArray,
    y: Any,
    dims: tuple[Dims, Dims, Dims, Dims],
    y_first: bool,
    precision: Any,
    preferred_element_type: Any,
) -> Any:
    """The cotangent of operand ``x``; ``dims`` are x and y contracting, x and y batch.

    The cotangent has dimensions (batch, x free, y free), or (batch, y free, x free) with
    ``y_first``; contracting it with y over y's free ones gives (batch, x free, y contracting).
    """
    x_contract, y_contract, x_batch, y_batch = dims
    x_free = free_dims(x.ndim, x_contract, x_batch)
    y_free = free_dims(aval_of(y).ndim, y_contract, y_batch)
    batch = tuple(range(len(x_batch)))
    start = len(x_batch) + (0 if y_first else len(x_free))
    from_y = tuple(range(start, start + len(y_free)))
    product = dot_general(
        cotangent, y, ((from_y, y_free), (batch, y_batch)), precision, preferred_element_type
    )
    by_y = sorted(zip(y_contract, x_contract))
    order = (*x_batch, *x_free, *(left for _, left in by_y))
    aligned = transpose(product, tuple(int(d) for d in np.argsort(order)))
    return aligned if aval_of(aligned).dtype == x.dtype else convert_element_type(aligned, x.dtype)


def _dot_transpose(
    cotangent: Any,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
) -> list[Any]:
    is_linear = [is_undefined(lhs), is_undefined(rhs)]
    if type(cotangent) is Zero:
        operands = (lhs, rhs)
        return [Zero(v.aval.tangent()) if is_undefined(v) else None for v in operands]
    (left, right), (left_batch, right_batch) = dimension_numbers
    options = (precision, preferred_element_type)
    if is_linear[0]:
        dims = (left, right, left_batch, right_batch)
        return [_cotangent_of(cotangent, lhs.aval, rhs, dims, False, *options), None]
    dims = (right, left, right_batch, left_batch)
    return [None, _cotangent_of(cotangent, rhs.aval, lhs, dims, True, *options)]


def _bumped(dims: Dims, inserted: int) -> Dims:
    return tuple(d + (d >= inserted) for d in dims)


def _dot_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
) -> tuple[Any, int]:
    del axis
    (left, right), (left_batch, right_batch) = dimension_numbers
    lhs_dim, rhs_dim = dims
    free: Dims = ()
    if lhs_dim is not None:
        left, left_batch = _bumped(left, lhs_dim), _bumped(left_batch, lhs_dim)
        free = free_dims(aval_of(operands[0]).ndim, left, left_batch)
    if rhs_dim is not None:
        right, right_batch = _bumped(right, rhs_dim), _bumped(right_batch, rhs_dim)
    if lhs_dim is not None and rhs_dim is not None:
        left_batch, right_batch = (lhs_dim, *left_batch), (rhs_dim, *right_batch)
        out_dim = 0
    elif lhs_dim is not None:
        # Mapped in one operand: one more free dimension, so one larger product.
        out_dim = len(left_batch) + free.index(lhs_dim)
    else:
        assert rhs_dim is not None
        lhs_dims_out = aval_of(operands[0]).ndim - len(left)
        rhs_free = free_dims(aval_of(operands[1]).ndim, right, right_batch)
        out_dim = lhs_dims_out + rhs_free.index(rhs_dim)
    numbers = ((left, right), (left_batch, right_batch))
    lhs, rhs = operands
    return dot_general(lhs, rhs, numbers, precision, preferred_element_type), out_dim


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Contract pairs of dimensions, for each index of the batch dimensions.

    Args:
        lhs: array of numbers or bools.
        rhs: array; with mixed dtypes the wider one is used.
        dimension_numbers: ``((lhs contracting, rhs contracting), (lhs batch, rhs batch))``.
        precision: precision of float32 products on GPUs; None uses ``default_matmul_precision``; or
            an algorithm with its own dtypes: see ``Precision``, ``DotAlgorithmPreset`` and
            ``DotAlgorithm``.
        preferred_element_type: dtype of the result; None uses the dtype of the operands.
        out_sharding: the sharding of the result; None uses the default device.

    Returns:
        An array of shape (batch, lhs free, rhs free). float16 and bfloat16 products are summed in
        float32, integers wrap, bools give "any of all".

    Raises:
        TypeError: if dimensions, sizes or dtypes are inconsistent.
        ValueError: if the precision is invalid, or the algorithm is not supported.

    Example:
        >>> a, b = jnp.ones((2, 3, 4)), jnp.ones((2, 4, 5))
        >>> lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))).shape
        (2, 3, 5)
    """
    if out_sharding is not None:
        out = dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
        return in_sharding("dot_general", out, out_sharding)
    numbers = as_dimension_numbers("dot_general", dimension_numbers)
    lhs, rhs = match_scalars(lhs, rhs)
    preferred = preferred_element_type
    preferred = None if preferred is None else dtypes.canonicalize(preferred)
    how, result = canonical_precision(precision), None
    if how is not None:
        lhs, rhs, preferred, result = as_algorithm(how, lhs, rhs, preferred)
    out = dot_general_p.bind(
        lhs,
        rhs,
        dimension_numbers=numbers,
        precision=how,
        preferred_element_type=preferred,
    )
    return out if result is None else convert_element_type(out, result)


def as_dimension_numbers(op: str, dimension_numbers: Any) -> DimensionNumbers:
    """Dimension numbers as tuples of ints.

    Raises:
        TypeError: if they are not two pairs of sequences of integers. ValueError: if not two.
    """
    try:
        (left, right), (left_batch, right_batch) = dimension_numbers
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"[{op}] dimension_numbers must be ((lhs contracting, rhs contracting), (lhs batch, "
            f"rhs batch)); got {brief(dimension_numbers)}. Fix: (((1,), (0,)), ((), ()))."
        ) from None

    def plain(dims: Sequence[int]) -> Dims:
        return as_integers(op, "dimension_numbers", dims)

    return (plain(left), plain(right)), (plain(left_batch), plain(right_batch))


def as_algorithm(how: Any, lhs: Any, rhs: Any, preferred: Any) -> tuple[Any, Any, Any, Any]:
    """Operands and preferred dtype for an algorithm; and the dtype of the result, or None."""
    avals = aval_of(lhs), aval_of(rhs)
    formats = algorithm_dtypes(how, avals[0].dtype, avals[1].dtype)
    if formats is None:
        return lhs, rhs, preferred, None
    result = operand_dtype(*avals) if preferred is None else preferred
    lhs, rhs = (convert_element_type(x, d) for x, d in zip((lhs, rhs), formats))
    return lhs, rhs, result if formats[2] is None else formats[2], result


def _dot_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    del definition
    numbers = eqn.params["dimension_numbers"]
    lhs, rhs, out = (atom.aval for atom in (*eqn.inputs, *eqn.outputs))
    if is_small_product(lhs, rhs, out, numbers):
        return written_out(small_product, eqn, build, dimension_numbers=numbers)
    if is_vector_product(lhs, rhs, numbers):
        wide = accumulator_dtype(operand_dtype(lhs, rhs), out.dtype)
        params = {"dimension_numbers": numbers, "accumulator": wide, "result": out.dtype}
        return written_out(vector_product, eqn, build, **params)
    return None


dot_general_p = define(
    "dot_general",
    shape=product_shape,
    impl=product_of_arrays,
    jvp=_dot_jvp,
    transpose=_dot_transpose,
    batch=_dot_batch,
    lower=Library(
        prepare=prepare_product,
        flops=product_flops,
        what=product_block,
        transposed=_dot_transposed,
        summed=_dot_summed,
        dtype_param="preferred_element_type",
        fuse_epilogue=fuse_epilogue,
    ),
    simplify=_dot_simplify,
)
