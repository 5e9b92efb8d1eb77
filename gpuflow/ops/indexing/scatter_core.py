"""Common code of all scatters: shape rule, implementation, batching.

Tests: tests/ops/test_scatter_shares.py, tests/ops/test_gather_scatter.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import row_major_strides
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.halo import Halo
from gpuflow.core.jaxpr import Literal
from gpuflow.core.key_use import write
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData, Fault
from gpuflow.ops.define import define, types_text
from gpuflow.ops.effects.faults import window_faults
from gpuflow.ops.elementwise.arithmetic import sub
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import clamp
from gpuflow.ops.handwritten.blocks import in_float32
from gpuflow.ops.indexing.dimension_numbers import (
    Dims,
    GatherScatterMode,
    ScatterDimensionNumbers,
    Windows,
    check_index_aval,
    check_windows,
    flat_row_indices,
    scatter_dims,
    scatter_windows,
)
from gpuflow.ops.indexing.lane_scatters import scatter_of_lane
from gpuflow.ops.indexing.rows import signed_indices
from gpuflow.ops.indexing.scatter_shares import can_be_shared, scatter_by_shares
from gpuflow.ops.indexing.updating import Component, can_be_updated, counted, update
from gpuflow.ops.layout.axes import broadcast_in_dim, squeeze_p
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_p
from gpuflow.ops.layout.transpose import transpose_p


def _shape(
    name: str,
    accepts: Callable[[Any], bool],
    x: ShapedArray,
    indices: ShapedArray,
    updates: ShapedArray,
    *,
    dimension_numbers: ScatterDimensionNumbers,
    **params: Any,
) -> ShapedArray:
    del params
    numbers = dimension_numbers
    check_index_aval(name, indices, numbers.scatter_dims_to_operand_dims)
    check(
        x.dtype == updates.dtype and accepts(x.dtype),
        lambda: (
            f"[{name}] array and updates must have one dtype that the operation takes; got "
            f"{types_text([x, updates])}. Fix: updates.astype(x.dtype)."
        ),
    )
    rank = x.ndim - len(numbers.inserted_window_dims) - len(numbers.operand_batching_dims)
    dims = numbers.update_window_dims
    check(
        len(dims) == rank
        and list(dims) == sorted(set(dims))
        and all(0 <= d < updates.ndim for d in dims),
        lambda: (
            f"[{name}] update_window_dims must be {rank} increasing dimensions of the updates; "
            f"got {dims} for {updates}. Fix: one for each dimension that windows have."
        ),
    )
    check_windows(name, scatter_windows(x.shape, numbers, updates.shape), indices)
    batch = tuple(updates.shape[d] for d in scatter_dims(updates.ndim, numbers))
    check(
        batch == indices.shape[:-1],
        lambda: (
            f"[{name}] updates must have the dimensions of the indices besides those of windows; "
            f"got {updates} and indices {indices}. Fix: jnp.broadcast_to."
        ),
    )
    return x


def _impl(combine: str, xp: Any, x: Any, indices: Any, updates: Any, **params: Any) -> Any:
    out = xp.array(x, copy=True)
    _write(combine, xp, out, indices, updates, **params)
    return out


def _call(
    combine: str, xp: Any, outs: Sequence[Any], x: Any, indices: Any, updates: Any, **params: Any
) -> None:
    outs[0][...] = x
    _write(combine, xp, outs[0], indices, updates, **params)


def _write(
    combine: str,
    xp: Any,
    out: Any,
    indices: Any,
    updates: Any,
    *,
    dimension_numbers: ScatterDimensionNumbers,
    mode: GatherScatterMode,
    **params: Any,
) -> None:
    """Combine the updates into ``out``, in order for repeated indices."""
    del params
    windows = scatter_windows(out.shape, dimension_numbers, updates.shape)
    drops = mode is not GatherScatterMode.CLIP
    row_indices, in_bounds, width = flat_row_indices(xp, windows, indices, drops)
    if 0 in (*row_indices.shape, width) or out.size == 0:
        return
    order = (*scatter_dims(updates.ndim, dimension_numbers), *dimension_numbers.update_window_dims)
    rows = xp.transpose(updates, order).reshape(-1, width)
    target = row_indices
    if in_bounds is not None and not in_bounds.all():
        aligned = in_bounds.reshape(in_bounds.shape + (1,) * (row_indices.ndim - in_bounds.ndim))
        mask = xp.broadcast_to(aligned, row_indices.shape).reshape(-1)
        target, rows = row_indices.reshape(-1)[mask], rows[mask]
    target = target.reshape(-1)
    flat = out.reshape(-1, width)
    if combine == "set":
        flat[target] = rows
        return
    is_narrow = dtypes.is_floating(out.dtype) and out.dtype.itemsize <= 2
    total = flat.astype(np.float32) if is_narrow else flat
    # NumPy's ufunc.at is fast for flat arrays only.
    flat_at = target if width == 1 else (target[:, None] * width + xp.arange(width)).reshape(-1)
    sums, terms = total.reshape(-1), rows.reshape(-1).astype(total.dtype, copy=False)
    if combine == "add" and xp is not np and terms.dtype.kind == "c":
        # CuPy adds atomically, which complex numbers are too wide for.
        xp.add.at(sums.real, flat_at, terms.real)
        xp.add.at(sums.imag, flat_at, terms.imag)
    else:
        getattr(xp, combine).at(sums, flat_at, terms)
    if is_narrow:
        flat[...] = total


def _shifted(dims: Sequence[int]) -> Dims:
    return tuple(d + 1 for d in dims)


def batch_scatter(
    bind: Callable[..., Any],
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension_numbers: ScatterDimensionNumbers,
    **params: Any,
) -> tuple[Any, int]:
    """The batch rule of every scatter."""
    x, indices, updates = operands
    x = batch_to_dim(x, dims[0], 0, axis.size)
    updates = batch_to_dim(updates, dims[2], 0, axis.size)
    numbers = dimension_numbers
    shifted = ScatterDimensionNumbers(
        _shifted(numbers.update_window_dims),
        _shifted(numbers.inserted_window_dims),
        _shifted(numbers.scatter_dims_to_operand_dims),
        _shifted(numbers.operand_batching_dims),
        numbers.scatter_indices_batching_dims,
    )
    if dims[1] is None:
        # Each window covers the mapped dimension in full.
        shifted = shifted._replace(update_window_dims=(0, *shifted.update_window_dims))
    else:
        indices = batch_to_dim(indices, dims[1], 0, axis.size)
        shifted = shifted._replace(
            operand_batching_dims=(0, *shifted.operand_batching_dims),
            scatter_indices_batching_dims=(0, *_shifted(numbers.scatter_indices_batching_dims)),
        )
    return bind(x, indices, updates, dimension_numbers=shifted, **params), 0


def _on_gpu(
    combine: str, eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """The scatter as an update; ``update_windows`` resolves repeated indices."""
    dtype = eqn.inputs[0].aval.dtype
    if combine != "set" and dtypes.is_floating(dtype) and dtype.itemsize == 2:
        return in_float32(eqn, build)
    return _simplify(combine, eqn, definition, build, may_share=False)


def _simplify(
    combine: str, eqn: Any, definition: DefinitionLookup, build: EqnBuilder, may_share: bool = True
) -> list[Any] | None:
    """The scatter as an update of the array's memory."""
    del definition
    x, indices, updates = eqn.inputs
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    repeats, dtype = not eqn.params["unique_indices"], x.aval.dtype
    by_shares = may_share and repeats and can_be_shared(dtype, combine)
    if 0 in (*x.aval.shape, *updates.aval.shape):
        return None
    if not (by_shares or can_be_updated(dtype, combine)):
        return None
    if type(indices) is Literal or indices.aval.dtype in dtypes.NARROW_INTEGERS:
        return None
    windows = scatter_windows(x.aval.shape, numbers, updates.aval.shape)
    strides = row_major_strides(x.aval.shape)
    batch = indices.aval.shape[:-1]
    components = [
        Component(_column(build, indices, k), windows.room(d) - 1, strides[d])
        for k, d in enumerate(windows.mapped)
    ]
    components += [
        Component(counted(build, batch, axis), windows.shape[d] - 1, strides[d])
        for d, axis in windows.batching
    ]
    if batch and not components:
        return None  # all windows start at 0
    order = (*scatter_dims(updates.aval.ndim, numbers), *numbers.update_window_dims)
    if order != tuple(range(len(order))):
        updates = build.apply(transpose_p, updates, permutation=order)
    checked = mode is not GatherScatterMode.CLIP
    if by_shares and components and _is_contiguous(windows):
        out = scatter_by_shares(build, x, components, updates, combine, checked)
        if out is not None:
            return [out]
    if not can_be_updated(dtype, combine):
        return None
    out = update(
        build,
        x,
        components,
        updates,
        windows.window_dims,
        combine,
        checked=checked,
        repeats=repeats,
    )
    return [out]


def _is_contiguous(windows: Windows) -> bool:
    """Whether the elements of a window are contiguous in memory."""
    wide = [d for d, size in enumerate(windows.sizes) if size > 1]
    return not wide or all(
        windows.sizes[d] == windows.shape[d] for d in range(wide[0] + 1, len(windows.shape))
    )


def _column(build: EqnBuilder, indices: Any, component: int) -> Any:
    """Component ``component`` of all index vectors."""
    shape = indices.aval.shape
    if shape[-1] != 1:
        start, limit = (*[0] * (len(shape) - 1), component), (*shape[:-1], component + 1)
        indices = build.apply(
            slice_p, indices, start_indices=start, limit_indices=limit, strides=None
        )
    return build.apply(squeeze_p, indices, dimensions=(len(shape) - 1,))


def _partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions that windows cover in full."""
    numbers, (x, _, updates) = params["dimension_numbers"], ins
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window_dims = [d for d in range(out.ndim) if d not in dropped]
    pairs = [
        (d, u)
        for d, u in zip(window_dims, numbers.update_window_dims, strict=True)
        if x.shape[d] == updates.shape[u] and d not in numbers.scatter_dims_to_operand_dims
    ]
    return [(d, d) for d, _ in pairs], (), [(u, d) for d, u in pairs]


def _halo(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Halo:
    """Each chunk of the array gets the updates at its indices; nothing is sent."""
    numbers, mode = params["dimension_numbers"], params["mode"]
    windows = scatter_windows(ins[0].shape, numbers, ins[2].shape)

    def rows(dim: int, start: int, size: int) -> Sequence[Any] | None:
        if dim not in numbers.inserted_window_dims or dim not in windows.mapped:
            return None
        return [(dim, start, size), None, None]

    def apply(bind: Any, starts: Any, shape: Any, x: Any, indices: Any, updates: Any) -> Any:
        del shape
        indices = signed_indices(indices, max(out.shape))
        aval = aval_of(indices)

        def of_all(vector: Any) -> Any:
            return broadcast_in_dim(vector, aval.shape, (aval.ndim - 1,))

        if mode is GatherScatterMode.CLIP:
            last = np.array([windows.room(d) - 1 for d in windows.mapped], aval.dtype)
            indices = clamp(of_all(np.zeros_like(last)), indices, of_all(last))
        firsts = [starts.get(d, np.int32(0)) for d in windows.mapped]
        shift = concatenate([broadcast_in_dim(first, (1,), ()) for first in firsts], 0)
        shift = of_all(convert_element_type(shift, aval.dtype))
        changed = {**params, "mode": GatherScatterMode.FILL_OR_DROP}
        return bind(x, sub(indices, shift), updates, **changed)

    return Halo(rows, apply)


def _faults(operands: Sequence[Any], params: dict[str, Any]) -> list[Fault]:
    x, indices, updates = operands
    shapes = aval_of(x).shape, aval_of(updates).shape
    return window_faults(
        scatter_windows(shapes[0], params["dimension_numbers"], shapes[1]), indices
    )


def define_scatter(
    name: str,
    combine: str,
    accepts: Callable[[Any], bool],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
) -> Primitive:
    """Define a scatter; ``combine`` is "set" or a NumPy function of two arguments."""

    def batch(axis: AxisData, operands: Any, dims: Any, **params: Any) -> Any:
        return batch_scatter(primitive.bind, axis, operands, dims, **params)

    primitive = define(
        name,
        shape=partial(_shape, name, accepts),
        impl=partial(_impl, combine),
        jvp=jvp,
        transpose=transpose,
        batch=batch,
        lower=Library(
            partial(_call, combine),
            on_gpu=partial(_on_gpu, combine),
            partitionable=_partitionable,
            expanded=partial(scatter_of_lane, combine),
        ),
        simplify=partial(_simplify, combine),
        faults=_faults,
        keys=write,
        halo=_halo,
    )
    return primitive


def scatter_params(
    dimension_numbers: ScatterDimensionNumbers,
    indices_are_sorted: bool,
    unique_indices: bool,
    mode: Any,
) -> dict[str, Any]:
    """Normalize the user's arguments to the params of a scatter."""
    return {
        "dimension_numbers": ScatterDimensionNumbers(
            *[tuple(map(int, dims)) for dims in dimension_numbers]
        ),
        "indices_are_sorted": bool(indices_are_sorted),
        "unique_indices": bool(unique_indices),
        "mode": GatherScatterMode.from_any(mode),
    }
