"""Sorting along one dimension: sort, of several arrays by one or more keys, and top_k.

The order is JAX's: nan last, -0.0 equal to 0.0, complex numbers by real part and then by
imaginary part. Sorts are always stable.

Keys become unsigned integers in the same order. A 32-bit key and its position share a uint64,

    63        32 31         0
    | key bits  | position  |

so that one sort of integers, which NumPy has vectorized, is stable and also gives the permutation:
far faster than a stable argsort.

Tests: tests/ops/test_sorting.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.rules import AxisData, Zero, zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.define import check_kind, define, is_ordered, types_text
from gpuflow.ops.handwritten.blocks import sort_block, top_k_block
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.transpose import move_axis

_SIGN = {4: np.uint32(1 << 31), 8: np.uint64(1 << 63)}


# --- orders --------------------------------------------------------------------------------


def _ordered_bits(xp: Any, x: Any) -> Any:
    """Unsigned integers, 32 or 64 bits, in the order -nan < -inf < -0 < 0 < inf < nan."""
    if dtypes.is_floating(x.dtype):
        wide = x.astype(np.float32) if x.dtype.itemsize <= 2 else x
        unsigned = np.dtype(f"u{wide.dtype.itemsize}")
        bits, sign = wide.view(unsigned), _SIGN[unsigned.itemsize]
        # Bit patterns of negative floats decrease as the float grows: flip all their bits.
        negative = bits >> unsigned.type(8 * unsigned.itemsize - 1)
        return bits ^ (-negative | sign)
    size = 8 if x.dtype.itemsize == 8 else 4
    unsigned = np.dtype(f"u{size}")
    if dtypes.is_bool(x.dtype) or dtypes.is_unsigned(x.dtype):
        return x.astype(unsigned)
    return x.astype(f"i{size}").view(unsigned) ^ _SIGN[size]


def _key_bits(xp: Any, x: Any) -> list[Any]:
    """Keys of one operand, most significant first, equal for both zeros and for all nan."""
    if dtypes.is_complex(x.dtype):
        return [*_key_bits(xp, x.real), *_key_bits(xp, x.imag)]
    if dtypes.is_floating(x.dtype):
        x = x.astype(np.float32) if x.dtype.itemsize <= 2 else x
        x = xp.where(x == x, x + x.dtype.type(0), x.dtype.type(np.nan))
    return [_ordered_bits(xp, x)]


def _with_position(xp: Any, bits: Any, axis: int) -> Any:
    """32-bit keys and positions packed into uint64."""
    shape = [1] * bits.ndim
    shape[axis] = -1
    positions = xp.arange(bits.shape[axis], dtype=np.uint64).reshape(shape)
    packed = bits.astype(np.uint64)
    packed <<= np.uint64(32)
    packed |= positions
    return packed


def _positions(packed: Any) -> Any:
    return (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)


def _stable_order(xp: Any, bits: Any, axis: int) -> Any:
    """Return the indices that sort in ascending order along ``axis``."""
    if bits.dtype == np.uint32:
        packed = _with_position(xp, bits, axis)
        packed.sort(axis=axis)
        return _positions(packed)
    return xp.argsort(bits, axis=axis, kind="stable")


def _order_by(xp: Any, keys: Sequence[Any], axis: int) -> Any:
    """The order by several keys, the first one primary: sort by the last key first."""
    order = _stable_order(xp, keys[-1], axis)
    for key in reversed(keys[:-1]):
        again = _stable_order(xp, xp.take_along_axis(key, order, axis), axis)
        order = xp.take_along_axis(order, again, axis)
    return order


def take_along(x: Any, positions: Any, axis: int) -> Any:
    """Take an element of ``x`` for each position along ``axis``; others are batch dimensions."""
    last = aval_of(x).ndim - 1
    rows, index = move_axis(x, axis, last), move_axis(positions, axis, last)
    return move_axis(row_gather(rows, index, "promise_in_bounds", last), last, axis)


# --- sort ----------------------------------------------------------------------------------


def _sort_shape(
    *operands: ShapedArray, dimension: int, is_stable: bool, num_keys: int
) -> list[ShapedArray]:
    del is_stable
    check(len(operands) > 0, lambda: "[sort] there must be an array; got none. Fix: sort([x]).")
    first = operands[0]
    check(
        all(x.shape == first.shape for x in operands),
        lambda: (
            f"[sort] arrays must have equal shapes; got {types_text(operands)}. "
            "Fix: broadcast them."
        ),
    )
    check(
        0 <= dimension < first.ndim,
        lambda: (
            f"[sort] dimension must be in [0, {first.ndim}); got {dimension} for {first}. Fix: "
            "choose an existing dimension, or reshape a scalar to (1,)."
        ),
        ValueError,
    )
    check(
        1 <= num_keys <= len(operands),
        lambda: (
            f"[sort] num_keys must be in [1, {len(operands)}]; got {num_keys}. Fix: num_keys=1."
        ),
        ValueError,
    )
    for key in operands[:num_keys]:
        check_kind("sort", key, _can_be_key, "a number or bool, where it is a key")
    return list(operands)


def _can_be_key(dtype: Any) -> bool:
    return not dtypes.is_extended(dtype)


def _sort_into(
    xp: Any, outs: Sequence[Any], *operands: Any, dimension: int, is_stable: bool, num_keys: int
) -> None:
    """Write the sorted arrays; the sort is stable also without ``is_stable``."""
    del is_stable
    if not operands[0].size:
        return
    if len(operands) == 1 and _sort_values(xp, outs[0], operands[0], dimension):
        return
    keys = [bits for x in operands[:num_keys] for bits in _key_bits(xp, x)]
    order = _order_by(xp, keys, dimension)
    for out, x in zip(outs, operands, strict=True):
        if xp is np and x.ndim == 1:
            np.take(x, order, out=out, mode="clip")
        else:
            out[...] = xp.take_along_axis(x, order, dimension)


def _sort_values(xp: Any, out: Any, x: Any, dimension: int) -> bool:
    """Sort values without a permutation; False if they need one."""
    if dtypes.is_complex(x.dtype) or x.dtype in dtypes.NARROW_INTEGERS:
        return False
    if not dtypes.is_floating(x.dtype):
        out[...] = x
        out.sort(axis=dimension)
        return True
    wide = x.dtype if x.dtype.itemsize > 2 else dtypes.float32
    values = out if wide == x.dtype else xp.empty(x.shape, wide)
    values[...] = x
    # Zeros of both signs are equal and keep their order, which needs a stable sort. NumPy's
    # vectorized sort, by minima and maxima, may also duplicate one zero and lose the other.
    negative = xp.signbit(values[values == 0])
    if negative.any() and not negative.all():
        return False
    values.sort(axis=dimension)
    if values is not out:
        out[...] = values.astype(x.dtype)
    return True


def _sort_impl(xp: Any, *operands: Any, **params: Any) -> list[Any]:
    outs = [xp.empty(x.shape, x.dtype) for x in operands]
    _sort_into(xp, outs, *operands, **params)
    return outs


def _sort_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    dimension: int,
    is_stable: bool,
    num_keys: int,
) -> tuple[list[Any], list[Any]]:
    params = {"dimension": dimension, "is_stable": is_stable, "num_keys": num_keys}
    if all(type(t) is Zero for t in tangents):
        outs = sort_p.bind(*primals, **params)
        return list(outs), [zero_tangent(out) for out in outs]
    shape = aval_of(primals[0]).shape
    *outs, order = sort_p.bind(*primals, iota(dtypes.int32, shape, dimension), **params)
    out_tangents = [
        zero_tangent(out) if type(t) is Zero else take_along(t, order, dimension)
        for out, t in zip(outs, tangents, strict=True)
    ]
    return outs, out_tangents


def _sort_batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    dimension: int,
    is_stable: bool,
    num_keys: int,
) -> tuple[list[Any], list[int]]:
    dim = next(d for d in dims if d is not None)
    batched = [batch_to_dim(x, d, dim, axis.size) for x, d in zip(operands, dims, strict=True)]
    outs = sort_p.bind(
        *batched,
        dimension=dimension + (dim <= dimension),
        is_stable=is_stable,
        num_keys=num_keys,
    )
    return list(outs), [dim] * len(operands)


@explained
def sort(
    operand: ArrayLike | Sequence[ArrayLike],
    dimension: int = -1,
    is_stable: bool = True,
    num_keys: int = 1,
) -> Any:
    """Sort an array, or several by the first ``num_keys`` of them, along ``dimension``.

    Args:
        operand: array, or sequence of arrays of one shape; keys are numeric or bool.
        dimension: the dimension along which to sort.
        is_stable: whether equal elements must keep their order; they always do.
        num_keys: number of arrays that are keys, the first one primary.

    Returns:
        The array in ascending order, nan last; or a tuple of all arrays in that order.

    Raises:
        TypeError: if shapes differ, or keys are not ordered.
        ValueError: if the dimension does not exist, or the number of keys is invalid.

    Example:
        >>> lax.sort(jnp.array([3, 1, 2]))
        Array([1, 2, 3], dtype=int32)
        >>> lax.sort((jnp.array([1, 0, 1]), jnp.array([5, 6, 4])), num_keys=2)
        (Array([0, 1, 1], dtype=int32), Array([6, 4, 5], dtype=int32))
    """
    many = isinstance(operand, (list, tuple))
    operands = operand if many else [operand]
    check(len(operands) > 0, lambda: "[sort] there must be an array; got none. Fix: sort([x]).")
    dim = canonicalize_axis(dimension, aval_of(operands[0]).ndim, "sort")
    outs = sort_p.bind(*operands, dimension=dim, is_stable=bool(is_stable), num_keys=num_keys)
    return tuple(outs) if many else outs[0]


@explained
def sort_key_val(
    keys: ArrayLike, values: ArrayLike, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Sort ``keys`` along ``dimension``, and permute ``values`` accordingly.

    Args:
        keys: array of numbers or bools.
        values: array of the same shape.
        dimension: the dimension along which to sort.
        is_stable: whether equal elements must keep their order; they always do.

    Returns:
        A pair of arrays.

    Raises:
        TypeError: if shapes differ.
        ValueError: if the dimension does not exist.

    Example:
        >>> lax.sort_key_val(jnp.array([3, 1, 2]), jnp.array([30, 10, 20]))
        (Array([1, 2, 3], dtype=int32), Array([10, 20, 30], dtype=int32))
    """
    return sort([keys, values], dimension, is_stable, 1)


sort_p = define(
    "sort",
    shape=_sort_shape,
    impl=_sort_impl,
    jvp=_sort_jvp,
    batch=_sort_batch,
    lower=Library(_sort_into, what=sort_block),
    multiple_results=True,
)


# --- top_k ---------------------------------------------------------------------------------


def _top_k_shape(x: ShapedArray, *, k: int, axis: int) -> list[ShapedArray]:
    check_kind("top_k", x, is_ordered, "an integer, a real float or bool", ValueError)
    check(
        0 <= axis < x.ndim,
        lambda: (
            f"[top_k] axis must be in [0, {x.ndim}); got {axis} for {x}. Fix: choose an existing "
            "axis, or reshape a scalar to (1,)."
        ),
        ValueError,
    )
    check(
        0 <= k <= x.shape[axis],
        lambda: (
            f"[top_k] k must be in [0, {x.shape[axis]}], the size of axis {axis}; got {k} for {x}. "
            "Fix: choose a smaller k."
        ),
        ValueError,
    )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [ShapedArray(shape, x.dtype, x.weak_type), ShapedArray(shape, dtypes.int32)]


def _top_k_impl(xp: Any, x: Any, *, k: int, axis: int) -> list[Any]:
    """XLA's total order: -0.0 is below 0.0, and nan is ordered by its sign."""
    front = (*(slice(None),) * axis, slice(0, k))
    bits = ~_ordered_bits(xp, x)
    if k == 0 or bits.dtype != np.uint32 or not x.size:
        order = xp.argsort(bits, axis=axis, kind="stable")[front]
    elif x.ndim == 1:
        order = _smallest(xp, bits, k)
    else:
        packed = _with_position(xp, bits, axis)
        if k < x.shape[axis]:
            packed = xp.partition(packed, k - 1, axis=axis)[front]
        order = _positions(xp.sort(packed, axis=axis))
    return [xp.take_along_axis(x, order, axis), order.astype(np.int32)]


def _smallest(xp: Any, bits: Any, k: int) -> Any:
    """Positions of the k smallest elements of a vector; only these are sorted."""
    candidates = xp.flatnonzero(bits <= xp.partition(bits, k - 1)[k - 1])
    return candidates[xp.argsort(bits[candidates], kind="stable")[:k]]


def _top_k_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, k: int, axis: int
) -> tuple[list[Any], list[Any]]:
    values, positions = top_k_p.bind(primals[0], k=k, axis=axis)
    tangent = tangents[0]
    if type(tangent) is Zero or k == 0:
        out_tangent = zero_tangent(values)
    else:
        out_tangent = take_along(tangent, positions, axis)
    return [values, positions], [out_tangent, zero_tangent(positions)]


def _top_k_batch(
    axis_data: AxisData, operands: Sequence[Any], dims: Sequence[int], *, k: int, axis: int
) -> tuple[list[Any], list[int]]:
    del axis_data
    outs = top_k_p.bind(operands[0], k=k, axis=axis + (dims[0] <= axis))
    return list(outs), [dims[0], dims[0]]


def top_k(operand: ArrayLike, k: int, *, axis: int = -1) -> list[Array]:
    """Return the ``k`` largest elements along ``axis``, in descending order, and their indices.

    Args:
        operand: array of integers, real floats or bools.
        k: number of elements, at most the size of the axis.
        axis: the axis to search.

    Returns:
        A list of the values, of the dtype of ``operand``, and i32 indices; among equal elements the
        first one comes first.

    Raises:
        TypeError: if the array is complex, or ``k`` is not an int.
        ValueError: if the axis does not exist, or ``k`` is too large.

    Example:
        >>> lax.top_k(jnp.array([1, 4, 3]), 2)
        [Array([4, 3], dtype=int32), Array([1, 2], dtype=int32)]
    """
    dim = canonicalize_axis(axis, aval_of(operand).ndim, "top_k")
    return list(top_k_p.bind(operand, k=as_index(k), axis=dim))


top_k_p = define(
    "top_k",
    shape=_top_k_shape,
    impl=_top_k_impl,
    jvp=_top_k_jvp,
    batch=_top_k_batch,
    lower=Library(what=top_k_block),
    multiple_results=True,
)
