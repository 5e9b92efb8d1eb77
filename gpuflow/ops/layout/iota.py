"""iota, an array of indices along one dimension, and simplifications of its sums.

Tests: tests/ops/test_identities.py, tests/ops/test_layout.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray
from gpuflow.core.lowering import Indexed
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.types import Array, DTypeLike, ShardingLike
from gpuflow.kir.scalar import compute_dtype
from gpuflow.ops.define import define, is_number
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.arithmetic import add_p, mul_p, sub_p
from gpuflow.ops.elementwise.comparison import or_p, shift_right_logical_p
from gpuflow.ops.elementwise.convert import convert_element_type_p
from gpuflow.ops.elementwise.identities import wrapped
from gpuflow.ops.layout.axes import broadcast_in_dim_p
from gpuflow.ops.linear_maps import wraps


def _iota_shape(*, dtype: Any, shape: tuple[int, ...], dimension: int) -> ShapedArray:
    check(
        not dtypes.is_extended(dtype) and is_number(np.dtype(dtype)),
        lambda: (
            f"[iota] the dtype must be a number; got {dtype}. "
            "Fix: make an iota of int32 and convert it."
        ),
    )
    check(
        all(size >= 0 for size in shape),
        lambda: f"[iota] sizes must not be negative; got {shape}. Fix: use sizes >= 0.",
    )
    check(
        0 <= dimension < len(shape),
        lambda: (
            f"[iota] the dimension must exist; got shape {shape} and dimension {dimension}. "
            f"Fix: use a dimension in [0, {len(shape)})."
        ),
        ValueError,
    )
    return ShapedArray(shape, dtype)


def _iota_impl(xp: Any, *, dtype: Any, shape: tuple[int, ...], dimension: int) -> Any:
    # Counted in int64 and converted: integers wrap, floats round.
    indices = xp.arange(shape[dimension]).astype(dtype)
    out = xp.empty(shape, dtype)
    out[...] = indices.reshape([-1 if d == dimension else 1 for d in range(len(shape))])
    return out


def _iota_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del in_avals
    name = out.dtype.name
    value = context.builder.cast(context.index(params["dimension"]), compute_dtype(name))
    return context.builder.round(value, name)


@explained
def iota(dtype: DTypeLike, size: Sequence[int] | int, dimension: int = 0) -> Array:
    """Return an array of indices along ``dimension``.

    Args:
        dtype: an integer, float or complex dtype; integers wrap.
        size: the size of a vector, or the sizes of several dimensions.
        dimension: the dimension along which values increase.

    Returns:
        An array of these sizes and ``dtype``.

    Raises:
        TypeError: if the dtype is not numeric, or a size is negative.
        ValueError: if the dimension does not exist.

    Example:
        >>> lax.iota(jnp.int32, (2, 3), 1)
        Array([[0, 1, 2],
               [0, 1, 2]], dtype=int32)
    """
    sizes = size if hasattr(size, "__len__") and getattr(size, "ndim", 1) else (size,)
    return iota_p.bind(
        dtype=dtypes.canonicalize(dtype),
        shape=tuple(as_index(size) for size in sizes),
        dimension=as_index(dimension),
    )


@explained
def broadcasted_iota(
    dtype: DTypeLike,
    shape: Sequence[int] | int,
    dimension: int = 0,
    *,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return ``iota`` of several dimensions.

    Args:
        dtype: an integer, float or complex dtype; integers wrap.
        shape: shape of the result.
        dimension: the dimension along which values increase.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        TypeError: if the dtype is not numeric, or a size is negative.
        ValueError: if the dimension does not exist.

    Example:
        >>> lax.broadcasted_iota(jnp.int32, (2, 3), 0)
        Array([[0, 0, 0],
               [1, 1, 1]], dtype=int32)
    """
    return in_sharding("broadcasted_iota", iota(dtype, shape, dimension), out_sharding)


# --- rewrites to iota or constants -----------------------------------------------------------
#
# Integers wrap modulo a power of two, and so do their sums and products; floats count exactly up
# to 2^(bits of the mantissa), and are rewritten only up to there.


def _counts_to(dtype: Any) -> int:
    """The largest n such that ``dtype`` represents all integers up to n."""
    if dtypes.is_integer(dtype):
        return int(ml_dtypes.iinfo(dtype).max)
    return 1 << (ml_dtypes.finfo(dtype).nmant + 1) if dtypes.is_floating(dtype) else 0


def _iota_sliced(
    eqn: Any, bounds: Any, cut: Any, definition: DefinitionLookup, build: EqnBuilder
) -> Any:
    """A smaller iota; for integers also with start and step."""
    del cut, definition
    dtype, dimension = eqn.params["dtype"], eqn.params["dimension"]
    sizes = tuple(len(range(*bound)) for bound in bounds)
    result = build.apply(iota_p, dtype=dtype, shape=sizes, dimension=dimension)
    start, _, step = bounds[dimension]
    if (start, step) == (0, 1):
        return result
    if not wraps(dtype):
        return None
    for primitive, constant in ((mul_p, step), (add_p, start)):
        literal = build.literal(wrapped(constant, dtype), result.aval)
        result = build.apply(primitive, result, literal)
    return result


def _iota_summed(eqn: Any, axes: tuple[int, ...], build: EqnBuilder) -> Any:
    """n (n - 1) / 2 times the size of the other axes, or the iota times it."""
    dtype, dimension = eqn.params["dtype"], eqn.params["dimension"]
    shape = eqn.params["shape"]
    remaining = [d for d in range(len(shape)) if d not in axes]
    sizes = tuple(shape[d] for d in remaining)
    count = prod(shape[d] for d in axes if d != dimension)
    n = shape[dimension]
    largest = (n * (n - 1) // 2 if dimension in axes else n) * count
    if not wraps(dtype) and (largest > _counts_to(dtype) or dtype.itemsize < 4):
        return None
    if dimension not in axes:
        axis = remaining.index(dimension)
        positions = build.apply(iota_p, dtype=dtype, shape=sizes, dimension=axis)
        return build.apply(mul_p, positions, build.literal(_in_dtype(count, dtype), positions.aval))
    total = build.literal(_in_dtype(largest, dtype), eqn.outputs[0].aval)
    if not sizes:
        return total
    return build.apply(broadcast_in_dim_p, total, shape=sizes, broadcast_dimensions=())


def _in_dtype(value: int, dtype: Any) -> Any:
    return wrapped(value, dtype) if wraps(dtype) else value


def _iota_broadcast(
    eqn: Any, shape: tuple[int, ...], dims: tuple[int, ...], build: EqnBuilder
) -> Any:
    source_shape, dimension = eqn.params["shape"], eqn.params["dimension"]
    target = dims[dimension]
    if source_shape[dimension] != shape[target]:
        return None
    return build.apply(iota_p, dtype=eqn.params["dtype"], shape=shape, dimension=target)


def _iota_converted(eqn: Any, dtype: Any, build: EqnBuilder) -> Any:
    """The iota of another dtype, if none of its values wraps or rounds before."""
    shape, dimension = eqn.params["shape"], eqn.params["dimension"]
    if dtypes.is_bool(dtype) or shape[dimension] - 1 > _counts_to(eqn.params["dtype"]):
        return None
    if not is_number(dtype) or (
        not dtypes.is_integer(eqn.params["dtype"]) and dtypes.is_integer(dtype)
    ):
        return None  # floats saturate where integers wrap
    return build.apply(iota_p, dtype=dtype, shape=shape, dimension=dimension)


def _iota_block(
    starts: Sequence[Any], sizes: Sequence[int], *, dtype: Any, shape: Any, dimension: int
) -> Any:
    del shape
    start = broadcast_in_dim_p.bind(starts[dimension], shape=tuple(sizes), broadcast_dimensions=())
    indices = iota_p.bind(dtype=np.dtype(np.int32), shape=tuple(sizes), dimension=dimension)
    return convert_element_type_p.bind(add_p.bind(indices, start), new_dtype=dtype, weak_type=False)


iota_p = define(
    "iota",
    shape=_iota_shape,
    impl=_iota_impl,
    lower=Indexed(
        _iota_body,
        cheap=True,
        sliced=_iota_sliced,
        closed_sum=_iota_summed,
        broadcast=_iota_broadcast,
        converted=_iota_converted,
    ),
    size_params=frozenset({"shape"}),
    block=_iota_block,
)


# --- running sums --------------------------------------------------------------------------


@record
class ScanAxis:
    """Axis of a running sum over arrays of ``shape``; ``reverse``: from its end."""

    shape: tuple[int, ...]
    axis: int
    reverse: bool

    @property
    def size(self) -> int:
        return self.shape[self.axis]


def counts(scan: ScanAxis, dtype: Any, build: EqnBuilder, times: int = 1) -> Any:
    """Running sum of integers that all equal ``times``."""
    wide = _wide(dtype)
    position = _positions(scan, wide, build)
    if scan.reverse:
        count = build.apply(sub_p, _literal(scan.size, wide, build), position)
    else:
        count = build.apply(add_p, position, _literal(1, wide, build))
    if times != 1:
        count = build.apply(mul_p, count, _literal(times, wide, build))
    return _narrowed(count, dtype, build)


def triangles(scan: ScanAxis, dtype: Any, build: EqnBuilder) -> Any:
    """Running sum of the iota along the same axis: k (k + 1) / 2 at k."""
    wide = _wide(dtype)
    position, one = _positions(scan, wide, build), _literal(1, wide, build)
    # One of k and k + 1 is even: half of it times the other one, which is odd.
    half = build.apply(shift_right_logical_p, build.apply(add_p, position, one), one)
    total = build.apply(mul_p, half, build.apply(or_p, position, one))
    if scan.reverse:
        full = _literal(scan.size * (scan.size - 1) // 2, wide, build)
        total = build.apply(add_p, build.apply(sub_p, full, total), position)
    return _narrowed(total, dtype, build)


def _wide(dtype: Any) -> Any:
    """An integer dtype for every index; values in a narrower one would wrap."""
    return dtype if dtype.itemsize >= 4 else np.dtype(np.int32)


def _positions(scan: ScanAxis, dtype: Any, build: EqnBuilder) -> Any:
    return build.apply(iota_p, dtype=dtype, shape=scan.shape, dimension=scan.axis)


def _literal(value: int, dtype: Any, build: EqnBuilder) -> Any:
    return build.literal(wrapped(value, dtype), ShapedArray((), dtype))


def _narrowed(atom: Any, dtype: Any, build: EqnBuilder) -> Any:
    if atom.aval.dtype == dtype:
        return atom
    return build.apply(convert_element_type_p, atom, new_dtype=dtype, weak_type=False)
