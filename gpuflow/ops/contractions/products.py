"""Products over pairs of dimensions: dtypes, shapes, and evaluation by a library.

Shared by the ops ``dot_general`` and ``dot_general_epilogue``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import are_dimensions
from gpuflow.base.caches import lru_cache
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import Product
from gpuflow.core.epilogues import Epilogue
from gpuflow.ops.contractions.precision import may_round
from gpuflow.ops.define import check_kind, holds_values, types_text

Dims = tuple[int, ...]
DimensionNumbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]


# --- dtypes --------------------------------------------------------------------------------


def _real_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtypes.is_complex(dtype) else dtype


def _width(dtype: np.dtype) -> int:
    return 1 if dtypes.is_bool(dtype) else 8 * dtype.itemsize


def _rank_of(dtype: np.dtype) -> tuple[Any, ...]:
    """Sort key of dtypes, as in XLA, for the result of a mixed product."""
    real = _real_dtype(dtype)
    info = ml_dtypes.finfo(real) if dtypes.is_floating(real) else None
    range_, digits = (info.maxexp, info.nmant) if info else (-1, -1)
    return dtypes.is_complex(dtype), range_, digits, _width(dtype), dtype.kind != "u"


def operand_dtype(lhs: ShapedArray, rhs: ShapedArray) -> np.dtype:
    """The dtype of the product of two operands.

    Source: XLA shape_inference.cc, HigherPrecisionType.
    """
    check(
        not dtypes.is_extended(lhs.dtype) and not dtypes.is_extended(rhs.dtype),
        lambda: (
            f"[dot_general] operands must hold numbers; got {types_text([lhs, rhs])}. "
            "Fix: use key_data(key) for the integers inside a key."
        ),
    )
    if lhs.dtype == rhs.dtype:
        return lhs.dtype
    left, right = _rank_of(lhs.dtype), _rank_of(rhs.dtype)
    check(
        left != right,
        lambda: (
            "[dot_general] operands must have dtypes one of which is wider; got "
            f"{types_text([lhs, rhs])}. Fix: convert one with x.astype(...)."
        ),
    )
    return lhs.dtype if left > right else rhs.dtype


def accumulator(common: np.dtype, result: np.dtype) -> np.dtype:
    """The dtype in which products are added: at least float32 for floats."""
    kinds = (dtypes.is_integer, dtypes.is_floating, dtypes.is_complex)

    def kind(dtype: np.dtype) -> int:
        return next((k for k, holds in enumerate(kinds, 1) if holds(dtype)), 0)

    wider = kind(result) >= kind(common) and _width(result) >= _width(common)
    wide = result if wider else common
    return dtypes.float32 if dtypes.is_floating(wide) and wide.itemsize <= 2 else wide


# --- shape ---------------------------------------------------------------------------------


def free_dims(ndim: int, *excluded: Sequence[int]) -> Dims:
    return tuple(d for d in range(ndim) if not any(d in dims for dims in excluded))


def _check_side(side: str, aval: ShapedArray, contracting: Dims, batch: Dims) -> None:
    dims = (*contracting, *batch)
    check(
        are_dimensions(dims, aval.ndim),
        lambda: (
            f"[dot_general] {side} dimensions must exist and differ; got contracting "
            f"{contracting} and batch {batch} for {aval}. "
            f"Fix: use each of [0, {aval.ndim}) at most once."
        ),
    )


def _check_sizes(what: str, lhs: ShapedArray, rhs: ShapedArray, left: Dims, right: Dims) -> None:
    check(
        [lhs.shape[d] for d in left] == [rhs.shape[d] for d in right],
        lambda: (
            f"[dot_general] {what} dimensions must have equal sizes; got lhs {lhs} along {left} "
            f"and rhs {rhs} along {right}. Fix: transpose or reshape one operand."
        ),
    )


def product_shape(
    lhs: ShapedArray,
    rhs: ShapedArray,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
) -> ShapedArray:
    del precision
    common = operand_dtype(lhs, rhs)
    check_kind("dot_general", lhs, holds_values, "a number or bool")
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    _check_side("lhs", lhs, lhs_contract, lhs_batch)
    _check_side("rhs", rhs, rhs_contract, rhs_batch)
    _check_sizes("contracting", lhs, rhs, lhs_contract, rhs_contract)
    _check_sizes("batch", lhs, rhs, lhs_batch, rhs_batch)
    result = common if preferred_element_type is None else preferred_element_type
    check(
        dtypes.is_floating(common) or _width(result) >= _width(common),
        lambda: (
            f"[dot_general] preferred_element_type must not be narrower than {common}; got "
            f"{result} for {types_text([lhs, rhs])}. Fix: convert the result with x.astype(...)."
        ),
    )
    shape = (
        *(lhs.shape[d] for d in (*lhs_batch, *free_dims(lhs.ndim, lhs_contract, lhs_batch))),
        *(rhs.shape[d] for d in free_dims(rhs.ndim, rhs_contract, rhs_batch)),
    )
    return ShapedArray(shape, result, lhs.weak_type and rhs.weak_type)


# --- evaluation ----------------------------------------------------------------------------


@record
class _Plan:
    """Layout of operands as stacks of matrices [batch..., M, K] and [batch..., K, N].

    Attributes:
        orders: permutation of each operand; None for the identity.
        shapes: shape of each operand as a stack.
        target: the shape of the result as a stack [batch..., M, N].
        wide: the dtype in which products are added.
    """

    orders: tuple[Dims | None, Dims | None]
    shapes: tuple[Dims, Dims]
    target: Dims
    wide: np.dtype
    out: ShapedArray


@lru_cache(4096)
def _plan(
    lhs: ShapedArray,
    rhs: ShapedArray,
    dimension_numbers: DimensionNumbers,
    preferred_element_type: Any,
) -> _Plan:
    out = product_shape(
        lhs,
        rhs,
        dimension_numbers=dimension_numbers,
        precision=None,
        preferred_element_type=preferred_element_type,
    )
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    pairs = sorted(zip(lhs_contract, rhs_contract))
    lhs_contract = tuple(left for left, _ in pairs)
    rhs_contract = tuple(right for _, right in pairs)
    lhs_free = free_dims(lhs.ndim, lhs_contract, lhs_batch)
    rhs_free = free_dims(rhs.ndim, rhs_contract, rhs_batch)
    batch = tuple(lhs.shape[d] for d in lhs_batch)
    depth = prod(lhs.shape[d] for d in lhs_contract)
    rows = prod(lhs.shape[d] for d in lhs_free)
    columns = prod(rhs.shape[d] for d in rhs_free)
    orders = (*lhs_batch, *lhs_free, *lhs_contract), (*rhs_batch, *rhs_contract, *rhs_free)
    left, right = [None if order == tuple(range(len(order))) else order for order in orders]
    return _Plan(
        (left, right),
        ((*batch, rows, depth), (*batch, depth, columns)),
        (*batch, rows, columns),
        accumulator(operand_dtype(lhs, rhs), out.dtype),
        out,
    )


def _as_matrices(array: Any, order: Dims | None, shape: Dims, dtype: np.dtype) -> Any:
    """A view if the strides allow it: then transposition is a flag of the library."""
    if order is not None:
        array = array.transpose(order)
    if array.shape != shape:
        array = array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def prepare_product(
    in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], params: dict[str, Any]
) -> Callable[..., None]:
    """The product of two arrays into ``outs[0]``, which is contiguous."""
    del out_avals
    numbers, preferred = params["dimension_numbers"], params["preferred_element_type"]
    plan = _plan(*in_avals, numbers, preferred)

    def multiply(xp: Any, outs: Sequence[Any], lhs: Any, rhs: Any) -> None:
        left = _as_matrices(lhs, plan.orders[0], plan.shapes[0], plan.wide)
        right = _as_matrices(rhs, plan.orders[1], plan.shapes[1], plan.wide)
        target = outs[0]
        if target.shape != plan.target:
            target = target.reshape(plan.target)
        if plan.wide == target.dtype:
            xp.matmul(left, right, out=target)
        else:
            target[...] = xp.matmul(left, right)

    return multiply


def product_block(
    in_avals: Sequence[ShapedArray],
    out_avals: Sequence[ShapedArray],
    params: dict[str, Any],
    epilogue: Epilogue | None = None,
) -> Product:
    """The block of a product, for providers of targets."""
    lhs, rhs = in_avals
    return _product_of(
        (lhs.dtype, rhs.dtype, out_avals[0].dtype),
        lhs.ndim,
        rhs.ndim,
        params["dimension_numbers"],
        may_round(params["precision"]),
        epilogue,
    )


@lru_cache(1024)
def _product_of(
    kinds: tuple[Any, Any, Any],
    left_ndim: int,
    right_ndim: int,
    numbers: Any,
    reduced: bool,
    epilogue: Epilogue | None,
) -> Product:
    """The block of a product by dtypes, independent of sizes."""
    one, other, dtype = kinds
    (left, right), (left_batch, right_batch) = numbers
    pairs = sorted(zip(left, right))
    left, right = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return Product(
        (left_batch, free_dims(left_ndim, left, left_batch), left),
        (right_batch, right, free_dims(right_ndim, right, right_batch)),
        one_dtype=one == other == dtype == accumulator(dtype, dtype),
        reduced=reduced,
        epilogue=epilogue,
    )


def product_of_arrays(xp: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    numbers, preferred = params["dimension_numbers"], params["preferred_element_type"]
    avals = ShapedArray(lhs.shape, lhs.dtype), ShapedArray(rhs.shape, rhs.dtype)
    aval = _plan(*avals, numbers, preferred).out
    out = xp.empty(aval.shape, aval.dtype)
    prepare_product(avals, (aval,), params)(xp, [out], lhs, rhs)
    return out


def product_flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    """A multiplication and an addition for each term; four of each for complex numbers."""
    lhs, out = in_avals[0], out_avals[0]
    (contract, _), _ = params["dimension_numbers"]
    terms = out.size * prod(lhs.shape[d] for d in contract)
    return (8 if dtypes.is_complex(out.dtype) else 2) * terms
