"""dot_general: products summed over any pairs of dimensions, the op after matmul and einsum.

Dimension numbers are ``((lhs contracting, rhs contracting), (lhs batch, rhs batch))``. The result
has the batch dimensions, then the free ones of lhs, then those of rhs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import are_dimensions, as_integers
from gpuflow.base.errors import check
from gpuflow.base.foreign import told
from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.contractions.precision import algorithm_dtypes, canonical_precision, may_round
from gpuflow.ops.contractions.vector_products import is_vector_product, vector_product
from gpuflow.ops.define import check_kind, define, holds_values, types_text
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.nary import add_any_p, match_scalars
from gpuflow.ops.layout.transpose import transpose
from gpuflow.ops.linalg.small_matrices import is_small_product, small_product
from gpuflow.ops.written_out import written_out

Dims = tuple[int, ...]
DimensionNumbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]


# --- dtypes --------------------------------------------------------------------------------


def _real_part(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtypes.is_complex(dtype) else dtype


def _width(dtype: np.dtype) -> int:
    return 1 if dtypes.is_bool(dtype) else 8 * dtype.itemsize


def _rank_of(dtype: np.dtype) -> tuple[Any, ...]:
    """Orders dtypes as XLA does to find the result of a mixed product."""
    real = _real_part(dtype)
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


def _free(ndim: int, *taken: Sequence[int]) -> Dims:
    return tuple(d for d in range(ndim) if not any(d in dims for dims in taken))


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


def _dot_shape(
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
        *(lhs.shape[d] for d in (*lhs_batch, *_free(lhs.ndim, lhs_contract, lhs_batch))),
        *(rhs.shape[d] for d in _free(rhs.ndim, rhs_contract, rhs_batch)),
    )
    return ShapedArray(shape, result, lhs.weak_type and rhs.weak_type)


# --- evaluation ----------------------------------------------------------------------------


@record
class _Plan:
    """How operands become stacks of matrices [batch..., M, K] and [batch..., K, N].

    Attributes:
        orders: for each operand, its dimensions in that order; None: they are already.
        shapes: for each operand, its shape as such a stack.
        target: the shape of the result as a stack [batch..., M, N].
        wide: the dtype in which products are added.
    """

    orders: tuple[Dims | None, Dims | None]
    shapes: tuple[Dims, Dims]
    target: Dims
    wide: np.dtype
    out: ShapedArray


@lru_cache(maxsize=4096)
def _plan(
    lhs: ShapedArray,
    rhs: ShapedArray,
    dimension_numbers: DimensionNumbers,
    preferred_element_type: Any,
) -> _Plan:
    out = _dot_shape(
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
    lhs_free = _free(lhs.ndim, lhs_contract, lhs_batch)
    rhs_free = _free(rhs.ndim, rhs_contract, rhs_batch)
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
    """A view wherever the strides allow it: transposition then is a flag of the library."""
    if order is not None:
        array = array.transpose(order)
    if array.shape != shape:
        array = array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def _prepare_dot(
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


def _dot_product(
    in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray], params: dict[str, Any]
) -> Product:
    lhs, rhs = in_avals
    return _product_of(
        (lhs.dtype, rhs.dtype, out_avals[0].dtype), lhs.ndim, rhs.ndim,
        params["dimension_numbers"], may_round(params["precision"]),
    )  # fmt: skip


@lru_cache(1024)
def _product_of(
    kinds: tuple[Any, Any, Any], left_ndim: int, right_ndim: int, numbers: Any, reduced: bool
) -> Product:
    """The product of operands and a result of some dtypes, whatever their sizes."""
    one, other, dtype = kinds
    (left, right), (left_batch, right_batch) = numbers
    pairs = sorted(zip(left, right))
    left, right = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return Product(
        (left_batch, _free(left_ndim, left, left_batch), left),
        (right_batch, right, _free(right_ndim, right, right_batch)),
        one_dtype=one == other == dtype == accumulator(dtype, dtype),
        reduced=reduced,
    )


def _dot_impl(xp: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    numbers, preferred = params["dimension_numbers"], params["preferred_element_type"]
    avals = ShapedArray(lhs.shape, lhs.dtype), ShapedArray(rhs.shape, rhs.dtype)
    aval = _plan(*avals, numbers, preferred).out
    out = xp.empty(aval.shape, aval.dtype)
    _prepare_dot(avals, (aval,), params)(xp, [out], lhs, rhs)
    return out


def _dot_flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    """A product and a sum for each term; four of each for complex numbers."""
    lhs, out = in_avals[0], out_avals[0]
    (contract, _), _ = params["dimension_numbers"]
    terms = out.size * prod(lhs.shape[d] for d in contract)
    return (8 if dtypes.is_complex(out.dtype) else 2) * terms


def _dot_transposed(eqn: Any, permutation: Dims, build: Any) -> Any:
    """The product with its free dimensions exchanged: the operands exchange places."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    lhs, rhs = eqn.inputs
    batch = len(left_batch)
    first = len(_free(lhs.aval.ndim, left, left_batch))
    ndim = eqn.outputs[0].aval.ndim
    exchanged = (*range(batch), *range(batch + first, ndim), *range(batch, batch + first))
    if permutation != exchanged:
        return None
    numbers = ((right, left), (right_batch, left_batch))
    params = {**eqn.params, "dimension_numbers": numbers}
    return build.apply(dot_general_p, rhs, lhs, **params)


def _dot_summed(eqn: Any, axes: Dims, build: Any) -> Any:
    """The sum over batch dimensions: they are contracted instead."""
    (left, right), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    if any(axis >= len(left_batch) for axis in axes):
        return None
    kept = [k for k in range(len(left_batch)) if k not in axes]
    numbers = (
        tuple((*dims, *[batch[k] for k in axes]))
        for dims, batch in ((left, left_batch), (right, right_batch))
    )
    batches = tuple(tuple(batch[k] for k in kept) for batch in (left_batch, right_batch))
    params = {**eqn.params, "dimension_numbers": (tuple(numbers), batches)}
    return build.apply(dot_general_p, *eqn.inputs, **params)


# --- derivatives ---------------------------------------------------------------------------


def _dot_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    lhs, rhs = primals
    out = dot_general(lhs, rhs, **params)
    parts = []
    if dtypes.is_inexact(aval_of(out).dtype):
        if type(tangents[0]) is not Zero:
            parts.append(dot_general(tangents[0], rhs, **params))
        if type(tangents[1]) is not Zero:
            parts.append(dot_general(lhs, tangents[1], **params))
    if not parts:
        return out, zero_tangent(out)
    return out, parts[0] if len(parts) == 1 else add_any_p.bind(*parts)


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
    x_free = _free(x.ndim, x_contract, x_batch)
    y_free = _free(aval_of(y).ndim, y_contract, y_batch)
    batch = tuple(range(len(x_batch)))
    start = len(x_batch) + (0 if y_first else len(x_free))
    from_y = tuple(range(start, start + len(y_free)))
    product = dot_general(
        cotangent, y, ((from_y, y_free), (batch, y_batch)), precision, preferred_element_type
    )
    by_y = sorted(zip(y_contract, x_contract))
    order = (*x_batch, *x_free, *(left for _, left in by_y))
    moved = transpose(product, tuple(int(d) for d in np.argsort(order)))
    return moved if aval_of(moved).dtype == x.dtype else convert_element_type(moved, x.dtype)


def _dot_transpose(
    cotangent: Any,
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
) -> list[Any]:
    unknown = [is_undefined(lhs), is_undefined(rhs)]
    if type(cotangent) is Zero:
        operands = (lhs, rhs)
        return [Zero(v.aval.tangent()) if is_undefined(v) else None for v in operands]
    (left, right), (left_batch, right_batch) = dimension_numbers
    rest = (precision, preferred_element_type)
    if unknown[0]:
        dims = (left, right, left_batch, right_batch)
        return [_cotangent_of(cotangent, lhs.aval, rhs, dims, False, *rest), None]
    dims = (right, left, right_batch, left_batch)
    return [None, _cotangent_of(cotangent, rhs.aval, lhs, dims, True, *rest)]


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
        free = _free(aval_of(operands[0]).ndim, left, left_batch)
    if rhs_dim is not None:
        right, right_batch = _bumped(right, rhs_dim), _bumped(right_batch, rhs_dim)
    if lhs_dim is not None and rhs_dim is not None:
        left_batch, right_batch = (lhs_dim, *left_batch), (rhs_dim, *right_batch)
        place = 0
    elif lhs_dim is not None:
        # Mapped on one side only: one more free dimension, so one larger product.
        place = len(left_batch) + free.index(lhs_dim)
    else:
        assert rhs_dim is not None
        lhs_kept = aval_of(operands[0]).ndim - len(left)
        rhs_free = _free(aval_of(operands[1]).ndim, right, right_batch)
        place = lhs_kept + rhs_free.index(rhs_dim)
    numbers = ((left, right), (left_batch, right_batch))
    lhs, rhs = operands
    return dot_general(lhs, rhs, numbers, precision, preferred_element_type), place


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None, *, out_sharding: ShardingLike = None
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
        lhs, rhs, preferred, result = as_algorithm_says(how, lhs, rhs, preferred)
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
        TypeError: they are not two pairs of sequences of integers. ValueError: not two.
    """
    try:
        (left, right), (left_batch, right_batch) = dimension_numbers
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"[{op}] dimension_numbers must be ((lhs contracting, rhs contracting), (lhs batch, "
            f"rhs batch)); got {told(dimension_numbers)}. Fix: (((1,), (0,)), ((), ()))."
        ) from None

    def plain(dims: Sequence[int]) -> Dims:
        return as_integers(op, "dimension_numbers", dims)

    return (plain(left), plain(right)), (plain(left_batch), plain(right_batch))


def as_algorithm_says(how: Any, lhs: Any, rhs: Any, preferred: Any) -> tuple[Any, Any, Any, Any]:
    """Operands and preferred dtype as an algorithm wants them; the dtype of the result, or None."""
    avals = aval_of(lhs), aval_of(rhs)
    formats = algorithm_dtypes(how, avals[0].dtype, avals[1].dtype)
    if formats is None:
        return lhs, rhs, preferred, None
    result = operand_dtype(*avals) if preferred is None else preferred
    lhs, rhs = (convert_element_type(x, d) for x, d in zip((lhs, rhs), formats))
    return lhs, rhs, result if formats[2] is None else formats[2], result


def _dot_simplify(eqn: Any, definition: Any, build: Any) -> list[Any] | None:
    del definition
    numbers = eqn.params["dimension_numbers"]
    lhs, rhs, out = (atom.aval for atom in (*eqn.inputs, *eqn.outputs))
    if is_small_product(lhs, rhs, out, numbers):
        return written_out(small_product, eqn, build, dimension_numbers=numbers)
    if is_vector_product(lhs, rhs, numbers):
        wide = accumulator(operand_dtype(lhs, rhs), out.dtype)
        params = {"dimension_numbers": numbers, "accumulator": wide, "result": out.dtype}
        return written_out(vector_product, eqn, build, **params)
    return None


dot_general_p = define(
    "dot_general",
    shape=_dot_shape,
    impl=_dot_impl,
    jvp=_dot_jvp,
    transpose=_dot_transpose,
    batch=_dot_batch,
    lower=Library(
        prepare=_prepare_dot,
        flops=_dot_flops,
        what=_dot_product,
        transposed=_dot_transposed,
        summed=_dot_summed,
        dtype_param="preferred_element_type",
    ),
    simplify=_dot_simplify,
)
