"""Library calls of handwritten GPU kernels: cumulative ops, sorts, runs of indices.

Tests: tests/kernels/test_kernel_atomic_sums.py, tests/kernels/test_kernel_runs.py,
tests/ops/test_sorting.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuflow.base.dtypes import is_extended, is_integer
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import AtomicSums, Launches, MakeLaunches, Runs, Scan, Sort
from gpuflow.core.jaxpr import Literal
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.ops.define import define
from gpuflow.ops.elementwise.arithmetic import add_p, mul_p
from gpuflow.ops.elementwise.convert import convert_element_type_p
from gpuflow.ops.layout.axes import broadcast_in_dim_p, reshape_p
from gpuflow.ops.layout.iota import iota_p
from gpuflow.ops.layout.transpose import transpose_p
from gpuflow.ops.sorting.sort_kernels import sort_launches

# With fewer updates, one thread for each element of a window is faster than a sort.
MIN_RUNS = 64

Avals = Sequence[ShapedArray]
_FLOAT32 = np.dtype(np.float32)
_INDEX, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)


def _rows(aval: ShapedArray, axis: int) -> tuple[int, int, int]:
    """The shape of an array as (outer, length, inner) around an axis."""
    shape = aval.shape
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def scan_block(combine: str, launches: MakeLaunches | None) -> Callable[..., Scan]:
    """The rule ``Library.what`` of a cumulative op."""

    def what(ins: Avals, outs: Avals, params: dict[str, Any]) -> Scan:
        del outs
        return Scan(combine, *_rows(ins[0], params["axis"]), params["reverse"], launches)

    return what


def sort_block(ins: Avals, outs: Avals, params: dict[str, Any]) -> Sort | None:
    """The rule ``Library.what`` of sort."""
    del outs
    if any(is_extended(aval.dtype) for aval in ins):
        return None
    outer, length, inner = _rows(ins[0], params["dimension"])
    return Sort(outer, length, inner, params["num_keys"], length, launches=_sort_launches)


def _sort_launches(views: Any, outs: Avals, params: dict[str, Any]) -> Launches | None:
    axis = params["dimension"]
    return sort_launches(views, outs, axis, params["num_keys"], outs[0].shape[axis])


def top_k_block(ins: Avals, outs: Avals, params: dict[str, Any]) -> Sort:
    """The rule ``Library.what`` of top_k."""
    del outs
    rows = _rows(ins[0], params["axis"])
    return Sort(*rows, 1, params["k"], True, True, _top_k_launches)


def _top_k_launches(views: Any, outs: Avals, params: dict[str, Any]) -> Launches | None:
    return sort_launches(views, outs, params["axis"], 1, params["k"], True, True)


# --- updates ---------------------------------------------------------------------------------

_COMBINES = {"add": "add", "multiply": "mul", "minimum": "min", "maximum": "max", "set": None}


def _runs_shape(
    offsets: ShapedArray, in_bounds: ShapedArray, rows: ShapedArray, *, combine: str, limit: int
) -> list[ShapedArray]:
    del combine, limit
    return [offsets, in_bounds, rows]


def _runs_impl(
    xp: Any, offsets: Any, in_bounds: Any, rows: Any, *, combine: str, limit: int
) -> list[Any]:
    keys = xp.where(in_bounds, offsets, limit)
    order = xp.argsort(keys, kind="stable")
    keys = keys[order]
    ends = xp.ones(keys.shape, bool)
    ends[:-1] = keys[1:] != keys[:-1]
    totals = rows[order]
    for k in range(1, len(keys)):
        if combine != "set" and keys[k] == keys[k - 1]:
            totals[k] = getattr(xp, combine)(totals[k - 1], totals[k])
    return [keys, ends & (keys < limit), totals]


def _runs_block(ins: Avals, outs: Avals, params: dict[str, Any]) -> Runs:
    width = prod(outs[2].shape[1:])
    return Runs(_COMBINES[params["combine"]], ins[0].size, width, params["limit"])


combined_runs_p = define(
    "combined_runs",
    shape=_runs_shape,
    impl=_runs_impl,
    lower=Library(what=_runs_block),
    multiple_results=True,
)


def in_runs(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Convert an update with repeated indices to one with distinct indices.

    Windows of the same index are combined in order, before they are applied to the array. Threads
    do not wait for each other, and results are deterministic.
    """
    del definition
    x, params, windows = eqn.inputs[0], eqn.params, eqn.inputs[3]
    if not _has_many_rows(eqn):
        return None
    if params["combine"] == "multiply" and not is_integer(windows.aval.dtype):
        return None  # products overflow in one order and not in another
    flat, window_dims = _flat_disjoint(eqn, build)
    runs = build.apply(combined_runs_p, *flat, combine=params["combine"], limit=max(x.aval.size, 1))
    distinct_params = {**params, "repeats": False, "window_dims": window_dims}
    return [build.apply(eqn.primitive, x, *runs, **distinct_params)]


def _has_many_rows(eqn: Any) -> bool:
    """Whether an update may have repeated indices, and enough of them for a rewrite."""
    _, offsets, _, windows = eqn.inputs
    if not eqn.params["repeats"] or offsets.aval.size < MIN_RUNS or not windows.aval.size:
        return False
    return type(offsets) is not Literal and type(windows) is not Literal


def _flat_disjoint(eqn: Any, build: EqnBuilder) -> tuple[list[Any], tuple[int, ...]]:
    """Like ``_flat_rows``, with windows that share elements only if they have the same offset.

    Along a dimension that a window covers in full, or with a single element, windows of different
    offsets are disjoint. Along other dimensions they overlap: there each element becomes a separate
    window with its own offset.

    Returns:
        The operands, and the array's dimensions along which their windows extend.
    """
    x, offsets, in_bounds, windows = eqn.inputs
    lead, window_dims = offsets.aval.ndim, eqn.params["window_dims"]
    sizes = windows.aval.shape[lead:]
    cut = [k for k, d in enumerate(window_dims) if 1 < sizes[k] < x.aval.shape[d]]
    if not cut:
        return _flat_rows(offsets, in_bounds, windows, build), window_dims
    full = [k for k in range(len(sizes)) if k not in cut]
    order = (*range(lead), *[lead + k for k in cut], *[lead + k for k in full])
    if order != tuple(range(len(order))):
        windows = build.apply(transpose_p, windows, permutation=order)
    shape, strides = windows.aval.shape[: lead + len(cut)], row_major_strides(x.aval.shape)
    offsets = _repeated(offsets, shape, build)
    in_bounds = _repeated(in_bounds, shape, build)
    for j, k in enumerate(cut):
        step = build.literal(strides[window_dims[k]], offsets.aval)
        along = build.apply(iota_p, dtype=_INDEX, shape=shape, dimension=lead + j)
        offsets = build.apply(add_p, offsets, build.apply(mul_p, along, step))
    remaining = tuple(window_dims[k] for k in full)
    return _flat_rows(offsets, in_bounds, windows, build), remaining


def _repeated(x: Any, shape: tuple[int, ...], build: EqnBuilder) -> Any:
    """An array broadcast along additional trailing dimensions."""
    dims = tuple(range(x.aval.ndim))
    return build.apply(broadcast_in_dim_p, x, shape=shape, broadcast_dimensions=dims)


def _flat_rows(offsets: Any, in_bounds: Any, windows: Any, build: EqnBuilder) -> list[Any]:
    """Offsets, masks and rows of an update, flattened to one dimension."""
    count = offsets.aval.size
    if type(in_bounds) is Literal or in_bounds.aval.shape != offsets.aval.shape:
        in_bounds = build.apply(
            broadcast_in_dim_p,
            in_bounds,
            shape=offsets.aval.shape,
            broadcast_dimensions=tuple(range(in_bounds.aval.ndim)),
        )
    window = windows.aval.shape[offsets.aval.ndim :]
    return [
        operand if operand.aval.shape == shape else build.apply(reshape_p, operand, new_sizes=shape)
        for operand, shape in (
            (offsets, (count,)),
            (in_bounds, (count,)),
            (windows, (count, *window)),
        )
    ]


# --- atomic sums -----------------------------------------------------------------------------

_MAX_DIMS = 3  # of windows
_ADDED = tuple(
    map(
        np.dtype,
        (
            np.float32,
            np.float64,
            np.complex64,
            np.complex128,
            np.int32,
            np.uint32,
            np.int64,
            np.uint64,
        ),
    )
)


def _sums_shape(
    *avals: ShapedArray, shape: tuple[int, ...], window: tuple[tuple[int, int], ...]
) -> ShapedArray:
    del window
    return ShapedArray(shape, avals[-1].dtype)


def _sums_impl(
    xp: Any, *arrays: Any, shape: tuple[int, ...], window: tuple[tuple[int, int], ...]
) -> Any:
    *initial, offsets, in_bounds, rows = arrays
    out = xp.array(initial[0], copy=True) if initial else xp.zeros(shape, rows.dtype)
    flat_indices = offsets
    for size, step in window:
        flat_indices = flat_indices[..., None] + xp.arange(size) * step
    flat_indices, rows = flat_indices.reshape(len(offsets), -1), rows.reshape(len(offsets), -1)
    xp.add.at(out.reshape(-1), flat_indices[in_bounds], rows[in_bounds])
    return out


def _sums_block(ins: Avals, outs: Avals, params: dict[str, Any]) -> AtomicSums:
    return AtomicSums(outs[0].size, len(ins) == 3, ins[-1].shape[0], params["window"])


# Operands: the array, unless it is zeros; offsets, masks and rows.
atomic_sums_p = define(
    "atomic_sums", shape=_sums_shape, impl=_sums_impl, lower=Library(what=_sums_block)
)


def in_any_order(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Rewrite a sum at repeated indices as atomic additions."""
    x, params = eqn.inputs[0], eqn.params
    if not _has_many_rows(eqn) or params["combine"] != "add" or x.aval.dtype not in _ADDED:
        return None
    strides, window = row_major_strides(x.aval.shape), []
    for d in params["window_dims"]:
        size, step = eqn.inputs[3].aval.shape[eqn.inputs[1].aval.ndim + len(window)], strides[d]
        window.append((size, step))
    window = _merged(window)
    if len(window) > _MAX_DIMS:
        return None
    initial = [] if type(x) is Literal or _is_zeros(definition(x)) else [x]
    if type(x) is Literal and x.value != 0:
        return None
    flat = _flat_rows(*eqn.inputs[1:], build)
    return [build.apply(atomic_sums_p, *initial, *flat, shape=x.aval.shape, window=window)]


def _merged(window: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Size and step of each dimension, with contiguous ones merged."""
    dims: list[tuple[int, int]] = []
    for size, step in window:
        if size == 1:
            continue
        if dims and dims[-1][1] == step * size:
            dims[-1] = (dims[-1][0] * size, step)
        else:
            dims.append((size, step))
    return tuple(dims)


def _is_zeros(eqn: Any) -> bool:
    """Whether an equation defines an array of zeros."""
    if eqn is None or eqn.primitive is not broadcast_in_dim_p:
        return False
    (scalar,) = eqn.inputs
    return type(scalar) is Literal and not scalar.aval.shape and bool(scalar.value == 0)


def in_float32(eqn: Any, build: EqnBuilder) -> list[Any]:
    """A scatter that combines 16-bit floats in float32, rounded once."""
    x, indices, updates = eqn.inputs
    dtype = x.aval.dtype
    wide = partial(build.apply, convert_element_type_p, weak_type=False)
    operands = [wide(operand, new_dtype=_FLOAT32) for operand in (x, updates)]
    combined = build.apply(eqn.primitive, operands[0], indices, operands[1], **eqn.params)
    return [wide(combined, new_dtype=dtype)]
