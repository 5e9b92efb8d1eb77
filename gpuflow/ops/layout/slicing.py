"""slice and pad, with static bounds.

slice and pad are each other's transposes. A padding configuration holds (low, high, interior) for
each dimension; negative low or high remove elements, interior ones are inserted between elements:

    pad([a b c], 0, (2, -1, 1))  =  [0 0 a 0 b 0 c] without its last  =  [0 0 a 0 b 0]

Tests: tests/ops/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.arguments import as_integer, as_integers, canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core import views
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Indexed, Layout
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_same_dtype, define, linear_jvp, unary_transpose
from gpuflow.ops.elementwise.arithmetic import sub
from gpuflow.ops.elementwise.nary import typed_scalar
from gpuflow.ops.elementwise.select import select
from gpuflow.ops.layout.axes import (
    broadcast_in_dim,
    broadcast_in_dim_p,
    reduce_sum,
    squeeze,
)
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.computed_slices import Bound, computed_slices
from gpuflow.ops.layout.pad_rewrites import added_pads, padded_rows, padded_stores
from gpuflow.ops.layout.slice_blocks import (
    pad_halo,
    slice_bounds,
    slice_chunk,
    slice_halo,
    slice_params,
)
from gpuflow.ops.zeros import full, instantiate

Config = tuple[tuple[int, int, int], ...]


# --- slice ---------------------------------------------------------------------------------


def _steps(strides: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    return (1,) * rank if strides is None else tuple(strides)


def _slice_shape(
    x: ShapedArray,
    *,
    start_indices: tuple[int, ...],
    limit_indices: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> ShapedArray:
    steps = _steps(strides, x.ndim)
    check(
        len(start_indices) == len(limit_indices) == len(steps) == x.ndim,
        lambda: (
            f"[slice] start, limit and strides must have one entry for each dimension of {x}; got "
            f"{start_indices}, {limit_indices} and {strides}. Fix: give {x.ndim} of each."
        ),
        TypeError if len(steps) != x.ndim else ValueError,
    )
    bounds = zip(start_indices, limit_indices, x.shape)
    check(
        all(0 <= start <= limit <= size for start, limit, size in bounds),
        lambda: (
            f"[slice] bounds must satisfy 0 <= start <= limit <= size; got start {start_indices} "
            f"and limit {limit_indices} for {x}. Fix: clip the bounds to the shape."
        ),
    )
    check(
        all(step > 0 for step in steps),
        lambda: (
            f"[slice] strides must be positive; got {strides} for {x}. "
            "Fix: slice with positive strides, then reverse with rev."
        ),
    )
    sizes = zip(start_indices, limit_indices, steps)
    shape = tuple(-(-(limit - start) // step) for start, limit, step in sizes)
    return ShapedArray(shape, x.dtype, x.weak_type)


def _slice_impl(xp: Any, x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    steps = _steps(strides, x.ndim)
    region = tuple(slice(*bounds) for bounds in zip(start_indices, limit_indices, steps))
    return xp.array(x[region], order="C")


def _slice_transpose(
    cotangent: Any, x: ShapedArray, *, start_indices: Any, limit_indices: Any, strides: Any
) -> Any:
    del limit_indices
    config = []
    steps = _steps(strides, x.ndim)
    counts = aval_of(cotangent).shape
    for start, step, count, size in zip(start_indices, steps, counts, x.shape):
        spanned = 1 + (count - 1) * step if count else 0
        config.append((start, size - start - spanned, step - 1))
    zero = np.zeros((), x.dtype)[()]
    return pad(cotangent, zero, config)


def _slice_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int],
    *,
    start_indices: tuple[int, ...],
    limit_indices: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> tuple[Any, int]:
    dim = dims[0]
    starts = _inserted(start_indices, dim, 0)
    limits = _inserted(limit_indices, dim, axis.size)
    steps = None if strides is None else _inserted(strides, dim, 1)
    return slice_(operands[0], starts, limits, steps), dim


def _inserted(items: Sequence[Any], position: int, item: Any) -> tuple[Any, ...]:
    return (*items[:position], item, *items[position:])


def _slice_view(
    view: Any, out: ShapedArray, *, start_indices: Any, limit_indices: Any, strides: Any
) -> Any:
    return views.slice_view(view, start_indices, limit_indices, _steps(strides, out.ndim))


def _slice_links(
    x: ShapedArray, out: ShapedArray, *, start_indices: Any, limit_indices: Any, strides: Any
) -> list[tuple[int, int]] | None:
    """A slice that drops elements needs its operand in memory."""
    del start_indices, limit_indices, strides
    return [(d, d) for d in range(x.ndim)] if x.shape == out.shape else None


def _slice_steps(x: ShapedArray, out: ShapedArray, *, strides: Any, **bounds: Any) -> Any:
    del out, bounds
    return _steps(strides, x.ndim)


def _slice_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    """Dimensions without dropped elements."""
    del params
    return [[(d, d) for d, size in enumerate(ins[0].shape) if size == out.shape[d]]]


def _slice_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Simplify full slices, slices of slices, and slices of ops with their own rule."""
    x = eqn.inputs[0]
    bounds = slice_bounds(eqn.params)
    if x.aval is eqn.outputs[0].aval:
        return [x]
    source = definition(x)
    if source is None or 0 in eqn.outputs[0].aval.shape:
        return None

    def cut(atom: Any, bounds: Sequence[Bound]) -> Any:
        return build.apply(slice_p, atom, **slice_params(bounds))

    if source.primitive is slice_p:
        composed = [
            (first + start * by, first + (limit - 1) * by + 1, step * by)
            for (first, _, by), (start, limit, step) in zip(slice_bounds(source.params), bounds)
        ]
        return [cut(source.inputs[0], composed)]
    rule = source.primitive.lower
    if rule.is_elementwise:
        return computed_slices(eqn, bounds, cut, definition, build)
    if rule.sliced is None:
        return None
    result = rule.sliced(source, bounds, cut, definition, build)
    return None if result is None else [result]


def merged_slices(first: Any, second: Any, dimension: int, build: EqnBuilder) -> Any:
    """Merge two adjacent slices along ``dimension``; None if they are not adjacent.

    Args:
        first, second: their equations, or None.
    """
    if first is None or second is None or not first.primitive is second.primitive is slice_p:
        return None
    if first.inputs[0] is not second.inputs[0]:
        return None
    left, right = slice_bounds(first.params), slice_bounds(second.params)
    start, limit, step = left[dimension]
    follows = right[dimension][0] == start + len(range(start, limit, step)) * step
    others = all(a == b for d, (a, b) in enumerate(zip(left, right)) if d != dimension)
    if not (follows and others and right[dimension][2] == step):
        return None
    left[dimension] = (start, right[dimension][1], step)
    return build.apply(slice_p, first.inputs[0], **slice_params(left))


def slice_(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Array:
    """Return ``operand[start:limit:stride]`` in each dimension, with static bounds.

    Args:
        operand: array of any dtype and rank r.
        start_indices: r start indices.
        limit_indices: r end indices, excluded.
        strides: r positive strides; None means 1.

    Returns:
        An array with the dtype of ``operand``.

    Raises:
        TypeError: if bounds are out of range for ``operand``, or strides are not positive.
        ValueError: if there is not one start and one limit for each dimension.

    Example:
        >>> lax.slice(jnp.arange(6), (1,), (6,), (2,))
        Array([1, 3, 5], dtype=int32)
    """
    starts = as_integers("slice", "start_indices", start_indices)
    limits = as_integers("slice", "limit_indices", limit_indices)
    steps = None if strides is None else as_integers("slice", "strides", strides)
    if steps is not None and all(step == 1 for step in steps) and len(steps) == len(starts):
        steps = None
    return slice_p.bind(operand, start_indices=starts, limit_indices=limits, strides=steps)


@explained
def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Array:
    """Return ``operand[start:limit:stride]`` along one axis; other axes are not sliced.

    Args:
        operand: array of any dtype.
        start_index: start index; None means 0; negative ones count from the end.
        limit_index: end index, excluded; None means the end.
        stride: a positive stride.
        axis: the axis.

    Returns:
        An array with the dtype of ``operand``.

    Raises:
        TypeError: if bounds are out of range for ``operand``, or the stride is not positive.
        ValueError: if the axis does not exist.

    Example:
        >>> lax.slice_in_dim(jnp.arange(6), 1, -1)
        Array([1, 2, 3, 4], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonicalize_axis(axis, len(shape), "slice_in_dim")
    starts, limits, steps = [0] * len(shape), list(shape), [1] * len(shape)
    for bounds, bound in ((starts, start_index), (limits, limit_index)):
        if bound is not None:
            position = as_integer("slice_in_dim", "each bound", bound)
            bounds[axis] = position + shape[axis] if position < 0 else position
    steps[axis] = as_integer("slice_in_dim", "stride", stride)
    return slice_(operand, starts, limits, steps)


slice_p = define(
    "slice",
    shape=_slice_shape,
    impl=_slice_impl,
    jvp=linear_jvp(lambda x, **params: slice_(x, **params)),
    transpose=unary_transpose(_slice_transpose),
    batch=_slice_batch,
    lower=Layout(_slice_view, _slice_links, _slice_steps, partitionable=_slice_partitionable),
    simplify=_slice_simplify,
    halo=slice_halo,
    chunk=slice_chunk,
    size_params=frozenset({"start_indices", "limit_indices"}),
)


# --- pad -----------------------------------------------------------------------------------


def _padded_size(size: int, low: int, high: int, interior: int) -> int:
    return low + high + size + max(size - 1, 0) * interior


def _pad_shape(x: ShapedArray, value: ShapedArray, *, padding_config: Config) -> ShapedArray:
    check_same_dtype("pad", (x, value))
    check(
        value.shape == (),
        lambda: (
            f"[pad] the padding value must be a scalar; got {value} for {x}. "
            "Fix: pad with one element, such as value[0]."
        ),
        ValueError,
    )
    check(
        len(padding_config) == x.ndim,
        lambda: (
            f"[pad] padding_config must have one (low, high, interior) for each dimension of {x}; "
            f"got {padding_config}. Fix: give {x.ndim} of them."
        ),
        ValueError,
    )
    check(
        all(interior >= 0 for _, _, interior in padding_config),
        lambda: (
            f"[pad] interior padding must not be negative; got {padding_config} for {x}. "
            "Fix: slice with strides to drop interior elements."
        ),
        ValueError,
    )
    shape = tuple(_padded_size(n, *edges) for n, edges in zip(x.shape, padding_config))
    check(
        all(size >= 0 for size in shape),
        lambda: (
            f"[pad] sizes after padding must not be negative; got {padding_config} for {x}, which "
            f"gives {shape}. Fix: cut off at most the size of a dimension."
        ),
        ValueError,
    )
    return ShapedArray(shape, x.dtype, x.weak_type and value.weak_type)


def _pad_regions(shape: Sequence[int], out: Sequence[int], config: Config) -> Any:
    """Slices of the operand that the result retains, and their slices of the result."""
    source, target = [], []
    for size, padded, (low, _, interior) in zip(shape, out, config):
        step = interior + 1
        # Element k goes to low + k * step; retain those in [0, padded).
        first = max(0, -(low // step))
        last = min(size, -((low - padded) // step))
        count = max(0, last - first)
        start = low + first * step
        source.append(slice(first, first + count))
        target.append(slice(start, start + count * step, step) if count else slice(0, 0))
    return tuple(source), tuple(target)


def _pad_impl(xp: Any, x: Any, value: Any, *, padding_config: Config) -> Any:
    shape = tuple(_padded_size(n, *edges) for n, edges in zip(x.shape, padding_config))
    out = xp.empty(shape, x.dtype)
    out[...] = value
    source, target = _pad_regions(x.shape, shape, padding_config)
    out[target] = x[source]
    return out


def _pad_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, padding_config: Config
) -> tuple[Any, Any]:
    out = pad(primals[0], primals[1], padding_config)
    return out, pad(instantiate(tangents[0]), instantiate(tangents[1]), padding_config)


def _unpad(cotangent: Any, config: Config) -> Any:
    """The elements of a padded array that come from the operand."""
    sizes = aval_of(cotangent).shape
    if all(low >= 0 and high >= 0 for low, high, _ in config):
        limits = [max(n - high, low) for n, (low, high, _) in zip(sizes, config)]
        starts = [low for low, _, _ in config]
        return slice_(cotangent, starts, limits, [interior + 1 for _, _, interior in config])
    zero = np.zeros((), aval_of(cotangent).dtype)[()]
    unpadded = pad(cotangent, zero, [(-low, -high, 0) for low, high, _ in config])
    shape = aval_of(unpadded).shape
    return slice_(unpadded, (0,) * len(shape), shape, [interior + 1 for _, _, interior in config])


def _pad_transpose(cotangent: Any, x: Any, value: Any, *, padding_config: Config) -> list[Any]:
    operands = (x, value)
    if type(cotangent) is Zero:
        return [Zero(v.aval.tangent()) if is_undefined(v) else None for v in operands]
    inner = _unpad(cotangent, padding_config)
    value_cotangent = None
    if is_undefined(value):
        total = reduce_sum(cotangent, tuple(range(aval_of(cotangent).ndim)))
        value_cotangent = sub(total, reduce_sum(inner, tuple(range(aval_of(inner).ndim))))
    return [inner if is_undefined(x) else None, value_cotangent]


def _pad_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    padding_config: Config,
) -> tuple[Any, int]:
    x, value = operands
    x_dim, value_dim = dims
    if value_dim is None:
        assert x_dim is not None
        return pad(x, value, _inserted(padding_config, x_dim, (0, 0, 0))), x_dim
    x = batch_to_dim(x, x_dim, 0, axis.size)
    config = ((0, 0, 0), *padding_config)
    zero = np.zeros((), np.bool_)[()]
    mask = pad(full(aval_of(x).shape, True, np.bool_), zero, config)
    # Any padding value works: the mask removes it again.
    filler = slice_(value, (0,), (1,)) if axis.size else full((1,), 0, aval_of(x).dtype)
    padded = pad(x, squeeze(filler, (0,)), config)
    shape = aval_of(padded).shape
    return select(mask, padded, broadcast_in_dim(value, shape, (0,))), 0


def _pad_scalars(in_avals: Any, params: Any) -> list[int]:
    """For each dimension the low padding, the step between elements, and the size."""
    rows = zip(params["padding_config"], in_avals[0].shape, strict=True)
    return [n for (low, _, interior), size in rows for n in (low, interior + 1, size)]


def _pad_body(context: Any, in_avals: Any, out: Any, params: Any) -> Any:
    del in_avals, out
    builder = context.builder
    zero = builder.const("int64", 0)
    indices, in_bounds = [], None

    def require(condition: Any) -> None:
        nonlocal in_bounds
        in_bounds = condition if in_bounds is None else builder.apply("and", in_bounds, condition)

    for d, (low, high, interior) in enumerate(params["padding_config"]):
        index = context.index(d)
        if low != 0:
            index = builder.apply("sub", index, context.bound(d, 3 * d))
        if low > 0:
            require(builder.apply("ge", index, zero))
        if interior:
            # Negative indices are already excluded, so truncating division is exact.
            step = context.number(3 * d + 1)
            require(builder.apply("eq", builder.apply("rem", index, step), zero))
            index = builder.apply("div", index, step)
        if high > 0:
            require(builder.apply("lt", index, context.bound(d, 3 * d + 2)))
        indices.append(index)
    value = context.load(0, indices, in_bounds)
    if in_bounds is None:
        return value
    return builder.select(in_bounds, value, context.load(1, []))


def _pad_sliced(
    eqn: Any, bounds: Sequence[Bound], cut: Any, definition: DefinitionLookup, build: EqnBuilder
) -> Any:
    """A slice of the operand with less padding."""
    x, value = eqn.inputs
    config = eqn.params["padding_config"]
    shape = tuple(len(range(*bound)) for bound in bounds)
    region, padding = [], []
    for size, (low, _, interior), bound, count in zip(x.aval.shape, config, bounds, shape):
        spacing, step = interior + 1, bound[2] if count > 1 else interior + 1
        if (bound[0] - low) % spacing or step % spacing:
            return None  # it includes interior padding
        first, step = (bound[0] - low) // spacing, step // spacing
        # The range of first, first + step, ... that are elements.
        begin = min(max(-(first // step), 0), count)
        end = max(min(-((first - size) // step), count), begin)
        region.append((first + begin * step, first + (end - 1) * step + 1, step))
        padding.append((begin, count - end, 0))
    if any(low + high == count for count, (low, high, _) in zip(shape, padding)):
        return build.apply(broadcast_in_dim_p, value, shape=shape, broadcast_dimensions=())
    is_inner = not any(low or high for low, high, _ in padding)
    if not is_inner and not definition.is_read_only_by(slice_p, eqn.outputs[0]):
        return None
    elements = cut(x, region)
    if is_inner:
        return elements
    return build.apply(pad_p, elements, value, padding_config=tuple(padding))


def _pad_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """No padding is the identity, negative padding a slice, interior padding padding of rows."""
    x, config = eqn.inputs[0], eqn.params["padding_config"]
    if any(interior for _, _, interior in config):
        readers = definition.readers(eqn.outputs[0]) or ()
        is_sliced = any(reader.primitive is slice_p for reader in readers)
        return None if is_sliced else padded_rows(eqn, build)  # slices may be of the operand
    if any(low > 0 or high > 0 for low, high, _ in config):
        return None
    bounds = [(-low, n + high, 1) for n, (low, high, _) in zip(x.aval.shape, config)]
    if any(start >= limit for start, limit, _ in bounds):
        return None
    return [build.apply(slice_p, x, **slice_params(bounds))] if bounds else [x]


def _pad_partitionable(ins: Sequence[Any], out: Any, params: Any) -> Any:
    del ins, out
    config = params["padding_config"]
    return [(d, d) for d, edges in enumerate(config) if edges == (0, 0, 0)], ()


@explained
def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[Sequence[int]]
) -> Array:
    """Pad ``operand`` at its edges and between elements; negative padding removes elements.

    Args:
        operand: array of any dtype and rank r.
        padding_value: scalar of the dtype of ``operand``.
        padding_config: r triples (low, high, interior); low and high may be negative.

    Returns:
        An array of the dtype of ``operand``.

    Raises:
        ValueError: if the configuration is inconsistent.
        TypeError: if the padding value has another dtype.

    Example:
        >>> lax.pad(jnp.array([1, 2]), 0, ((1, 2, 1),))
        Array([0, 1, 0, 2, 0, 0], dtype=int32)
    """
    config = tuple(tuple(int(entry) for entry in edges) for edges in padding_config)
    check(
        all(len(edges) == 3 for edges in config),
        lambda: (
            "[pad] padding_config must hold triples (low, high, interior); "
            f"got {config}. Fix: add the missing entries, such as interior 0."
        ),
        ValueError,
    )
    if type(padding_value) in (bool, int, float, complex):
        padding_value = typed_scalar(padding_value, aval_of(operand))
    return pad_p.bind(operand, padding_value, padding_config=config)


pad_p = define(
    "pad",
    shape=_pad_shape,
    impl=_pad_impl,
    jvp=_pad_jvp,
    transpose=_pad_transpose,
    batch=_pad_batch,
    lower=Indexed(
        _pad_body,
        _pad_scalars,
        selects=True,
        sliced=_pad_sliced,
        added=added_pads,
        as_updates=padded_stores,
        partitionable=_pad_partitionable,
    ),
    simplify=_pad_simplify,
    halo=pad_halo,
)
