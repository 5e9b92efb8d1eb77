"""Products of matrices in groups of rows, in one layout: batch, groups, rows, columns.

Groups are consecutive rows: the first ``sizes[0]`` rows are group 0, and so on. Rows after the last
group are in no group. Both ops are bilinear, and each is the other's derivative:

    ragged_dot      out[b, i, :] = lhs[b, i, :] @ rhs[b, group of i]
    ragged_outer    out[b, g] = sum of lhs[b, i, :]^T rhs[b, i, :] over the rows i of group g

Tests: tests/lax/test_lax_definitions.py, tests/ops/test_precision_on_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.ops.contractions.products import accumulator_dtype, operand_dtype
from gpuflow.ops.define import define, types_text
from gpuflow.ops.elementwise.arithmetic import mul
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import reshape
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.transpose import move_axis, transpose


def _check(name: str, lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, valid: bool) -> None:
    check(
        dtypes.is_integer(sizes.dtype),
        lambda: (
            f"[{name}] group sizes must be integers; got {sizes}. Fix: sizes.astype(jnp.int32)."
        ),
    )
    check(
        valid,
        lambda: (
            f"[{name}] operands must be stacks of matrices with group sizes i[batch, groups] that "
            f"fit; got {types_text([lhs, rhs, sizes])}. Fix: lax.ragged_dot_general, which makes "
            "them."
        ),
    )


def _out(lhs: ShapedArray, rhs: ShapedArray, shape: tuple[int, ...], preferred: Any) -> ShapedArray:
    return ShapedArray(shape, operand_dtype(lhs, rhs) if preferred is None else preferred)


def _groups(sizes: Any, rows: int) -> Iterator[tuple[int, int, int, int]]:
    """(batch, group, start, stop) of each group that has rows."""
    for batch, batch_sizes in enumerate(sizes.tolist()):
        total = start = 0
        for group, size in enumerate(batch_sizes):
            total += size
            stop = min(max(total, 0), rows)
            if start < stop:
                yield batch, group, start, stop
            start = stop


def _dot_shape(
    lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, *, preferred_element_type: Any
) -> ShapedArray:
    valid = (lhs.ndim, rhs.ndim, sizes.ndim) == (3, 4, 2) and (
        lhs.shape[0] == rhs.shape[0]
        and rhs.shape[:2] == sizes.shape
        and lhs.shape[2] == rhs.shape[2]
    )
    _check("ragged_dot", lhs, rhs, sizes, valid)
    return _out(lhs, rhs, (*lhs.shape[:2], rhs.shape[3]), preferred_element_type)


def _outer_shape(
    lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, *, preferred_element_type: Any
) -> ShapedArray:
    valid = (lhs.ndim, rhs.ndim, sizes.ndim) == (3, 3, 2) and (
        lhs.shape[:2] == rhs.shape[:2] and lhs.shape[0] == sizes.shape[0]
    )
    _check("ragged_outer", lhs, rhs, sizes, valid)
    shape = (*sizes.shape, lhs.shape[2], rhs.shape[2])
    return _out(lhs, rhs, shape, preferred_element_type)


def _prepared(product: Callable[..., None], ins: Any, outs: Any, params: Any) -> Any:
    """A call that zeros the output and runs ``product(xp, out, lhs, rhs, sizes)``."""
    del params
    dtype = outs[0].dtype
    wide = accumulator_dtype(operand_dtype(*ins[:2]), dtype)

    def call(xp: Any, out_arrays: Any, lhs: Any, rhs: Any, sizes: Any) -> None:
        out = out_arrays[0] if dtype == wide else xp.empty(outs[0].shape, wide)
        out[...] = 0
        host = sizes if xp is np else xp.asnumpy(sizes)
        product(xp, out, lhs.astype(wide, copy=False), rhs.astype(wide, copy=False), host)
        if dtype != wide:
            out_arrays[0][...] = out.astype(dtype)

    return call


def _impl(product: Callable[..., None], shape: Callable[..., Any]) -> Callable[..., Any]:
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        avals = [ShapedArray(x.shape, x.dtype) for x in arrays]
        out_aval = shape(*avals, **params)
        out = xp.empty(out_aval.shape, out_aval.dtype)
        _prepared(product, avals, [out_aval], params)(xp, [out], *arrays)
        return out

    return impl


def _dot_product(xp: Any, out: Any, lhs: Any, rhs: Any, sizes: Any) -> None:
    for batch, group, start, stop in _groups(sizes, lhs.shape[1]):
        xp.matmul(lhs[batch, start:stop], rhs[batch, group], out=out[batch, start:stop])


def _outer_product(xp: Any, out: Any, lhs: Any, rhs: Any, sizes: Any) -> None:
    for batch, group, start, stop in _groups(sizes, lhs.shape[1]):
        rows = slice(start, stop)
        xp.matmul(lhs[batch, rows].T, rhs[batch, rows], out=out[batch, group])


# --- derivatives ---------------------------------------------------------------------------


def _swap(x: Any) -> Any:
    rank = aval_of(x).ndim
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _jvp(
    get: Callable[[], Primitive], primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    lhs, rhs, sizes = primals
    out = get().bind(*primals, **params)
    terms = []
    if type(tangents[0]) is not Zero:
        terms.append(get().bind(tangents[0], rhs, sizes, **params))
    if type(tangents[1]) is not Zero:
        terms.append(get().bind(lhs, tangents[1], sizes, **params))
    if not terms:
        return out, zero_tangent(out)
    return out, terms[0] if len(terms) == 1 else add_any_p.bind(*terms)


def _transpose(
    rules: Sequence[Callable[..., Any]],
    ct: Any,
    lhs: Any,
    rhs: Any,
    sizes: Any,
    *,
    preferred_element_type: Any,
) -> list[Any]:
    """Apply ``rules[k](ct, other operand, sizes, dtype)`` for the undefined operand."""
    del preferred_element_type
    position = 0 if is_undefined(lhs) else 1
    linear, other = (lhs, rhs) if position == 0 else (rhs, lhs)
    result: list[Any] = [None, None, None]
    if is_undefined(linear):
        result[position] = (
            Zero(linear.aval.tangent())
            if type(ct) is Zero
            else rules[position](ct, other, sizes, linear.aval.dtype)
        )
    return result


def _dot(lhs: Any, rhs: Any, sizes: Any, dtype: Any) -> Any:
    return ragged_dot_p.bind(lhs, rhs, sizes, preferred_element_type=dtype)


def _outer(lhs: Any, rhs: Any, sizes: Any, dtype: Any) -> Any:
    return ragged_outer_p.bind(lhs, rhs, sizes, preferred_element_type=dtype)


_DOT_RULES = (
    lambda ct, rhs, sizes, dtype: _dot(ct, _swap(rhs), sizes, dtype),
    lambda ct, lhs, sizes, dtype: _outer(lhs, ct, sizes, dtype),
)
_OUTER_RULES = (
    lambda ct, rhs, sizes, dtype: _dot(rhs, _swap(ct), sizes, dtype),
    lambda ct, lhs, sizes, dtype: _dot(lhs, ct, sizes, dtype),
)


# --- batching ------------------------------------------------------------------------------


def _merged(x: Any, dim: int | None, size: int) -> Any:
    """Merge the mapped dimension into the batch dimension."""
    x = batch_to_dim(x, dim, 0, size)
    shape = aval_of(x).shape
    return reshape(x, (shape[0] * shape[1], *shape[2:]))


def _batch(
    get: Callable[[], Primitive],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[Any, int]:
    pairs = zip(operands, dims, strict=True)
    out = get().bind(*[_merged(x, dim, axis.size) for x, dim in pairs], **params)
    shape = aval_of(out).shape
    return reshape(out, (axis.size, shape[0] // max(axis.size, 1), *shape[1:])), 0


def _dot_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    if dims[1] is not None or dims[2] is not None:
        return _batch(lambda: ragged_dot_p, axis, operands, dims, **params)
    # Only rows are mapped: each group has more of them.
    lhs, rhs, sizes = operands
    assert dims[0] is not None
    lhs = move_axis(lhs, dims[0], 2)
    batch, rows, count, depth = aval_of(lhs).shape
    sizes = mul(sizes, np.asarray(count, aval_of(sizes).dtype)[()])
    out = ragged_dot_p.bind(reshape(lhs, (batch, rows * count, depth)), rhs, sizes, **params)
    return reshape(out, (batch, rows, count, aval_of(out).shape[2])), 2


ragged_dot_p = define(
    "ragged_dot",
    shape=_dot_shape,
    impl=_impl(_dot_product, _dot_shape),
    jvp=partial(_jvp, lambda: ragged_dot_p),
    transpose=partial(_transpose, _DOT_RULES),
    batch=_dot_batch,
    lower=Library(
        prepare=partial(_prepared, _dot_product),
        flops=lambda ins, outs, params: 2 * ins[0].size * outs[0].shape[2],
    ),
    tolerance=16,
)
ragged_outer_p = define(
    "ragged_outer",
    shape=_outer_shape,
    impl=_impl(_outer_product, _outer_shape),
    jvp=partial(_jvp, lambda: ragged_outer_p),
    transpose=partial(_transpose, _OUTER_RULES),
    batch=partial(_batch, lambda: ragged_outer_p),
    lower=Library(
        prepare=partial(_prepared, _outer_product),
        flops=lambda ins, outs, params: 2 * ins[0].size * outs[0].shape[3],
    ),
    tolerance=16,
)
