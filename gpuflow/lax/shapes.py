"""Convenience functions of gpuflow.lax: shapes and products.

Tests: tests/lax/test_lax_shapes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integers, as_items, canonicalize_axis, known_index
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.collectives.varying import vary_along
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.define import check_kind
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.arithmetic import div
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.layout import slicing
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.zeros import full as full_of
from gpuflow.parallel.placement import as_sharding, put
from gpuflow.runtime.array import Array, from_numpy

# --- filled arrays -------------------------------------------------------------------------


@explained
def full(
    shape: int | Sequence[int],
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    sharding: Any = None,
) -> Array:
    """Return an array of ``shape`` filled with a scalar.

    Args:
        shape: shape of the result.
        fill_value: a scalar.
        dtype: dtype of the result; the dtype of the scalar by default.
        sharding: a Sharding, or None for the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        TypeError: if ``fill_value`` is not a scalar, or ``sharding`` is not a Sharding.

    Example:
        >>> lax.full((2,), 7.0)
        Array([7., 7.], dtype=float32, weak_type=True)
    """
    aval = aval_of(fill_value)
    check(
        not aval.shape,
        lambda: f"[full] the value must be a scalar; got {aval}. Fix: jnp.full, which broadcasts.",
    )
    out_dtype = dtypes.canonicalize(aval.dtype if dtype is None else dtype)
    value = convert_element_type(fill_value, out_dtype, dtype is None and aval.weak_type)
    size = known_index(shape)
    sizes = (size,) if isinstance(size, int) else as_integers("full", "shape", shape)
    out = broadcast_in_dim(value, sizes, ())
    return out if sharding is None else put(out, as_sharding(sharding, "full"))


@explained
def full_like(
    x: Any,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    sharding: Any = None,
) -> Array:
    """Return an array of the shape and type of ``x`` (also weak types) filled with a scalar.

    In shard_map it varies as ``x`` does.

    Args:
        x: array, or an object with a shape and dtype.
        fill_value: a scalar.
        dtype: dtype of the result; the dtype of ``x`` by default.
        shape: shape of the result; the shape of ``x`` by default.
        sharding: a Sharding, or None for the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        TypeError: if ``fill_value`` is not a scalar.

    Example:
        >>> lax.full_like(jnp.ones((2, 2), jnp.int32), 5)
        Array([[5, 5],
               [5, 5]], dtype=int32)
    """
    aval = aval_of(x)
    sizes = aval.shape if shape is None else shape
    if dtype is None:
        fill_value = convert_element_type(fill_value, aval.dtype, aval.weak_type)
    return vary_along(full(sizes, fill_value, dtype, sharding=sharding), aval.mat.varying)


def asarray(x: ArrayLike) -> Array:
    """Convert ``x`` to an array.

    Args:
        x: array, NumPy array or scalar; traced values are returned unchanged.

    Returns:
        An Array of the same shape; weakly typed for Python scalars.

    Example:
        >>> lax.asarray(3)
        Array(3, dtype=int32, weak_type=True)
    """
    if isinstance(x, Array) or (hasattr(x, "aval") and is_value(x)):
        return x  # type: ignore[return-value]
    aval = aval_of(x)
    try:
        return from_numpy(np.asarray(x, aval.dtype), aval)
    except (TypeError, ValueError):  # an aval without values
        raise TypeError(
            f"[asarray] operands must be arrays or numbers; got {brief(x)}. Fix: jnp.zeros_like(x)."
        ) from None
    except OverflowError:
        raise OverflowError(
            f"[asarray] Python ints must fit {aval.dtype}; got {brief(x)}. Fix: use a float."
        ) from None


def dtype(x: Any) -> Any:
    """Return the dtype of ``x`` as an array; for a dtype or type, the dtype of its arrays.

    Args:
        x: array, scalar, dtype or type.

    Returns:
        A dtype.

    Example:
        >>> lax.dtype(1.5), lax.dtype(np.ones(2))
        (dtype('float32'), dtype('float32'))
    """
    is_type = isinstance(x, np.dtype | type | dtypes.ExtendedDType) or hasattr(x, "dtype")
    return dtypes.canonicalize(x) if is_type and not is_value(x) else aval_of(x).dtype


# --- shapes --------------------------------------------------------------------------------


@explained
def broadcast(
    operand: ArrayLike, sizes: Sequence[int], *, out_sharding: ShardingLike = None
) -> Array:
    """Broadcast ``operand`` along new leading dimensions.

    Args:
        operand: array of any dtype.
        sizes: sizes of the new dimensions.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of shape ``sizes + operand.shape``.

    Example:
        >>> lax.broadcast(jnp.array([1, 2]), (3,))
        Array([[1, 2],
               [1, 2],
               [1, 2]], dtype=int32)
    """
    shape = (*sizes, *aval_of(operand).shape)
    out = broadcast_in_dim(operand, shape, range(len(tuple(sizes)), len(shape)))
    return in_sharding("broadcast", out, out_sharding)


@explained
def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which NumPy would broadcast the shapes.

    Args:
        shapes: shapes, as sequences of ints.

    Returns:
        A tuple of ints.

    Raises:
        ValueError: if the shapes do not broadcast.

    Example:
        >>> lax.broadcast_shapes((3, 1), (4,))
        (3, 4)
    """
    try:
        return tuple(np.broadcast_shapes(*[tuple(shape) for shape in shapes]))
    except ValueError:
        raise ValueError(
            f"[broadcast_shapes] sizes, aligned at the end, must be equal or 1; got {shapes}. "
            "Fix: reshape one operand."
        ) from None


def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """Insert dimensions of size 1 into ``array``.

    Args:
        array: array of any dtype.
        dimensions: the new dimensions of the result; negative ones count from the end.

    Returns:
        An array of higher rank.

    Raises:
        ValueError: if a dimension is repeated or out of range for the result.

    Example:
        >>> lax.expand_dims(jnp.ones(3), (0, 2)).shape
        (1, 3, 1)
    """
    dimensions = as_items("expand_dims", "dimensions", dimensions)
    rank = aval_of(array).ndim + len(dimensions)
    new = {canonicalize_axis(d, rank, "expand_dims") for d in dimensions}
    check(
        len(new) == len(dimensions),
        lambda: f"[expand_dims] dimensions must differ; got {dimensions}. Fix: drop the repeats.",
        ValueError,
    )
    sizes = iter(aval_of(array).shape)
    shape = [1 if d in new else next(sizes) for d in range(rank)]
    return broadcast_in_dim(array, shape, [d for d in range(rank) if d not in new])


@explained
def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """Merge a range of dimensions of ``operand`` into one.

    Args:
        operand: array of any dtype.
        start_dimension: first dimension of the range.
        stop_dimension: end of the range, excluded; None means the last dimension is included.

    Returns:
        An array with the same elements.

    Example:
        >>> lax.collapse(jnp.ones((2, 3, 4)), 0, 2).shape
        (6, 4)
    """
    shape = aval_of(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    collapsed = int(np.prod(shape[start:stop], dtype=np.int64))
    return reshape(operand, (*shape[:start], collapsed, *shape[stop:]))


@explained
def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Split ``operand`` into consecutive pieces along ``axis``.

    Args:
        operand: array of any dtype.
        sizes: sizes of the pieces.
        axis: the axis to split.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the sizes do not sum to the size of the axis.

    Example:
        >>> lax.split(jnp.arange(5), (2, 3))
        [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32)]
    """
    dim = canonicalize_axis(axis, aval_of(operand).ndim, "split")
    whole = aval_of(operand).shape[dim]
    sizes = as_integers("split", "sizes", sizes)
    check(
        sum(sizes) == whole and all(size >= 0 for size in sizes),
        lambda: (
            f"[split] sizes must sum to that of the axis; got {sizes} for {whole}. "
            "Fix: change a size."
        ),
        ValueError,
    )
    ends = np.cumsum([0, *sizes])
    return [slicing.slice_in_dim(operand, int(a), int(b), 1, dim) for a, b in pairwise(ends)]


@explained
def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Stack arrays of one shape along a new dimension.

    Args:
        operands: arrays of one shape and dtype.
        axis: position of the new dimension.

    Returns:
        An array with an additional dimension.

    Raises:
        TypeError: if shapes or dtypes differ.

    Example:
        >>> lax.stack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[1, 2],
               [3, 4]], dtype=int32)
    """
    operands = as_items("stack", "operands", operands)
    check(
        len(operands) > 0,
        lambda: "[stack] at least one array is needed; got none. Fix: lax.stack([x]).",
        IndexError,
    )
    rank = aval_of(operands[0]).ndim + 1
    dim = canonicalize_axis(axis, rank, "stack")
    return concatenate([expand_dims(x, (dim,)) for x in operands], dim)


@composite
def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """Repeat ``operand`` ``reps[d]`` times along each dimension d.

    Args:
        operand: array of any dtype.
        reps: a nonnegative number of repetitions for each dimension.

    Returns:
        An array with its sizes multiplied by ``reps``.

    Raises:
        ValueError: if the number of ``reps`` does not match the rank, or one is negative.

    Example:
        >>> lax.tile(jnp.array([1, 2]), (2,))
        Array([1, 2, 1, 2], dtype=int32)
    """
    shape = aval_of(operand).shape
    check(
        len(tuple(reps)) == len(shape) and all(n >= 0 for n in reps),
        lambda: (
            f"[tile] there must be one number >= 0 for each dimension; got {tuple(reps)} for "
            f"{aval_of(operand)}. Fix: jnp.tile, which adds dimensions."
        ),
        ValueError,
    )
    wide = [size for pair in zip(reps, shape, strict=True) for size in pair]
    repeated = broadcast_in_dim(operand, wide, range(1, 2 * len(shape), 2))
    return reshape(repeated, [n * size for n, size in zip(reps, shape, strict=True)])


def reciprocal(x: ArrayLike) -> Array:
    """Elementwise ``1 / x``.

    Args:
        x: array of floats or complex numbers.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is neither float nor complex.

    Example:
        >>> lax.reciprocal(jnp.array([2.0, 4.0]))
        Array([0.5 , 0.25], dtype=float32)
    """
    check_kind("reciprocal", aval_of(x), dtypes.is_inexact, "a float or complex number")
    aval = aval_of(x)
    return div(convert_element_type(1, aval.dtype, aval.weak_type), x)


# --- products ------------------------------------------------------------------------------


def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the product of two vectors or matrices; with dimension numbers, ``dot_general``.

    Args:
        lhs: array of rank 1 or 2.
        rhs: array of rank 1 or 2.
        dimension_numbers: as for ``dot_general``; None contracts the last dimension of lhs with the
            first of rhs.
        precision: as for ``dot_general``.
        preferred_element_type: dtype of the result; None uses the dtype of the operands.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of the dimensions that are not contracted.

    Raises:
        TypeError: if an operand is not a vector or matrix.

    Example:
        >>> lax.dot(jnp.array([[1.0, 2.0]]), jnp.array([3.0, 4.0]))
        Array([11.], dtype=float32)
    """
    ranks = aval_of(lhs).ndim, aval_of(rhs).ndim
    if dimension_numbers is None:
        check(
            all(1 <= rank <= 2 for rank in ranks),
            lambda: (
                f"[dot] operands must be vectors or matrices; got {aval_of(lhs)} and "
                f"{aval_of(rhs)}. Fix: jnp.matmul, or dimension_numbers."
            ),
        )
        dimension_numbers = (((ranks[0] - 1,), (0,)), ((), ()))
    out = dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)
    return in_sharding("dot", out, out_sharding)


@composite
def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: PrecisionLike = None) -> Array:
    """Return products of matrices over shared leading dimensions.

    Args:
        lhs: array of shape ``[..., n, k]``.
        rhs: array of shape ``[..., k, m]``, with the same leading sizes.
        precision: as for ``dot_general``.

    Returns:
        An array of shape ``[..., n, m]``.

    Raises:
        TypeError: if ranks differ or are below 2.

    Example:
        >>> lax.batch_matmul(jnp.ones((2, 1, 3)), jnp.ones((2, 3, 4))).shape
        (2, 1, 4)
    """
    rank = aval_of(lhs).ndim
    check(
        rank >= 2 and aval_of(rhs).ndim == rank,
        lambda: (
            f"[batch_matmul] operands must have one rank of at least 2; got {aval_of(lhs)} and "
            f"{aval_of(rhs)}. Fix: jnp.matmul."
        ),
    )
    batch = tuple(range(rank - 2))
    return dot_general(lhs, rhs, (((rank - 1,), (rank - 2,)), (batch, batch)), precision)


@composite
def empty(
    shape: Sequence[int], dtype: DTypeLike | None, *, out_sharding: ShardingLike = None
) -> Array:
    """Return an array of ``shape``, filled with zeros.

    Args:
        shape: shape of the result.
        dtype: dtype of the result; None uses the default float dtype.
        out_sharding: the Sharding or PartitionSpec of the result; None uses the default device.

    Returns:
        An array of ``shape`` and ``dtype``.

    Example:
        >>> lax.empty((2,), jnp.float32)
        Array([0., 0.], dtype=float32)
    """
    out_dtype = dtypes.default_float() if dtype is None else dtype
    return in_sharding("empty", full_of(tuple(shape), 0, out_dtype), out_sharding)
