"""Rows by index: row_gather and its transpose row_scatter_add.

With ``batch_dims`` b, the first b dimensions of ``x`` and ``indices`` are batch dimensions, and
dimension b of ``x`` is indexed:

    out[batch..., j..., rest...] = x[batch..., indices[batch..., j...], rest...]

Negative indices do not wrap; the numpy layer does that. ``mode`` defines the meaning of an index
outside [0, size):

    clip                the nearest row
    fill                a row of nan; the least signed, the largest unsigned integer; True
    zero                a row of zeros
    promise_in_bounds   it does not occur; if it does: read the nearest row, drop updates, as JAX

Tests: tests/ops/test_indexing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import row_major_strides
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Literal
from gpuflow.core.lowering import Indexed, Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined, zero_tangent
from gpuflow.ops.define import check_kind, define, is_number, types_text
from gpuflow.ops.elementwise.arithmetic import sub
from gpuflow.ops.elementwise.comparison import bitwise_and, bitwise_or, eq, ge, lt
from gpuflow.ops.elementwise.convert import convert_element_type, convert_element_type_p
from gpuflow.ops.elementwise.select import clamp, select_n
from gpuflow.ops.indexing.updating import Component, can_be_updated, counted, update
from gpuflow.ops.layout.axes import broadcast_in_dim_p
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.zeros import full

MODES = ("clip", "fill", "zero", "promise_in_bounds")


def _check_mode(name: str, mode: str) -> None:
    check(
        mode in MODES,
        lambda: f"[{name}] mode must be one of {MODES}; got {mode!r}. Fix: mode='clip'.",
        ValueError,
    )


def _check_indices(name: str, indices: ShapedArray) -> None:
    check_kind(name, indices, _is_index, "integer indices")


def _is_index(dtype: Any) -> bool:
    return not dtypes.is_extended(dtype) and dtypes.is_integer(dtype)


def fill_value(dtype: Any) -> Any:
    """The value of an out-of-bounds row, in the storage dtype of ``dtype``."""
    if dtypes.is_extended(dtype):
        return dtype.stored(np.full(dtype.key_shape, 0xFFFFFFFF, np.uint32))[()]
    if dtypes.is_inexact(dtype):
        return np.nan
    if dtypes.is_bool(dtype):
        return True
    if dtype == dtypes.float0:
        return np.zeros((), dtype)[()]
    bounds = ml_dtypes.iinfo(dtype)
    return bounds.max if dtypes.is_unsigned(dtype) else bounds.min


# --- row_gather ----------------------------------------------------------------------------


def _gather_shape(
    x: ShapedArray, indices: ShapedArray, *, mode: str, batch_dims: int
) -> ShapedArray:
    _check_mode("row_gather", mode)
    _check_indices("row_gather", indices)
    b = batch_dims
    check(
        0 <= b < x.ndim and indices.shape[:b] == x.shape[:b],
        lambda: (
            f"[row_gather] the array must have rows and share its first {b} sizes with the "
            f"indices; got {types_text([x, indices])}. Fix: reshape a scalar to (1,)."
        ),
        ValueError,
    )
    check(
        x.shape[b] > 0 or indices.size == 0 or mode in ("fill", "zero"),
        lambda: (
            f"[row_gather] an array without rows has nothing to take; got {x} and indices "
            f"{indices}. Fix: mode='fill', or take no rows."
        ),
        IndexError,
    )
    return ShapedArray((*indices.shape, *x.shape[b + 1 :]), x.dtype, x.weak_type)


def _clipped(xp: Any, indices: Any, size: int) -> Any:
    """Indices clamped to [0, size), as int64."""
    last = max(size - 1, 0)
    if indices.dtype.kind == "u":
        return xp.minimum(indices, np.uint64(last)).astype(np.int64)
    return xp.clip(indices.astype(np.int64), 0, last)


def _in_bounds(indices: Any, size: int) -> Any:
    """Mask of the indices in [0, size)."""
    return (indices >= 0) & (indices < size)


def _grid(xp: Any, shape: Sequence[int], batch_dims: int) -> tuple[Any, ...]:
    """One index array for each batch dimension, of rank ``len(shape)``."""
    rank = len(shape)
    return tuple(
        xp.arange(shape[d]).reshape([-1 if k == d else 1 for k in range(rank)])
        for d in range(batch_dims)
    )


def _gather_impl(xp: Any, x: Any, indices: Any, *, mode: str, batch_dims: int) -> Any:
    size = x.shape[batch_dims]
    shape = (*indices.shape, *x.shape[batch_dims + 1 :])
    if size == 0 or 0 in shape:
        out = xp.zeros(shape, x.dtype)
    elif batch_dims == 0:
        out = xp.asarray(xp.take(x, _clipped(xp, indices, size), axis=0))
    else:
        grid = _grid(xp, indices.shape, batch_dims)
        out = xp.asarray(x[(*grid, _clipped(xp, indices, size))])
    if mode in ("fill", "zero"):
        out[~_in_bounds(indices, size)] = fill_value(x.dtype) if mode == "fill" else 0
    return out


def _gather_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, mode: str, batch_dims: int
) -> tuple[Any, Any]:
    x, indices = primals
    out = row_gather(x, indices, mode, batch_dims)
    if type(tangents[0]) is Zero:
        return out, zero_tangent(out)
    return out, row_gather(tangents[0], indices, _linear_mode(mode), batch_dims)


def _linear_mode(mode: str) -> str:
    """The mode of the linear map: filled rows have no tangent."""
    return "zero" if mode == "fill" else mode


def _gather_transpose(
    cotangent: Any, x: Any, indices: Any, *, mode: str, batch_dims: int
) -> list[Any]:
    if not is_undefined(x):
        return [None, None]
    if type(cotangent) is Zero:
        return [Zero(x.aval.tangent()), None]
    scattered = row_scatter_add(cotangent, indices, x.aval.shape, _linear_mode(mode), batch_dims)
    return [scattered, None]


def _gather_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    mode: str,
    batch_dims: int,
) -> tuple[Any, int]:
    x, indices = operands
    x_dim, index_dim = dims
    if index_dim is None:
        # The mapped dimension becomes the first of a row.
        x = batch_to_dim(x, x_dim, batch_dims + 1, axis.size)
        return row_gather(x, indices, mode, batch_dims), aval_of(indices).ndim
    if x_dim is None:
        indices = move_axis(indices, index_dim, batch_dims)
        return row_gather(x, indices, mode, batch_dims), batch_dims
    x = batch_to_dim(x, x_dim, 0, axis.size)
    indices = batch_to_dim(indices, index_dim, 0, axis.size)
    return row_gather(x, indices, mode, batch_dims + 1), 0


def bounded(builder: Any, index: Any, size: Any) -> tuple[Any, Any]:
    """The index clipped to [0, size) as int64, and whether it was in bounds."""
    zero = builder.const("int64", 0)
    last = builder.apply("sub", size, builder.const("int64", 1))
    in_bounds = is_below(builder, index, size)
    if index.dtype == "uint64":
        clipped = builder.cast(builder.apply("min", index, builder.cast(last, "uint64")), "int64")
        return clipped, in_bounds
    index = builder.cast(index, "int64")
    clipped = builder.apply("min", builder.apply("max", index, zero), last)
    return clipped, in_bounds


def is_below(builder: Any, index: Any, size: Any) -> Any:
    """Whether an index is in [0, size): negative ones are large as unsigned numbers."""
    wide = index if index.dtype == "uint64" else builder.cast(index, "int64")
    return builder.apply("lt", builder.cast(wide, "uint64"), builder.cast(size, "uint64"))


def _gather_scalars(in_avals: Any, params: Any) -> list[int]:
    return [in_avals[0].shape[params["batch_dims"]]]


def _gather_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    x, indices = in_avals
    builder = context.builder
    b, mode = params["batch_dims"], params["mode"]
    index = context.element(1, range(indices.ndim))
    row, in_bounds = bounded(builder, index, context.number(0))
    batch = [context.index(d) for d in range(b)]
    row_indices = [context.index(d) for d in range(indices.ndim, out.ndim)]
    filling = 0 if mode == "zero" else fill_value(x.dtype)
    if 0 in x.shape:
        return filling_element(context, [*batch, row, *row_indices], filling)
    is_filled = mode in ("fill", "zero")
    if is_filled and not row_indices:
        value = context.load(0, [*batch, builder.cast(index, "int64")], in_bounds)
    else:  # the row is clipped, so that there is something to read wherever there are rows
        value = context.load(0, [*batch, row, *row_indices])
    return (
        builder.select(in_bounds, value, builder.const_like(value, filling)) if is_filled else value
    )


def filling_element(context: Any, indices: Sequence[Any], filling: Any) -> Any:
    """The element of a gather from an array without elements: nothing is read.

    A clipped index would be out of bounds as well.
    """
    value = context.load(0, indices, context.builder.const("bool", False))
    return context.builder.const_like(value, filling)


def _gather_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    del out
    (x, indices), b = ins, params["batch_dims"]
    row_dims = [(b + 1 + k, indices.ndim + k) for k in range(x.ndim - b - 1)]
    return [(d, d) for d in range(b)] + row_dims, [(d, d) for d in range(indices.ndim)]


@explained
def row_gather(x: Any, indices: Any, mode: str = "fill", batch_dims: int = 0) -> Any:
    """Gather rows of ``x``: ``out[j..., rest...] = x[indices[j...], rest...]``.

    Args:
        x: array of any dtype, of rank at least 1.
        indices: integer array of any shape; negative ones are out of bounds.
        mode: handling of out-of-bounds indices, see the module's docstring.
        batch_dims: number of leading dimensions that ``x`` and ``indices`` share.

    Returns:
        An array of shape ``indices.shape + x.shape[batch_dims + 1:]``.

    Raises:
        TypeError: if the indices are not integers.
        ValueError: if shapes do not match, or the mode is unknown.
        IndexError: if the array has no rows and rows are requested.

    Example:
        >>> lax.row_gather(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 5]))
        Array([[ 3.,  4.],
               [nan, nan]], dtype=float32)
    """
    return row_gather_p.bind(x, indices, mode=mode, batch_dims=batch_dims)


def signed_indices(indices: Any, limit: int) -> Any:
    """Indices as int32 or int64; wide unsigned ones above ``limit`` become ``limit``."""
    dtype = aval_of(indices).dtype
    if dtypes.is_unsigned(dtype) and dtype.itemsize >= 4:
        indices = clamp(0, indices, limit)  # as a signed number it might be negative
    return indices if dtype == np.int64 else convert_element_type(indices, np.int32)


def _gather_chunk(dim: int, params: dict[str, Any]) -> Any:
    """Rows of other chunks are zeros; those out of bounds are filled by the first chunk."""
    mode, b = params["mode"], params["batch_dims"]
    if dim != b:
        return None

    def apply(bind: Any, start: Any, size: int, x: Any, indices: Any) -> Any:
        indices = signed_indices(indices, size)
        if mode == "clip":
            indices = clamp(0, indices, size - 1)
        first = convert_element_type(start, aval_of(indices).dtype)
        found = bind(x, sub(indices, first), mode="zero", batch_dims=b)
        if mode != "fill":
            return found
        out_of_bounds = bitwise_or(lt(indices, 0), ge(indices, size))
        out, dims = aval_of(found), tuple(range(aval_of(indices).ndim))
        is_filled = bitwise_and(out_of_bounds, eq(start, 0))
        is_filled = broadcast_in_dim_p.bind(is_filled, shape=out.shape, broadcast_dimensions=dims)
        return select_n(is_filled, found, full(out.shape, fill_value(out.dtype), out.dtype))

    return apply


row_gather_p = define(
    "row_gather",
    shape=_gather_shape,
    impl=_gather_impl,
    jvp=_gather_jvp,
    transpose=_gather_transpose,
    batch=_gather_batch,
    lower=Indexed(
        _gather_body,
        _gather_scalars,
        in_memory=1,
        selects=True,
        partitionable=_gather_partitionable,
    ),
    chunk=_gather_chunk,
)


# --- row_scatter_add -----------------------------------------------------------------------


def _scatter_shape(
    rows: ShapedArray,
    indices: ShapedArray,
    *,
    shape: tuple[int, ...],
    mode: str,
    batch_dims: int,
) -> ShapedArray:
    _check_mode("row_scatter_add", mode)
    _check_indices("row_scatter_add", indices)
    check_kind("row_scatter_add", rows, is_number, "a number (not bool)")
    b = batch_dims
    check(
        0 <= b < len(shape)
        and indices.shape[:b] == shape[:b]
        and rows.shape == (*indices.shape, *shape[b + 1 :]),
        lambda: (
            f"[row_scatter_add] rows must have shape indices.shape + shape[{b + 1}:]; got rows "
            f"{rows}, indices {indices} and shape {shape}. Fix: broadcast the rows."
        ),
        ValueError,
    )
    return ShapedArray(shape, rows.dtype, rows.weak_type)


def _scatter_impl(
    xp: Any, rows: Any, indices: Any, *, shape: tuple[int, ...], mode: str, batch_dims: int
) -> Any:
    size = shape[batch_dims]
    wide = rows.dtype
    if dtypes.is_floating(wide) and wide.itemsize <= 2:
        wide = dtypes.float32
    total = xp.zeros(shape, wide)
    if total.size == 0 or rows.size == 0:
        return total.astype(rows.dtype)
    target = _clipped(xp, indices, size)
    for shift in _batch_shifts(xp, indices.shape, shape, batch_dims):
        target = target + shift
    target = target.reshape(-1)
    flat = rows.reshape(target.size, -1).astype(wide, copy=False)
    if mode != "clip":
        in_bounds = _in_bounds(indices, size).reshape(-1)
        target, flat = target[in_bounds], flat[in_bounds]
    _add_rows(xp, total.reshape(-1, flat.shape[1]), target, flat)
    return total.astype(rows.dtype, copy=False)


def _batch_shifts(
    xp: Any, index_shape: Sequence[int], shape: Sequence[int], batch_dims: int
) -> list[Any]:
    """For each batch dimension, the offsets that it adds to row indices of the flat result."""
    shifts, step = [], shape[batch_dims]
    grids = _grid(xp, index_shape, batch_dims)
    for d in reversed(range(batch_dims)):
        shifts.append(grids[d] * step)
        step *= shape[d]
    return shifts


def _add_rows(xp: Any, total: Any, target: Any, rows: Any) -> None:
    """``total[target[k]] += rows[k]``, repeated targets included, in the order of k."""
    width = rows.shape[1]
    # NumPy's add.at is fast for flat arrays only (3 times faster than by rows of 256).
    flat = (target[:, None] * width + xp.arange(width)).reshape(-1)
    sums, terms = total.reshape(-1), rows.reshape(-1)
    if xp is not np and rows.dtype.kind == "c":
        # CuPy adds atomically, which complex numbers are too wide for.
        xp.add.at(sums.real, flat, terms.real)
        xp.add.at(sums.imag, flat, terms.imag)
    else:
        xp.add.at(sums, flat, terms)


def _scatter_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    rows, indices = primals
    out = row_scatter_add(rows, indices, **params)
    if type(tangents[0]) is Zero:
        return out, zero_tangent(out)
    return out, row_scatter_add(tangents[0], indices, **params)


def _scatter_transpose(
    cotangent: Any, rows: Any, indices: Any, *, shape: Any, mode: str, batch_dims: int
) -> list[Any]:
    del shape
    if not is_undefined(rows):
        return [None, None]
    if type(cotangent) is Zero:
        return [Zero(rows.aval.tangent()), None]
    return [row_gather(cotangent, indices, _linear_mode(mode), batch_dims), None]


def _scatter_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    shape: tuple[int, ...],
    mode: str,
    batch_dims: int,
) -> tuple[Any, int]:
    rows, indices = operands
    rows_dim, index_dim = dims
    if index_dim is None:
        rows = batch_to_dim(rows, rows_dim, aval_of(indices).ndim, axis.size)
        dim = batch_dims + 1
        wider = (*shape[:dim], axis.size, *shape[dim:])
        return row_scatter_add(rows, indices, wider, mode, batch_dims), dim
    rows = batch_to_dim(rows, rows_dim, 0, axis.size)
    indices = batch_to_dim(indices, index_dim, 0, axis.size)
    return row_scatter_add(rows, indices, (axis.size, *shape), mode, batch_dims + 1), 0


def _scatter_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """The sums as an update of zeros; those of 16-bit floats in float32."""
    del definition
    rows, indices = eqn.inputs
    shape, batch_dims, dtype = eqn.params["shape"], eqn.params["batch_dims"], rows.aval.dtype
    if 0 in (*shape, *rows.aval.shape) or type(rows) is Literal or type(indices) is Literal:
        return None
    if dtypes.is_floating(dtype) and dtype.itemsize == 2:
        wide = partial(build.apply, convert_element_type_p, weak_type=False)
        total = build.apply(
            eqn.primitive, wide(rows, new_dtype=dtypes.float32), indices, **eqn.params
        )
        return [wide(total, new_dtype=dtype)]
    if not can_be_updated(dtype, "add") or indices.aval.dtype in dtypes.NARROW_INTEGERS:
        return None
    zeros = build.apply(
        broadcast_in_dim_p, build.literal(0, rows.aval), shape=shape, broadcast_dimensions=()
    )
    strides, index_shape = row_major_strides(shape), indices.aval.shape
    starts = [*[counted(build, index_shape, d) for d in range(batch_dims)], indices]
    components = [Component(start, shape[d] - 1, strides[d]) for d, start in enumerate(starts)]
    checked = eqn.params["mode"] != "clip"
    window = tuple(range(batch_dims + 1, len(shape)))
    return [update(build, zeros, components, rows, window, "add", checked=checked, repeats=True)]


def _scatter_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions of the batch and of rows; those of the indices are reduced."""
    (_, indices), b = ins, params["batch_dims"]
    index_dims = [(d, d if d < b else out.ndim + d - b) for d in range(indices.ndim)]
    return index_dims + [(indices.ndim + k, b + 1 + k) for k in range(out.ndim - b - 1)], index_dims


@explained
def row_scatter_add(
    rows: Any, indices: Any, shape: Sequence[int], mode: str = "zero", batch_dims: int = 0
) -> Any:
    """Scatter-add rows to zeros: ``out[indices[j...], rest...] += rows[j..., rest...]``.

    Args:
        rows: numeric array of shape ``indices.shape + shape[batch_dims + 1:]``.
        indices: integer array; rows of repeated ones are summed. float16 and bfloat16 are summed in
            float32.
        shape: shape of the result.
        mode: ``clip`` clamps out-of-bounds indices to the nearest row; other modes drop these rows.
        batch_dims: number of leading dimensions that ``shape`` and ``indices`` share.

    Returns:
        An array of ``shape`` and the dtype of ``rows``.

    Raises:
        TypeError: if indices are not integers, or rows are not numeric.
        ValueError: if shapes do not match, or the mode is unknown.

    Example:
        >>> lax.row_scatter_add(jnp.array([1.0, 2.0, 3.0]), jnp.array([0, 2, 0]), (3,))
        Array([4., 0., 2.], dtype=float32)
    """
    return row_scatter_add_p.bind(
        rows, indices, shape=tuple(shape), mode=mode, batch_dims=batch_dims
    )


row_scatter_add_p = define(
    "row_scatter_add",
    shape=_scatter_shape,
    impl=_scatter_impl,
    jvp=_scatter_jvp,
    transpose=_scatter_transpose,
    batch=_scatter_batch,
    lower=Library(partitionable=_scatter_partitionable),
    simplify=_scatter_simplify,
    size_params=frozenset({"shape"}),
)
