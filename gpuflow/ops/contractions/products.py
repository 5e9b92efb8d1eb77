"""Products over pairs of dimensions: dtypes, shapes, and evaluation by a library.

Shared by the ops ``dot_general`` and ``dot_general_epilogue``.

Tests: tests/ops/test_contractions.py.
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


def _bit_width(dtype: np.dtype) -> int:
    """The bits of a dtype, where a bool has one."""
    return 1 if dtypes.is_bool(dtype) else 8 * dtype.itemsize


def _dtype_sort_key(dtype: np.dtype) -> tuple[Any, ...]:
    """Sort key of dtypes, as in XLA: a mixed product has the greater one."""
    real = _real_dtype(dtype)
    info = ml_dtypes.finfo(real) if dtypes.is_floating(real) else None
    exponent, mantissa_bits = (info.maxexp, info.nmant) if info else (-1, -1)
    return dtypes.is_complex(dtype), exponent, mantissa_bits, _bit_width(dtype), dtype.kind != "u"


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
    left, right = _dtype_sort_key(lhs.dtype), _dtype_sort_key(rhs.dtype)
    check(
        left != right,
        lambda: (
            "[dot_general] operands must have dtypes one of which is wider; got "
            f"{types_text([lhs, rhs])}. Fix: convert one with x.astype(...)."
        ),
    )
    return lhs.dtype if left > right else rhs.dtype


def accumulator_dtype(common: np.dtype, result: np.dtype) -> np.dtype:
    """The dtype in which products are added: at least float32 for floats.

    Args:
        common: the dtype of ``operand_dtype``.
        result: the dtype of the result.

    Returns:
        ``result`` if it is at least as wide and of at least as general a kind (bool, integer,
        float, complex), else ``common``. Floats of at most 16 bits become float32.
    """
    kinds = (dtypes.is_integer, dtypes.is_floating, dtypes.is_complex)

    def kind_rank(dtype: np.dtype) -> int:
        return next((k for k, holds in enumerate(kinds, 1) if holds(dtype)), 0)

    is_kind_general = kind_rank(result) >= kind_rank(common)
    is_result_wider = is_kind_general and _bit_width(result) >= _bit_width(common)
    wider = result if is_result_wider else common
    return dtypes.float32 if dtypes.is_floating(wider) and wider.itemsize <= 2 else wider


# --- shape ---------------------------------------------------------------------------------


def free_dims(ndim: int, *excluded: Sequence[int]) -> Dims:
    """The dimensions that are not excluded, in order; none may be negative."""
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


def _check_sizes(role: str, lhs: ShapedArray, rhs: ShapedArray, left: Dims, right: Dims) -> None:
    check(
        [lhs.shape[d] for d in left] == [rhs.shape[d] for d in right],
        lambda: (
            f"[dot_general] {role} dimensions must have equal sizes; got lhs {lhs} along {left} "
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
    """Check the parameters of a product, and return the shape and dtype of its result."""
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
        dtypes.is_floating(common) or _bit_width(result) >= _bit_width(common),
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
class _MatrixLayout:
    """Layout of operands as stacks of matrices [batch..., M, K] and [batch..., K, N].

    Attributes:
        permutations: permutation of each operand's dimensions; None for the identity.
        shapes: shape of each operand as a stack.
        result_shape: shape of the result as a stack [batch..., M, N].
        accumulator_dtype: the dtype in which products are added.
        out: shape and dtype of the result of the op.
    """

    permutations: tuple[Dims | None, Dims | None]
    shapes: tuple[Dims, Dims]
    result_shape: Dims
    accumulator_dtype: np.dtype
    out: ShapedArray


@lru_cache(4096)
def _matrix_layout(
    lhs: ShapedArray,
    rhs: ShapedArray,
    dimension_numbers: DimensionNumbers,
    preferred_element_type: Any,
) -> _MatrixLayout:
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
    permutations = (*lhs_batch, *lhs_free, *lhs_contract), (*rhs_batch, *rhs_contract, *rhs_free)
    left, right = [None if order == tuple(range(len(order))) else order for order in permutations]
    return _MatrixLayout(
        (left, right),
        ((*batch, rows, depth), (*batch, depth, columns)),
        (*batch, rows, columns),
        accumulator_dtype(operand_dtype(lhs, rhs), out.dtype),
        out,
    )


def _as_matrices(array: Any, permutation: Dims | None, shape: Dims, dtype: np.dtype) -> Any:
    """An operand as a stack of matrices of a dtype.

    It is a view if the strides and the dtype allow it: then transposition is a flag of the library.
    """
    if permutation is not None:
        array = array.transpose(permutation)
    if array.shape != shape:
        array = array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def prepare_product(
    in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], params: dict[str, Any]
) -> Callable[..., None]:
    """Return a function that computes the product of two arrays.

    The function takes the module of the arrays (NumPy or one with its interface), the outputs and
    the operands. ``outs[0]`` must be contiguous, and must not overlap an operand.
    """
    del out_avals
    dimension_numbers, preferred = params["dimension_numbers"], params["preferred_element_type"]
    layout = _matrix_layout(*in_avals, dimension_numbers, preferred)

    def multiply(xp: Any, outs: Sequence[Any], lhs: Any, rhs: Any) -> None:
        dtype = layout.accumulator_dtype
        left = _as_matrices(lhs, layout.permutations[0], layout.shapes[0], dtype)
        right = _as_matrices(rhs, layout.permutations[1], layout.shapes[1], dtype)
        target = outs[0]
        if target.shape != layout.result_shape:
            target = target.reshape(layout.result_shape)
        if dtype == target.dtype:
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
    return _product_of_dtypes(
        (lhs.dtype, rhs.dtype, out_avals[0].dtype),
        lhs.ndim,
        rhs.ndim,
        params["dimension_numbers"],
        may_round(params["precision"]),
        epilogue,
    )


@lru_cache(1024)
def _product_of_dtypes(
    product_dtypes: tuple[Any, Any, Any],
    left_ndim: int,
    right_ndim: int,
    dimension_numbers: Any,
    may_round_operands: bool,
    epilogue: Epilogue | None,
) -> Product:
    """The block of a product, independent of sizes; the dtypes are of lhs, rhs and result."""
    lhs_dtype, rhs_dtype, result_dtype = product_dtypes
    accumulated = accumulator_dtype(result_dtype, result_dtype)
    (left, right), (left_batch, right_batch) = dimension_numbers
    pairs = sorted(zip(left, right))
    left, right = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return Product(
        (left_batch, free_dims(left_ndim, left, left_batch), left),
        (right_batch, right, free_dims(right_ndim, right, right_batch)),
        one_dtype=lhs_dtype == rhs_dtype == result_dtype == accumulated,
        reduced=may_round_operands,
        epilogue=epilogue,
    )


def product_of_arrays(xp: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """Compute the product of two arrays of the module ``xp`` in a new array."""
    dimension_numbers, preferred = params["dimension_numbers"], params["preferred_element_type"]
    avals = ShapedArray(lhs.shape, lhs.dtype), ShapedArray(rhs.shape, rhs.dtype)
    aval = _matrix_layout(*avals, dimension_numbers, preferred).out
    out = xp.empty(aval.shape, aval.dtype)
    prepare_product(avals, (aval,), params)(xp, [out], lhs, rhs)
    return out


def product_flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    """A multiplication and an addition for each term; four of each for complex numbers."""
    lhs, out = in_avals[0], out_avals[0]
    (contract, _), _ = params["dimension_numbers"]
    terms = out.size * prod(lhs.shape[d] for d in contract)
    return (8 if dtypes.is_complex(out.dtype) else 2) * terms
