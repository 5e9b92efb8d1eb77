"""dynamic_slice and dynamic_update_slice: windows at dynamic indices.

Starts are clamped so that the window is in bounds. With ``batch_dims`` b, the first b
dimensions of all operands are a batch (sizes of 1 repeat), and each element of it has its own
window:

    out[batch..., i...] = x[batch..., start[batch...] + i...]

Tests: tests/ops/test_dynamic.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.halo import Halo
from gpuflow.core.key_use import write
from gpuflow.core.lowering import Indexed
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Fault, Zero, is_undefined, zero_tangent
from gpuflow.ops.define import check_kind, check_same_dtype, define, types_text
from gpuflow.ops.effects.faults import index_fault
from gpuflow.ops.elementwise.arithmetic import add, sub
from gpuflow.ops.elementwise.comparison import bitwise_and, ge, lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.identities import constant_of
from gpuflow.ops.elementwise.nary import unbroadcast
from gpuflow.ops.elementwise.select import clamp, select_n
from gpuflow.ops.indexing.rows import row_gather, signed_indices
from gpuflow.ops.indexing.updating import Component, can_be_updated, counted
from gpuflow.ops.indexing.updating import update as build_update
from gpuflow.ops.layout.axes import broadcast_in_dim, insert_axis
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_p
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.zeros import full, instantiate, zeros_of

Sizes = tuple[int, ...]


# --- shared by both -------------------------------------------------------------------------


def _is_index(dtype: Any) -> bool:
    return not dtypes.is_extended(dtype) and dtypes.is_integer(dtype)


def _batch_shape(name: str, avals: Sequence[ShapedArray], batch_dims: int) -> Sizes:
    """The common batch shape of arrays and starts."""
    columns = zip(*(aval.shape[:batch_dims] for aval in avals), strict=True)
    sizes = [{size for size in column if size != 1} or {1} for column in columns]
    check(
        all(len(options) == 1 for options in sizes),
        lambda: f"[{name}] batch sizes must agree; got {types_text(avals)}. Fix: use one batch.",
        ValueError,
    )
    return tuple(options.pop() for options in sizes)


def _check_window(
    name: str, x: ShapedArray, starts: Sequence[ShapedArray], sizes: Sizes, batch_dims: int
) -> None:
    rank = x.ndim - batch_dims
    check(
        len(starts) == len(sizes) == rank,
        lambda: (
            f"[{name}] there must be one start and one size for each dimension of {x}; got "
            f"{len(starts)} starts and sizes {sizes}. Fix: give {rank} of each."
        ),
        ValueError if len(starts) != rank else TypeError,
    )
    for start in starts:
        check_kind(name, start, _is_index, "integer starts")
        check(
            start.ndim == batch_dims,
            lambda: f"[{name}] starts must be scalars; got {types_text(starts)}. Fix: start[0].",
        )
    check(
        all(0 <= size <= have for size, have in zip(sizes, x.shape[batch_dims:])),
        lambda: (
            f"[{name}] the window must fit into the array; got sizes {sizes} for {x}. "
            "Fix: use sizes up to the array's."
        ),
    )


def _clipped(xp: Any, start: Any, room: int) -> Any:
    """Starts clamped to [0, room], as int64."""
    if start.dtype.kind == "u":
        return xp.minimum(start, np.uint64(room)).astype(np.int64)
    return xp.clip(start.astype(np.int64), 0, room)


def _window_indices(
    xp: Any, x: Any, starts: Sequence[Any], sizes: Sizes, batch: Sizes
) -> tuple[Any, ...]:
    """Index arrays of the window in ``x``; slices if there is no batch."""
    limits = [extent - size for extent, size in zip(x.shape[len(batch) :], sizes)]
    clipped = [_clipped(xp, start, limit) for start, limit in zip(starts, limits)]
    if not batch:
        return tuple(slice(int(s), int(s) + n) for s, n in zip(clipped, sizes))
    rank = len(batch) + len(sizes)
    indices = []
    for d, extent in enumerate(x.shape[: len(batch)]):
        positions = xp.arange(batch[d]) if extent != 1 else xp.zeros(1, np.int64)
        indices.append(positions.reshape([-1 if k == d else 1 for k in range(rank)]))
    for k, (start, size) in enumerate(zip(clipped, sizes)):
        within = xp.arange(size).reshape([-1 if j == k else 1 for j in range(len(sizes))])
        indices.append(start.reshape(*start.shape, *[1] * len(sizes)) + within)
    return tuple(indices)


def _mapped_first(operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Operands with the mapped dimension first, of size 1 if they are not mapped."""
    return [
        insert_axis(x, 0) if dim is None else move_axis(x, dim, 0) for x, dim in zip(operands, dims)
    ]


def _zero_starts(starts: Sequence[Any]) -> Any:
    """A start of 0 for one more dimension, which the window covers in full."""
    shape = aval_of(starts[0]).shape if starts else ()
    return full(shape, 0, np.int32)


def _kernel_starts(
    context: Any, avals: Sequence[ShapedArray], first: int, batch_dims: int
) -> list[Any]:
    """The clipped starts of the current output element.

    ``first`` is the operand index of the first start; the op's first scalars are the largest
    starts.
    """
    builder = context.builder
    zero = builder.const("int64", 0)
    clipped = []
    for k, operand in enumerate(range(first, len(avals))):
        start = context.load(operand, _batch_indices(context, avals[operand], batch_dims))
        last = context.number(k)
        if start.dtype == "uint64":
            start = builder.apply("min", start, builder.cast(last, "uint64"))
        start = builder.apply("max", builder.cast(start, "int64"), zero)
        clipped.append(builder.apply("min", start, last))
    return clipped


def _batch_indices(context: Any, aval: ShapedArray, batch_dims: int) -> list[Any]:
    zero = context.builder.const("int64", 0)
    return [zero if aval.shape[d] == 1 else context.index(d) for d in range(batch_dims)]


# --- dynamic_slice -------------------------------------------------------------------------


def _slice_shape(
    x: ShapedArray, *starts: ShapedArray, slice_sizes: Sizes, batch_dims: int
) -> ShapedArray:
    _check_window("dynamic_slice", x, starts, slice_sizes, batch_dims)
    batch = _batch_shape("dynamic_slice", (x, *starts), batch_dims)
    return ShapedArray((*batch, *slice_sizes), x.dtype, x.weak_type)


def _slice_impl(xp: Any, x: Any, *starts: Any, slice_sizes: Sizes, batch_dims: int) -> Any:
    batch = np.broadcast_shapes(*(array.shape[:batch_dims] for array in (x, *starts)))
    window = _window_indices(xp, x, starts, slice_sizes, batch)
    out = xp.empty((*batch, *slice_sizes), x.dtype)
    out[...] = x[window]
    return out


def _slice_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    out = dynamic_slice(primals[0], primals[1:], **params)
    if type(tangents[0]) is Zero:
        return out, zero_tangent(out)
    return out, dynamic_slice(tangents[0], primals[1:], **params)


def _slice_transpose(
    cotangent: Any, x: Any, *starts: Any, slice_sizes: Sizes, batch_dims: int
) -> list[Any]:
    nones = [None] * len(starts)
    if not is_undefined(x):
        return [None, *nones]
    if type(cotangent) is Zero:
        return [Zero(x.aval.tangent()), *nones]
    batch = aval_of(cotangent).shape[:batch_dims]
    zeros = full((*batch, *x.aval.shape[batch_dims:]), 0, x.aval.dtype)
    padded = dynamic_update_slice(zeros, cotangent, starts, batch_dims)
    return [unbroadcast(padded, x.aval) if batch_dims else padded, *nones]


def _slice_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    slice_sizes: Sizes,
    batch_dims: int,
) -> tuple[Any, int]:
    x, *starts = operands
    if all(dim is None for dim in dims[1:]):
        x = batch_to_dim(x, dims[0], batch_dims, axis.size)
        sizes = (axis.size, *slice_sizes)
        return dynamic_slice(x, [_zero_starts(starts), *starts], sizes, batch_dims), batch_dims
    x, *starts = _mapped_first(operands, dims)
    return dynamic_slice(x, starts, slice_sizes, batch_dims + 1), 0


def _slice_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Rewrite a window at a constant index as a slice."""
    x, *starts = eqn.inputs
    sizes = eqn.params["slice_sizes"]
    constants = [constant_of(start, definition) for start in starts]
    if eqn.params["batch_dims"] or any(constant is None for constant in constants) or not sizes:
        return None
    room = [have - size for have, size in zip(x.aval.shape, sizes)]
    first = tuple(min(max(int(constant), 0), most) for constant, most in zip(constants, room))
    limits = tuple(start + size for start, size in zip(first, sizes))
    params = {"start_indices": first, "limit_indices": limits, "strides": None}
    return [build.apply(slice_p, x, **params)]


def _slice_scalars(in_avals: Any, params: Any) -> list[int]:
    shape = in_avals[0].shape[params["batch_dims"] :]
    return [have - size for have, size in zip(shape, params["slice_sizes"], strict=True)]


def _slice_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del out
    x, b = in_avals[0], params["batch_dims"]
    starts = _kernel_starts(context, in_avals, 1, b)
    indices = _batch_indices(context, x, b)
    for d, start in enumerate(starts, b):
        indices.append(context.builder.apply("add", start, context.index(d)))
    return context.load(0, indices)


def _slice_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions of the batch, and those that the window covers in full."""
    batch = [(d, d) for d in range(params["batch_dims"])]
    pairs = enumerate(zip(ins[0].shape, out.shape))
    full_dims = [(d, d) for d, sizes in pairs if len({*sizes}) == 1]
    return [full_dims, *[batch] * (len(ins) - 1)]


def _slice_chunk(dim: int, params: dict[str, Any]) -> Any:
    """Rows of other chunks are zeros."""
    if params["batch_dims"]:
        return None
    sizes = params["slice_sizes"]

    def apply(bind: Any, start: Any, size: int, x: Any, *starts: Any) -> Any:
        first = _start_within(starts[dim], size - sizes[dim])
        index = add(iota(np.int32, (sizes[dim],), 0), sub(first, start))
        rows = move_axis(row_gather(move_axis(x, dim, 0), index, "zero"), 0, dim)
        others = [np.int32(0) if d == dim else s for d, s in enumerate(starts)]
        local = map(min, sizes, aval_of(rows).shape)  # shorter where the window is all of a chunk
        return bind(rows, *others, slice_sizes=tuple(local), batch_dims=0)

    return apply


def _start_within(start: Any, last: int) -> Any:
    """An index clamped to [0, last], as int32."""
    return convert_element_type(clamp(0, signed_indices(start, last), last), np.int32)


def dynamic_slice(
    x: Any, start_indices: Sequence[Any], slice_sizes: Sequence[int], batch_dims: int = 0
) -> Any:
    """Return a window of ``x`` of static sizes at a dynamic index.

    Args:
        x: array of any dtype and rank r.
        start_indices: r integer scalars; clamped so that the window is in bounds.
        slice_sizes: r sizes, at most those of ``x``.
        batch_dims: number of leading batch dimensions, see the module's docstring.

    Returns:
        An array of shape ``slice_sizes``.

    Raises:
        TypeError: if starts are not integer scalars, or the window is too large.
        ValueError: if there is not one start for each dimension.
    """
    sizes = tuple(as_index(size) for size in slice_sizes)
    return dynamic_slice_p.bind(x, *start_indices, slice_sizes=sizes, batch_dims=batch_dims)


dynamic_slice_p = define(
    "dynamic_slice",
    shape=_slice_shape,
    impl=_slice_impl,
    jvp=_slice_jvp,
    transpose=_slice_transpose,
    batch=_slice_batch,
    lower=Indexed(_slice_body, _slice_scalars, selects=True, partitionable=_slice_partitionable),
    simplify=_slice_simplify,
    faults=lambda operands, params: _faults(
        operands[0], operands[1:], params["slice_sizes"], params["batch_dims"]
    ),
    size_params=frozenset({"slice_sizes"}),
    chunk=_slice_chunk,
)


def _faults(x: Any, starts: Sequence[Any], sizes: Sequence[int], batch_dims: int) -> list[Fault]:
    """Windows whose starts have to be clamped."""
    shape = aval_of(x).shape[batch_dims:]
    return [
        index_fault(shape, (d,), insert_axis(start, batch_dims), (shape[d] - sizes[d],))
        for d, start in enumerate(starts)
    ]


# --- dynamic_update_slice ------------------------------------------------------------------


def _update_shape(
    x: ShapedArray, update: ShapedArray, *starts: ShapedArray, batch_dims: int
) -> ShapedArray:
    check_same_dtype("dynamic_update_slice", (x, update))
    sizes = update.shape[batch_dims:]
    _check_window("dynamic_update_slice", x, starts, sizes, batch_dims)
    batch = _batch_shape("dynamic_update_slice", (x, update, *starts), batch_dims)
    return ShapedArray((*batch, *x.shape[batch_dims:]), x.dtype)


def _update_impl(xp: Any, x: Any, update: Any, *starts: Any, batch_dims: int) -> Any:
    batch = np.broadcast_shapes(*(array.shape[:batch_dims] for array in (x, update, *starts)))
    out = xp.empty((*batch, *x.shape[batch_dims:]), x.dtype)
    out[...] = x
    out[_window_indices(xp, out, starts, update.shape[batch_dims:], batch)] = update
    return out


def _update_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, batch_dims: int) -> Any:
    x, update, *starts = primals
    out = dynamic_update_slice(x, update, starts, batch_dims)
    x_tangent, update_tangent = [instantiate(tangent) for tangent in tangents[:2]]
    return out, dynamic_update_slice(x_tangent, update_tangent, starts, batch_dims)


def _update_transpose(
    cotangent: Any, x: Any, update: Any, *starts: Any, batch_dims: int
) -> list[Any]:
    nones = [None] * len(starts)
    if type(cotangent) is Zero:
        pair = [Zero(v.aval.tangent()) if is_undefined(v) else None for v in (x, update)]
        return [*pair, *nones]
    window = update.aval if is_undefined(update) else aval_of(update)
    outer = inner = None
    if is_undefined(x):
        blank = zeros_of(window.update(dtype=aval_of(cotangent).dtype))
        outer = unbroadcast(dynamic_update_slice(cotangent, blank, starts, batch_dims), x.aval)
    if is_undefined(update):
        window_cotangent = dynamic_slice(cotangent, starts, window.shape[batch_dims:], batch_dims)
        inner = unbroadcast(window_cotangent, window)
    return [outer, inner, *nones]


def _update_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], *, batch_dims: int
) -> tuple[Any, int]:
    x, update, *starts = operands
    if all(dim is None for dim in dims[2:]) and dims[0] is not None and dims[1] is not None:
        x = move_axis(x, dims[0], batch_dims)
        update = move_axis(update, dims[1], batch_dims)
        shifted = [_zero_starts(starts), *starts]
        return dynamic_update_slice(x, update, shifted, batch_dims), batch_dims
    x, update, *starts = _mapped_first(operands, dims)
    return dynamic_update_slice(x, update, starts, batch_dims + 1), 0


def _update_scalars(in_avals: Any, params: Any) -> list[int]:
    x, update = [aval.shape[params["batch_dims"] :] for aval in in_avals[:2]]
    return [*(have - size for have, size in zip(x, update, strict=True)), *update]


def _update_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    x, update = in_avals[:2]
    b = params["batch_dims"]
    builder = context.builder
    zero = builder.const("int64", 0)
    starts = _kernel_starts(context, in_avals, 2, b)
    indices = [*_batch_indices(context, x, b), *(context.index(d) for d in range(b, out.ndim))]
    under = context.load(0, indices)
    window, in_bounds = _batch_indices(context, update, b), None
    for d, start in enumerate(starts, b):
        offset = builder.apply("sub", context.index(d), start)
        window.append(offset)
        reaches = builder.apply("lt", offset, context.number(len(starts) + d - b))
        for condition in (builder.apply("ge", offset, zero), reaches):
            in_bounds = (
                condition if in_bounds is None else builder.apply("and", in_bounds, condition)
            )
    over = context.load(1, window, in_bounds)
    return over if in_bounds is None else builder.select(in_bounds, over, under)


def _update_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """The update in the array's memory."""
    del definition
    x, window, *starts = eqn.inputs
    b, shape = eqn.params["batch_dims"], eqn.outputs[0].aval.shape
    if not can_be_updated(x.aval.dtype, "set") or x.aval.shape != shape:
        return None
    if 0 in window.aval.shape or window.aval.shape[:b] != shape[:b]:
        return None
    if any(start.aval.ndim and start.aval.shape != shape[:b] for start in starts):
        return None
    strides = row_major_strides(shape)
    components = [
        Component(start, shape[d] - window.aval.shape[d], strides[d])
        for d, start in enumerate(starts, b)
    ]
    components += [
        Component(counted(build, shape[:b], d), shape[d] - 1, strides[d]) for d in range(b)
    ]
    dims = tuple(range(b, len(shape)))
    return [build_update(build, x, components, window, dims, "set", checked=False, repeats=False)]


def _update_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    batch = [(d, d) for d in range(params["batch_dims"])]
    pairs = enumerate(zip(ins[1].shape, out.shape))
    full_dims = [(d, d) for d, sizes in pairs if len({*sizes}) == 1]
    window = [pair for pair in full_dims if pair not in batch]
    return [batch + window, batch + window, *[batch] * (len(ins) - 2)]


def _update_halo(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Halo | None:
    """Each chunk of the array is updated where the window overlaps it; nothing is sent."""
    if params["batch_dims"]:
        return None

    def rows(dim: int, start: int, size: int) -> Sequence[Any]:
        return [(dim, start, size), *[None] * (len(ins) - 1)]

    def apply(bind: Any, at: Any, shape: Any, x: Any, update: Any, *starts: Any) -> Any:
        begins, sizes = list(starts), aval_of(update).shape
        window, masks = update, []
        for dim in at:
            # Rows ``begins`` to ``begins + count`` of the chunk are written, some with old values.
            count = min(sizes[dim], shape[dim])
            first = sub(_start_within(starts[dim], out.shape[dim] - sizes[dim]), at[dim])
            begins[dim] = clamp(0, first, shape[dim] - count)
            index = add(iota(np.int32, (count,), 0), sub(begins[dim], first))
            window = move_axis(row_gather(move_axis(window, dim, 0), index, "clip"), 0, dim)
            overlaps = bitwise_and(ge(index, 0), lt(index, sizes[dim]))
            masks.append((overlaps, dim))
        old = dynamic_slice(x, begins, aval_of(window).shape)
        for mask, dim in masks:
            which = broadcast_in_dim(mask, aval_of(window).shape, (dim,))
            window = select_n(which, old, window)
        return bind(x, window, *begins, **params)

    return Halo(rows, apply)


def dynamic_update_slice(
    x: Any, update: Any, start_indices: Sequence[Any], batch_dims: int = 0
) -> Any:
    """Return ``x`` with a window replaced by ``update``.

    Args:
        x: array of any dtype and rank r.
        update: array of that dtype, at most as large in each dimension.
        start_indices: r integer scalars; clamped so that the window is in bounds.
        batch_dims: number of leading batch dimensions, see the module's docstring.

    Returns:
        An array like ``x``.

    Raises:
        TypeError: if dtypes differ, starts are not integers, or the update is too large.
        ValueError: if there is not one start for each dimension.
    """
    return dynamic_update_slice_p.bind(x, update, *start_indices, batch_dims=batch_dims)


dynamic_update_slice_p = define(
    "dynamic_update_slice",
    shape=_update_shape,
    impl=_update_impl,
    jvp=_update_jvp,
    transpose=_update_transpose,
    batch=_update_batch,
    lower=Indexed(_update_body, _update_scalars, selects=True, partitionable=_update_partitionable),
    keys=write,
    simplify=_update_simplify,
    halo=_update_halo,
    faults=lambda operands, params: _faults(
        operands[0],
        operands[2:],
        aval_of(operands[1]).shape[params["batch_dims"] :],
        params["batch_dims"],
    ),
)
