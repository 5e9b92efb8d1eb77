"""Ops on axes that rules of other ops use.

broadcast_in_dim and reduce_sum are each other's transposes, so they are in one module.

Tests: tests/ops/test_layout.py, tests/ops/test_identities.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import (
    MAX_DIMENSIONS,
    are_dimensions,
    as_integers,
    as_items,
    canonicalize_axis,
    check_rank,
    known_index,
)
from gpuflow.base.errors import check
from gpuflow.core import views
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import Literal
from gpuflow.core.lowering import Layout, Reduction
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData
from gpuflow.core.types import Array, ArrayLike, ShardingLike
from gpuflow.ops.define import check_kind, define, is_number, linear_jvp, unary_transpose
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.layout.transpose import move_axis, transpose
from gpuflow.ops.linear_maps import LinearMap, wraps
from gpuflow.ops.reductions.blocked_sums import blocked_sum


def _sizes(op: str, shape: int | Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(shape, tuple | list) and isinstance(known_index(shape), int):
        shape = (shape,)
    entries = as_items(op, "shape", shape)
    if {*map(type, entries)} == {int} and min(entries) >= 0 and len(entries) <= MAX_DIMENSIONS:
        return entries  # the common case
    sizes = as_integers(op, "shape", entries)
    check_rank(op, sizes)
    check(
        all(size >= 0 for size in sizes),
        lambda: f"[{op}] sizes must not be negative; got {sizes}. Fix: use sizes >= 0.",
    )
    return sizes


# --- broadcast_in_dim ----------------------------------------------------------------------


def _broadcast_shape(
    x: ShapedArray, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...]
) -> ShapedArray:
    dims = broadcast_dimensions
    check(
        len(dims) == x.ndim and are_dimensions(dims, len(shape)) and sorted(dims) == list(dims),
        lambda: (
            f"[broadcast_in_dim] broadcast_dimensions must be {x.ndim} different dimensions of "
            f"shape {shape}; got {dims} for {x}. Fix: give one output dimension for each input one."
        ),
    )
    check(
        all(x.shape[k] in (1, shape[d]) for k, d in enumerate(dims)),
        lambda: (
            f"[broadcast_in_dim] operand sizes must be 1 or equal the output's; got {x} for shape "
            f"{shape} with dimensions {dims}. Fix: choose a shape that {x} broadcasts to."
        ),
    )
    return ShapedArray(shape, x.dtype, x.weak_type)


def _broadcast_impl(
    xp: Any, x: Any, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...]
) -> Any:
    expanded = [1] * len(shape)
    for k, d in enumerate(broadcast_dimensions):
        expanded[d] = x.shape[k]
    if tuple(expanded) == shape:
        return x.reshape(shape)
    return xp.ascontiguousarray(xp.broadcast_to(x.reshape(expanded), shape)).reshape(shape)


def _broadcast_transpose(
    cotangent: Any, x: ShapedArray, *, shape: tuple[int, ...], broadcast_dimensions: Any
) -> Any:
    dims = broadcast_dimensions
    summed = tuple(d for d in range(len(shape)) if d not in dims)
    stretched = tuple(d for k, d in enumerate(dims) if x.shape[k] == 1 and shape[d] != 1)
    total = reduce_sum(cotangent, summed + stretched)
    return reshape(total, x.shape) if stretched else total


def _broadcast_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int],
    *,
    shape: tuple[int, ...],
    broadcast_dimensions: tuple[int, ...],
) -> tuple[Any, int]:
    x = move_axis(operands[0], dims[0], 0)
    shifted = (0, *(d + 1 for d in broadcast_dimensions))
    return broadcast_in_dim(x, (aval_of(x).shape[0], *shape), shifted), 0


def _broadcast_links(
    x: ShapedArray, out: ShapedArray, *, shape: Any, broadcast_dimensions: tuple[int, ...]
) -> list[tuple[int, int]]:
    del shape
    pairs = enumerate(broadcast_dimensions)
    return [(k, d) for k, d in pairs if x.shape[k] == out.shape[d]]


def _broadcast_view(view: Any, out: ShapedArray, *, shape: Any, broadcast_dimensions: Any) -> Any:
    del out
    return views.broadcast_in_dim(view, shape, broadcast_dimensions)


def _broadcast_sliced(
    eqn: Any, bounds: Any, cut: Any, definition: DefinitionLookup, build: EqnBuilder
) -> Any:
    """The broadcast of a slice of the operand, along the dimensions that the operand has."""
    del definition
    x, shape, dims = eqn.inputs[0], eqn.params["shape"], eqn.params["broadcast_dimensions"]
    sizes = tuple(len(range(*bound)) for bound in bounds)
    if dims:
        sized_dims = zip(x.aval.shape, dims)
        x = cut(x, [bounds[d] if size == shape[d] else (0, 1, 1) for size, d in sized_dims])
    return build.apply(broadcast_in_dim_p, x, shape=sizes, broadcast_dimensions=dims)


def _broadcast_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Simplify identity broadcasts, and broadcasts of broadcasts and of similar ops."""
    x, shape, dims = eqn.inputs[0], eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if x.aval is eqn.outputs[0].aval:
        return [x]
    source = definition(x)
    if source is None:
        return None
    if source.primitive is broadcast_in_dim_p:
        inner = tuple(dims[d] for d in source.params["broadcast_dimensions"])
        params = {"shape": shape, "broadcast_dimensions": inner}
        return [build.apply(broadcast_in_dim_p, source.inputs[0], **params)]
    rule = source.primitive.lower
    if rule.broadcast is not None:
        result = rule.broadcast(source, shape, dims, build)
        return None if result is None else [result]
    return None


def broadcast_in_dim(
    operand: ArrayLike,
    shape: Sequence[int],
    broadcast_dimensions: Sequence[int],
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Broadcast to ``shape``; dimension k of ``operand`` becomes ``broadcast_dimensions[k]``.

    Args:
        operand: array of any dtype and rank r.
        shape: shape of the result.
        broadcast_dimensions: r dimensions of the result, in any order.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` with the dtype of ``operand``.

    Raises:
        TypeError: if dimensions or sizes do not match.

    Example:
        >>> lax.broadcast_in_dim(jnp.array([1, 2]), (2, 3), (0,))
        Array([[1, 1, 1],
               [2, 2, 2]], dtype=int32)
    """
    if out_sharding is not None:
        out = broadcast_in_dim(operand, shape, broadcast_dimensions)
        return in_sharding("broadcast_in_dim", out, out_sharding)
    shape = _sizes("broadcast_in_dim", shape)
    dims = as_items("broadcast_in_dim", "broadcast_dimensions", broadcast_dimensions)
    if {*map(type, dims)} > {int}:
        dims = as_integers("broadcast_in_dim", "broadcast_dimensions", dims)
    order = sorted(dims)
    if tuple(order) != dims and len(dims) == aval_of(operand).ndim:
        operand, dims = transpose(operand, [dims.index(d) for d in order]), tuple(order)
    same = aval_of(operand).shape == shape and dims == tuple(range(len(shape)))
    if same and hasattr(operand, "aval"):
        return operand  # type: ignore[return-value]
    return broadcast_in_dim_p.bind(operand, shape=shape, broadcast_dimensions=dims)


broadcast_in_dim_p = define(
    "broadcast_in_dim",
    shape=_broadcast_shape,
    impl=_broadcast_impl,
    jvp=linear_jvp(lambda x, **params: broadcast_in_dim(x, **params)),
    transpose=unary_transpose(_broadcast_transpose),
    batch=_broadcast_batch,
    lower=Layout(_broadcast_view, _broadcast_links, sliced=_broadcast_sliced),
    simplify=_broadcast_simplify,
    size_params=frozenset({"shape"}),
)


# --- reduce_sum ----------------------------------------------------------------------------


def reduced_shape(x: ShapedArray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without ``axes``."""
    return tuple(size for d, size in enumerate(x.shape) if d not in axes)


def check_axes(
    name: str, x: ShapedArray, axes: tuple[int, ...], error: type[Exception] = ValueError
) -> None:
    """Raise ``error`` unless ``axes`` are distinct dimensions of ``x``."""
    check(
        are_dimensions(axes, x.ndim),
        lambda: (
            f"[{name}] axes must be distinct dimensions of {x}; got {axes}. "
            f"Fix: use axes in [0, {x.ndim})."
        ),
        error,
    )


def _sum_shape(x: ShapedArray, *, axes: tuple[int, ...]) -> ShapedArray:
    check_kind("reduce_sum", x, is_number, "a number (not bool)")
    check_axes("reduce_sum", x, axes)
    return ShapedArray(reduced_shape(x, axes), x.dtype, x.weak_type)


def _sum_impl(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    wide = x.astype(np.float32) if x.dtype.itemsize <= 2 and dtypes.is_floating(x.dtype) else x
    if xp is np and dtypes.is_inexact(wide.dtype):
        return np.asarray(blocked_sum(wide, axes)).astype(x.dtype)
    return xp.asarray(wide.sum(axis=axes, dtype=wide.dtype)).astype(x.dtype)


def _sum_transpose(cotangent: Any, x: ShapedArray, *, axes: tuple[int, ...]) -> Any:
    remaining = tuple(d for d in range(x.ndim) if d not in axes)
    return broadcast_in_dim(cotangent, x.shape, remaining)


def reduction_batch(apply: Any) -> Any:
    """The batch rule of a reduction over ``axes`` of one operand."""

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, axes: tuple[int, ...]
    ) -> tuple[Any, int]:
        del axis
        dim = dims[0]
        shifted = tuple(d + (d >= dim) for d in axes)
        return apply(operands[0], shifted), dim - sum(d < dim for d in shifted)

    return batch


def bind_reduction(primitive: Primitive, x: Any, axes: Sequence[int]) -> Any:
    """Reduce over ``axes``; without axes, only check the operand."""
    axes = as_items(primitive.name, "axes", axes)
    if axes:
        return primitive.bind(x, axes=axes)
    primitive.shape(aval_of(x), axes=())
    return x


def reduce_sum(
    operand: ArrayLike, axes: Sequence[int], *, out_sharding: ShardingLike = None
) -> Array:
    """Sum over ``axes``.

    Args:
        operand: array of numbers. float16 and bfloat16 are summed in float32; integers wrap.
        axes: dimensions of ``operand`` to reduce; an empty sequence returns ``operand``.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array without the reduced dimensions, of the dtype of ``operand``; 0 for no elements.

    Raises:
        ValueError: if an axis is repeated or out of range for ``operand``.
        TypeError: if an argument is boolean.

    Example:
        >>> lax.reduce_sum(jnp.array([[1, 2], [3, 4]]), (0,))
        Array([4, 6], dtype=int32)
    """
    return in_sharding("reduce_sum", bind_reduction(reduce_sum_p, operand, axes), out_sharding)


def drop_unit_axes(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Rewrite a reduction over axes of size 1 that a layout op made as a squeeze.

    Others may be batches of one, which must run the same code as all batches.
    """
    shape, axes = eqn.inputs[0].aval.shape, tuple(eqn.params["axes"])
    source = definition(eqn.inputs[0])
    if any(shape[d] != 1 for d in axes) or source is None:
        return None
    if source.primitive.lower.view is None:
        return None
    return [build.apply(squeeze_p, eqn.inputs[0], dimensions=axes)]


def _closed_sum(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Closed form of the sum of an iota: for integers modulo a power of two, for exact floats."""
    x, axes = eqn.inputs[0], eqn.params["axes"]
    count = prod(x.aval.shape[d] for d in axes)

    def ones(dtype: Any, times: int = 1) -> Any:
        remaining = reduced_shape(x.aval, axes)
        literal = build.literal(count * times % (1 << 64), ShapedArray((), dtype))
        if not remaining:
            return literal
        return build.apply(broadcast_in_dim_p, literal, shape=remaining, broadcast_dimensions=())

    def of_equation(source: Any) -> Any:
        rule = source.primitive.lower
        if rule.closed_sum is not None:
            return rule.closed_sum(source, axes, build)
        scalar = source.inputs[0] if source.primitive is broadcast_in_dim_p else None
        if type(scalar) is Literal and wraps(scalar.aval.dtype):
            return ones(scalar.aval.dtype, int(scalar.value))
        return None

    if wraps(x.aval.dtype):
        result = LinearMap(definition, build, of_equation, ones)(x)
    else:
        source = definition(x)
        result = None if source is None else of_equation(source)
    return None if result is None else [result]


def _sum_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Let a library call sum its result: a product sums batch dimensions by contraction."""
    for rule in (drop_unit_axes, _closed_sum):
        result = rule(eqn, definition, build)
        if result is not None:
            return result
    source = definition(eqn.inputs[0])
    if source is None or not definition.is_read_once(eqn.inputs[0]):
        return None
    rule = source.primitive.lower
    if rule.summed is None:
        return None
    result = rule.summed(source, eqn.params["axes"], build)
    return None if result is None else [result]


reduce_sum_p = define(
    "reduce_sum",
    shape=_sum_shape,
    impl=_sum_impl,
    jvp=linear_jvp(lambda x, axes: reduce_sum(x, axes)),
    transpose=unary_transpose(_sum_transpose),
    batch=reduction_batch(reduce_sum),
    lower=Reduction("add", lambda dtype: 0, by_components=True),
    simplify=_sum_simplify,
    sums=all,
)


# --- reshape -------------------------------------------------------------------------------


def _reshape_shape(x: ShapedArray, *, new_sizes: tuple[int, ...]) -> ShapedArray:
    check(
        prod(new_sizes) == x.size,
        lambda: (
            f"[reshape] the number of elements must stay {x.size}; got {x} and new shape "
            f"{new_sizes} of {prod(new_sizes)}. Fix: use sizes whose product is {x.size}, or -1."
        ),
        ValueError,
    )
    return ShapedArray(new_sizes, x.dtype, x.weak_type)


def _reshape_links(x: ShapedArray, out: ShapedArray, *, new_sizes: Any) -> Any:
    del new_sizes
    return views.preserved_dimensions(x.shape, out.shape)


def _reshape_partitionable(ins: Sequence[ShapedArray], out: ShapedArray, params: Any) -> Any:
    del params
    return [views.leading_dimensions(ins[0].shape, out.shape)]


def _reshape_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Simplify identity reshapes, reshapes of reshapes, and reshapes of broadcast scalars."""
    x, shape = eqn.inputs[0], eqn.params["new_sizes"]
    if x.aval is eqn.outputs[0].aval:
        return [x]
    source = definition(x)
    if source is None:
        return None
    if source.primitive is reshape_p:
        return [build.apply(reshape_p, source.inputs[0], new_sizes=shape)]
    if source.primitive is broadcast_in_dim_p and not source.inputs[0].aval.shape:
        params = {"shape": shape, "broadcast_dimensions": ()}
        return [build.apply(broadcast_in_dim_p, source.inputs[0], **params)]
    return None


def _reshape_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, new_sizes: tuple[int, ...]
) -> tuple[Any, int]:
    x = move_axis(operands[0], dims[0], 0)
    return reshape(x, (axis.size, *new_sizes)), 0


def reshape(
    operand: ArrayLike,
    new_sizes: int | Sequence[int],
    dimensions: Sequence[int] | None = None,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the elements of ``operand`` in row-major order with another shape.

    Args:
        operand: the array.
        new_sizes: the sizes of the result.
        dimensions: the order in which the dimensions of ``operand`` are read; ascending by default.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of shape ``new_sizes`` and the dtype of ``operand``.

    Raises:
        TypeError: if a size is negative or not an integer, or ``dimensions`` is not a permutation.
        ValueError: if the number of elements differs.

    Example:
        >>> lax.reshape(jnp.array([[1, 2], [3, 4]]), (4,), dimensions=(1, 0))
        Array([1, 3, 2, 4], dtype=int32)
    """
    if dimensions is not None:
        dimensions = as_integers("reshape", "dimensions", dimensions)
    if out_sharding is not None:
        out = reshape(operand, new_sizes, dimensions)
        return in_sharding("reshape", out, out_sharding)
    sizes = _sizes("reshape", new_sizes)
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    if aval_of(operand).shape == sizes and hasattr(operand, "aval"):
        return operand  # type: ignore[return-value]
    return reshape_p.bind(operand, new_sizes=sizes)


reshape_p = define(
    "reshape",
    shape=_reshape_shape,
    impl=lambda xp, x, *, new_sizes: xp.ascontiguousarray(x).reshape(new_sizes),
    jvp=linear_jvp(lambda x, new_sizes: reshape(x, new_sizes)),
    transpose=unary_transpose(lambda ct, x, *, new_sizes: reshape(ct, x.shape)),
    batch=_reshape_batch,
    lower=Layout(
        lambda view, out, *, new_sizes: views.reshape(view, new_sizes),
        _reshape_links,
        partitionable=_reshape_partitionable,
    ),
    simplify=_reshape_simplify,
    size_params=frozenset({"new_sizes"}),
)


# --- squeeze -------------------------------------------------------------------------------


def _squeeze_shape(x: ShapedArray, *, dimensions: tuple[int, ...]) -> ShapedArray:
    check_axes("squeeze", x, dimensions)
    check(
        all(x.shape[d] == 1 for d in dimensions),
        lambda: (
            f"[squeeze] squeezed dimensions must have size 1; got dimensions {dimensions} of {x}. "
            "Fix: squeeze only dimensions of size 1."
        ),
        ValueError,
    )
    return ShapedArray(reduced_shape(x, dimensions), x.dtype, x.weak_type)


def _squeeze_transpose(cotangent: Any, x: ShapedArray, *, dimensions: tuple[int, ...]) -> Any:
    remaining = tuple(d for d in range(x.ndim) if d not in dimensions)
    return broadcast_in_dim(cotangent, x.shape, remaining)


def _squeeze_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int], *, dimensions: tuple[int, ...]
) -> tuple[Any, int]:
    del axis
    dim = dims[0]
    shifted = tuple(d + (d >= dim) for d in dimensions)
    return squeeze(operands[0], shifted), dim - sum(d < dim for d in shifted)


def _squeeze_links(x: ShapedArray, out: ShapedArray, *, dimensions: tuple[int, ...]) -> Any:
    del out
    remaining = [d for d in range(x.ndim) if d not in dimensions]
    return [(d, k) for k, d in enumerate(remaining)]


def _squeeze_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    """Remove dimensions that a broadcast has added from the broadcast."""
    source, dropped = definition(eqn.inputs[0]), eqn.params["dimensions"]
    if source is None or source.primitive is not broadcast_in_dim_p:
        return None
    dims = source.params["broadcast_dimensions"]
    if any(d in dims for d in dropped):
        return None
    shifted = tuple(d - sum(gone < d for gone in dropped) for d in dims)
    params = {"shape": eqn.outputs[0].aval.shape, "broadcast_dimensions": shifted}
    return [build.apply(broadcast_in_dim_p, source.inputs[0], **params)]


def squeeze(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Remove dimensions of size 1.

    Args:
        array: array of any dtype.
        dimensions: dimensions of size 1; negative ones count from the end.

    Returns:
        An array with the same elements.

    Raises:
        ValueError: if a dimension is repeated or out of range, or its size is not 1.

    Example:
        >>> lax.squeeze(jnp.ones((1, 3, 1)), (0, -1)).shape
        (3,)
    """
    dimensions = as_items("squeeze", "dimensions", dimensions)
    if not dimensions:
        return array  # type: ignore[return-value]
    if {*map(type, dimensions)} != {int} or min(dimensions) < 0:
        rank = aval_of(array).ndim
        dimensions = tuple(canonicalize_axis(d, rank, "squeeze") for d in dimensions)
    return squeeze_p.bind(array, dimensions=dimensions)


squeeze_p = define(
    "squeeze",
    shape=_squeeze_shape,
    impl=lambda xp, x, *, dimensions: xp.squeeze(x, dimensions),
    jvp=linear_jvp(lambda x, dimensions: squeeze(x, dimensions)),
    transpose=unary_transpose(_squeeze_transpose),
    batch=_squeeze_batch,
    lower=Layout(lambda view, out, *, dimensions: views.squeeze(view, dimensions), _squeeze_links),
    simplify=_squeeze_simplify,
)


def insert_axis(x: Any, position: int) -> Any:
    """Insert a dimension of size 1."""
    shape = list(aval_of(x).shape)
    shape.insert(position, 1)
    remaining = [d for d in range(len(shape)) if d != position]
    return broadcast_in_dim(x, shape, remaining)
