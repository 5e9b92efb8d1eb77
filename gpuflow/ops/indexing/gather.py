"""gather: windows of an array at given indices; and scatter_add, its transpose.

Tests: tests/ops/test_gather_scatter.py, tests/numpy/test_numpy_indexing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Indexed
from gpuflow.core.rules import AxisData, Fault, Zero, is_undefined, zero_tangent
from gpuflow.core.types import Array, ArrayLike, ModeLike
from gpuflow.ops.define import define, is_number
from gpuflow.ops.effects.faults import window_faults
from gpuflow.ops.elementwise.arithmetic import neg
from gpuflow.ops.indexing.dimension_numbers import (
    Dims,
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    Windows,
    check_index_aval,
    check_windows,
    flat_row_indices,
    scatter_windows,
)
from gpuflow.ops.indexing.rows import bounded, fill_value, filling_element
from gpuflow.ops.indexing.scatter_core import define_scatter, scatter_params
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate, zeros_of


def _windows(shape: Dims, numbers: GatherDimensionNumbers, slice_sizes: Dims) -> Windows:
    batching = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    return Windows(shape, slice_sizes, numbers.start_index_map, tuple(batching), dropped)


def _shape(
    x: ShapedArray,
    indices: ShapedArray,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Dims,
    mode: GatherScatterMode,
    **params: Any,
) -> ShapedArray:
    del params
    numbers = dimension_numbers
    check_index_aval("gather", indices, numbers.start_index_map)
    check(
        len(slice_sizes) == x.ndim,
        lambda: (
            f"[gather] slice_sizes must have one size for each dimension; got {slice_sizes} for "
            f"{x}. Fix: give {x.ndim} sizes."
        ),
    )
    windows = _windows(x.shape, numbers, slice_sizes)
    check_windows("gather", windows, indices)
    offsets = [slice_sizes[d] for d in windows.window_dims]
    rank = indices.ndim - 1 + len(offsets)
    dims = numbers.offset_dims
    check(
        len(dims) == len(offsets)
        and list(dims) == sorted(set(dims))
        and all(0 <= d < rank for d in dims),
        lambda: (
            f"[gather] offset_dims must be {len(offsets)} increasing dimensions of the result, of "
            f"rank {rank}; got {dims}. Fix: one for each dimension that windows keep."
        ),
    )
    return ShapedArray(_merge(indices.shape[:-1], offsets, dims), x.dtype, x.weak_type)


def _merge(batch: Sequence[int], offsets: Sequence[int], offset_dims: Dims) -> Dims:
    """Batch and window sizes in the order of the result."""
    batch_sizes, window_sizes = iter(batch), iter(offsets)
    count = len(batch) + len(offsets)
    return tuple(next(window_sizes if d in offset_dims else batch_sizes) for d in range(count))


def _impl(
    xp: Any,
    x: Any,
    indices: Any,
    *,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Dims,
    mode: GatherScatterMode,
    fill_value: Any,
    **params: Any,
) -> Any:
    del params
    windows = _windows(x.shape, dimension_numbers, slice_sizes)
    fills = mode is GatherScatterMode.FILL_OR_DROP
    row_indices, in_bounds, width = flat_row_indices(xp, windows, indices, fills)
    batch = indices.shape[:-1]
    window_sizes = [slice_sizes[d] for d in windows.window_dims]
    if 0 in (*row_indices.shape, width) or x.size == 0:
        out = xp.full((*batch, *window_sizes), _filling(fill_value, x.dtype), x.dtype)
    else:
        rows = xp.take(x.reshape(-1, width), row_indices.reshape(-1), axis=0)
        out = rows.reshape((*batch, *window_sizes))
        if in_bounds is not None and not in_bounds.all():
            out[~in_bounds] = _filling(fill_value, x.dtype)
    order = _merge(range(len(batch)), range(len(batch), out.ndim), dimension_numbers.offset_dims)
    return xp.transpose(out, order)


def _filling(value: Any, dtype: Any) -> Any:
    return fill_value(dtype) if value is None else value


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    x, indices = primals
    out = gather_p.bind(x, indices, **params)
    if type(tangents[0]) is Zero:
        return out, zero_tangent(out)
    return out, gather_p.bind(tangents[0], indices, **{**params, "fill_value": 0})


def _transpose(cotangent: Any, x: Any, indices: Any, **params: Any) -> list[Any]:
    if not is_undefined(x):
        return [None, None]
    if type(cotangent) is Zero:
        return [Zero(x.aval.tangent()), None]
    numbers = params["dimension_numbers"]
    scattered = scatter_add(
        zeros_of(x.aval.tangent()),
        indices,
        cotangent,
        ScatterDimensionNumbers(*numbers),
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=params["mode"],
    )
    return [scattered, None]


def _shifted(dims: Sequence[int]) -> Dims:
    return tuple(d + 1 for d in dims)


def _batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    x, indices = operands
    numbers: GatherDimensionNumbers = params["dimension_numbers"]
    sizes = params["slice_sizes"]
    if dims[0] is None:
        indices = batch_to_dim(indices, dims[1], 0, axis.size)
        shifted = numbers._replace(
            offset_dims=_shifted(numbers.offset_dims),
            start_indices_batching_dims=_shifted(numbers.start_indices_batching_dims),
        )
        return gather_p.bind(x, indices, **{**params, "dimension_numbers": shifted}), 0
    x = batch_to_dim(x, dims[0], 0, axis.size)
    shifted = GatherDimensionNumbers(
        _shifted(numbers.offset_dims),
        _shifted(numbers.collapsed_slice_dims),
        _shifted(numbers.start_index_map),
        _shifted(numbers.operand_batching_dims),
        numbers.start_indices_batching_dims,
    )
    if dims[1] is None:
        # Each window covers the mapped dimension in full.
        shifted = shifted._replace(offset_dims=(0, *shifted.offset_dims))
        params = {**params, "dimension_numbers": shifted, "slice_sizes": (axis.size, *sizes)}
        return gather_p.bind(x, indices, **params), 0
    indices = batch_to_dim(indices, dims[1], 0, axis.size)
    shifted = shifted._replace(
        operand_batching_dims=(0, *shifted.operand_batching_dims),
        start_indices_batching_dims=(0, *_shifted(numbers.start_indices_batching_dims)),
    )
    size = min(axis.size, 1)
    params = {**params, "dimension_numbers": shifted, "slice_sizes": (size, *sizes)}
    return gather_p.bind(x, indices, **params), 0


def _scalars(in_avals: Any, params: Any) -> list[int]:
    """Number of valid starts along each dimension."""
    shape, sizes = in_avals[0].shape, params["slice_sizes"]
    windows = _windows(shape, params["dimension_numbers"], sizes)
    return [windows.room(d) for d in range(len(shape))]


def _body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    x = in_avals[0]
    builder = context.builder
    numbers: GatherDimensionNumbers = params["dimension_numbers"]
    windows = _windows(x.shape, numbers, params["slice_sizes"])
    batch = [context.index(d) for d in range(out.ndim) if d not in numbers.offset_dims]
    offsets = dict(zip(windows.window_dims, numbers.offset_dims, strict=True))
    batching = dict(windows.batching)
    filled = params["mode"] is GatherScatterMode.FILL_OR_DROP
    in_bounds, indices = None, []
    for d in range(x.ndim):
        index = context.index(offsets[d]) if d in offsets else builder.const("int64", 0)
        if d in batching:
            index = batch[batching[d]]
        elif d in windows.mapped:
            component = builder.const("int64", windows.mapped.index(d))
            start = context.load(1, [*batch, component])
            start, valid = bounded(builder, start, context.number(d))
            index = builder.apply("add", index, start)
            if filled:
                in_bounds = valid if in_bounds is None else builder.apply("and", in_bounds, valid)
        indices.append(index)
    if 0 in x.shape:
        return filling_element(context, indices, _filling(params["fill_value"], x.dtype))
    # Indices are clipped, so that there is something to read wherever the operand has elements.
    value = context.load(0, indices)
    if in_bounds is None:
        return value
    filling = _filling(params["fill_value"], x.dtype)
    return builder.select(in_bounds, value, builder.const_like(value, filling))


def _partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions of the indices; some are also the operand's."""
    numbers: GatherDimensionNumbers = params["dimension_numbers"]
    batch = [d for d in range(out.ndim) if d not in numbers.offset_dims]
    paired = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    return [(d, batch[k]) for d, k in paired], list(enumerate(batch))


def _faults(operands: Sequence[Any], params: dict[str, Any]) -> list[Fault]:
    x, indices = operands
    numbers = params["dimension_numbers"]
    return window_faults(_windows(aval_of(x).shape, numbers, params["slice_sizes"]), indices)


gather_p = define(
    "gather",
    shape=_shape,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Indexed(_body, _scalars, selects=True, partitionable=_partitionable),
    faults=_faults,
)


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: ModeLike = None,
    fill_value: Any = None,
) -> Array:
    """Gather windows of ``operand`` at ``start_indices``.

    Args:
        operand: array of any dtype.
        start_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        dimension_numbers: see ``GatherDimensionNumbers``.
        slice_sizes: the size of a window in each dimension of ``operand``.
        unique_indices: whether no element is guaranteed to be read twice.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        mode: ``clip``, ``fill`` (also named ``drop``) or ``promise_in_bounds``, the default:
            windows that are out of bounds are clamped, and have no gradient.
        fill_value: the value of windows that are out of bounds; None: nan, the smallest signed or
            the largest unsigned integer, True.

    Returns:
        An array of the dtype of ``operand``.

    Raises:
        TypeError: if indices are not integers, or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Source: the definition of Gather in the XLA operation semantics.

    Example:
        >>> numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
        >>> lax.gather(jnp.array([[1, 2], [3, 4]]), jnp.array([[1], [1]]), numbers, (1, 2))
        Array([[3, 4],
               [3, 4]], dtype=int32)
    """
    numbers = GatherDimensionNumbers(
        *[as_integers("gather", "dimension_numbers", dims) for dims in dimension_numbers]
    )
    if fill_value is not None:
        fill_value = _fill_value(fill_value, aval_of(operand).dtype)
    return gather_p.bind(
        operand,
        start_indices,
        dimension_numbers=numbers,
        slice_sizes=as_integers("gather", "slice_sizes", slice_sizes),
        mode=GatherScatterMode.from_any("promise_in_bounds" if mode is None else mode),
        fill_value=fill_value,
        unique_indices=bool(unique_indices),
        indices_are_sorted=bool(indices_are_sorted),
    )


def _fill_value(value: Any, dtype: Any) -> Any:
    if dtypes.is_extended(dtype):
        return value
    try:
        return dtype.type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(
            f"[gather] fill_value must be a number of {dtype}; got {brief(value)}. "
            "Fix: fill_value=0."
        ) from None


# --- scatter_add ---------------------------------------------------------------------------


def read_back(x: Any, indices: Any, updates: ShapedArray, params: dict[str, Any]) -> Any:
    """Gather the windows of ``x`` that a scatter of ``updates`` writes; 0 if out of bounds."""
    numbers = params["dimension_numbers"]
    return gather(
        x,
        indices,
        GatherDimensionNumbers(*numbers),
        scatter_windows(aval_of(x).shape, numbers, updates.shape).sizes,
        mode=params["mode"],
        fill_value=0,
        unique_indices=params["unique_indices"],
        indices_are_sorted=params["indices_are_sorted"],
    )


def _add_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    x, indices, updates = primals
    out = scatter_add_p.bind(x, indices, updates, **params)
    x_tangent, _, update_tangent = tangents
    if type(update_tangent) is Zero:
        return out, x_tangent if type(x_tangent) is not Zero else zero_tangent(out)
    start = instantiate(x_tangent)
    return out, scatter_add_p.bind(start, indices, update_tangent, **params)


def _add_transpose(cotangent: Any, x: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    result: list[Any] = [None, None, None]
    if is_undefined(x):
        result[0] = cotangent
    if is_undefined(updates):
        result[2] = (
            Zero(updates.aval.tangent())
            if type(cotangent) is Zero
            else read_back(cotangent, indices, updates.aval, params)
        )
    return result


scatter_add_p = define_scatter("scatter_add", "add", is_number, _add_jvp, _add_transpose)


def scatter_add(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Add updates to ``operand`` at indices; updates of repeated indices are summed.

    Args:
        operand: array of numbers; float16 and bfloat16 are summed in float32.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter_add(x, indices, jnp.array([1, 10]), numbers)
        Array([15,  5,  6], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_add_p.bind(operand, scatter_indices, updates, **params)


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: ArrayLike,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: ModeLike = None,
) -> Array:
    """Subtract updates from ``operand`` at indices; updates of repeated indices are summed.

    Args:
        operand: array of numbers; float16 and bfloat16 are summed in float32.
        scatter_indices: integers of shape ``batch + (n,)``: index vectors of length n.
        updates: array of the dtype of ``operand``.
        dimension_numbers: see ``ScatterDimensionNumbers``.
        indices_are_sorted: whether index vectors are guaranteed to be in ascending order.
        unique_indices: whether no element is guaranteed to be written twice.
        mode: ``clip``, ``drop`` (the default, skips windows that are out of bounds) or
            ``promise_in_bounds``.

    Returns:
        An array of the shape and dtype of ``operand``.

    Raises:
        TypeError: if dtypes, shapes or dimension numbers are inconsistent.
        ValueError: if the mode is unknown.

    Example:
        >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        >>> x, indices = jnp.array([5, 5, 5]), jnp.array([[2], [0]])
        >>> lax.scatter_sub(x, indices, jnp.array([1, 10]), numbers)
        Array([-5,  5,  4], dtype=int32)
    """
    params = scatter_params(dimension_numbers, indices_are_sorted, unique_indices, mode)
    return scatter_add_p.bind(operand, scatter_indices, neg(updates), **params)
