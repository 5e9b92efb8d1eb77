"""Functions of gpuflow.lax that are short forms of others: shapes, windows, products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axis
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.types import ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.ops.collectives.varying import vary_along
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.define import check_kind, types_text
from gpuflow.ops.effects.device_put import in_sharding
from gpuflow.ops.elementwise.arithmetic import add, div, rem
from gpuflow.ops.elementwise.comparison import lt
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing import dynamic_slices
from gpuflow.ops.indexing.dimension_numbers import GatherDimensionNumbers
from gpuflow.ops.indexing.gather import gather
from gpuflow.ops.layout import slicing
from gpuflow.ops.layout.axes import broadcast_in_dim, reshape, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.zeros import full as full_of
from gpuflow.parallel.placement import as_sharding, put
from gpuflow.runtime.array import Array, from_numpy

# --- filled arrays -------------------------------------------------------------------------


def full(
    shape: Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None, *,
    sharding: Any = None,
) -> Array:  # fmt: skip
    """An array of ``shape`` filled with a scalar.

    Args:
        shape: sizes.
        fill_value: a scalar.
        dtype: by default that of the scalar.
        sharding: a Sharding, or None for the default device.

    Raises:
        TypeError: ``fill_value`` is not a scalar, or ``sharding`` is no Sharding.
    """
    aval = aval_of(fill_value)
    check(
        not aval.shape,
        lambda: f"[full] the value must be a scalar; got {aval}. Fix: jnp.full, which broadcasts.",
    )
    wanted = dtypes.canonicalize(aval.dtype if dtype is None else dtype)
    value = convert_element_type(fill_value, wanted, dtype is None and aval.weak_type)
    out = broadcast_in_dim(value, tuple(shape), ())
    return out if sharding is None else put(out, as_sharding(sharding, "full"))


def full_like(
    x: Any, fill_value: ArrayLike, dtype: DTypeLike | None = None,
    shape: Sequence[int] | None = None, sharding: Any = None,
) -> Array:  # fmt: skip
    """An array of the shape and type of ``x``, weak where that is, filled with a scalar.

    In shard_map it varies as ``x`` does.
    """
    aval = aval_of(x)
    sizes = aval.shape if shape is None else tuple(shape)
    if dtype is None:
        fill_value = convert_element_type(fill_value, aval.dtype, aval.weak_type)
    return vary_along(full(sizes, fill_value, dtype, sharding=sharding), aval.mat.varying)


def asarray(x: ArrayLike) -> Array:
    """``x`` as an array."""
    if isinstance(x, Array) or (hasattr(x, "aval") and is_value(x)):
        return x  # type: ignore[return-value]
    aval = aval_of(x)
    return from_numpy(np.asarray(x, aval.dtype), aval)


def dtype(x: Any) -> Any:
    """The dtype that ``x`` has as an array; that of arrays, if ``x`` is a dtype or a type."""
    is_type = isinstance(x, np.dtype | type | dtypes.ExtendedDType) or hasattr(x, "dtype")
    return dtypes.canonicalize(x) if is_type and not is_value(x) else aval_of(x).dtype


# --- shapes --------------------------------------------------------------------------------


def broadcast(
    operand: ArrayLike, sizes: Sequence[int], *, out_sharding: ShardingLike = None
) -> Array:
    """``operand`` repeated along new leading dimensions of ``sizes``."""
    shape = (*sizes, *aval_of(operand).shape)
    out = broadcast_in_dim(operand, shape, range(len(tuple(sizes)), len(shape)))
    return in_sharding("broadcast", out, out_sharding)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of shapes that NumPy would broadcast.

    Raises:
        ValueError: they do not fit.
    """
    try:
        return tuple(np.broadcast_shapes(*[tuple(shape) for shape in shapes]))
    except ValueError:
        raise ValueError(
            f"[broadcast_shapes] sizes, aligned at the end, must be equal or 1; got {shapes}. "
            "Fix: reshape one operand."
        ) from None


def expand_dims(array: ArrayLike, dimensions: Sequence[int]) -> Array:
    """``array`` with new dimensions of size 1; ``dimensions`` are those of the result."""
    rank = aval_of(array).ndim + len(tuple(dimensions))
    new = {canonicalize_axis(d, rank, "expand_dims") for d in dimensions}
    check(
        len(new) == len(tuple(dimensions)),
        lambda: (
            f"[expand_dims] dimensions must differ; got {tuple(dimensions)}. "
            "Fix: drop the repeats."
        ),
        ValueError,
    )
    sizes = iter(aval_of(array).shape)
    shape = [1 if d in new else next(sizes) for d in range(rank)]
    return broadcast_in_dim(array, shape, [d for d in range(rank) if d not in new])


def collapse(
    operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None
) -> Array:
    """``operand`` with a range of dimensions joined into one."""
    shape = aval_of(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    joined = int(np.prod(shape[start:stop], dtype=np.int64))
    return reshape(operand, (*shape[:start], joined, *shape[stop:]))


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Array]:
    """Consecutive parts of ``operand`` along ``axis``.

    Raises:
        ValueError: sizes that do not sum to that of the axis.
    """
    place = canonicalize_axis(axis, aval_of(operand).ndim, "split")
    whole = aval_of(operand).shape[place]
    check(
        sum(sizes) == whole and all(size >= 0 for size in sizes),
        lambda: (
            f"[split] sizes must sum to that of the axis; got {tuple(sizes)} for {whole}. "
            "Fix: change a size."
        ),
        ValueError,
    )
    ends = np.cumsum([0, *sizes])
    return [
        slicing.slice_in_dim(operand, int(a), int(b), 1, place)
        for a, b in pairwise(ends)
    ]


def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Arrays of one shape along a new dimension."""
    rank = aval_of(operands[0]).ndim + 1
    place = canonicalize_axis(axis, rank, "stack")
    return concatenate([expand_dims(x, (place,)) for x in operands], place)


def unstack(x: ArrayLike, axis: int = 0) -> list[Array]:
    """The elements along a dimension, which they lose."""
    place = canonicalize_axis(axis, aval_of(x).ndim, "unstack")
    count = aval_of(x).shape[place]
    return [index_in_dim(x, k, place, keepdims=False) for k in range(count)]


def tile(operand: ArrayLike, reps: Sequence[int]) -> Array:
    """``operand`` repeated ``reps[d]`` times along each dimension d."""
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

    Raises:
        TypeError: numbers that are neither floats nor complex.
    """
    check_kind("reciprocal", aval_of(x), dtypes.is_inexact, "a float or complex number")
    aval = aval_of(x)
    return div(convert_element_type(1, aval.dtype, aval.weak_type), x)


# --- windows -------------------------------------------------------------------------------


def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """One element along ``axis``, at a Python int that may count from the end.

    Raises:
        IndexError: the index is outside.
    """
    place = canonicalize_axis(axis, aval_of(operand).ndim, "index_in_dim")
    size = aval_of(operand).shape[place]
    check(
        -size <= index < size,
        lambda: (
            f"[index_in_dim] the index must lie in [{-size}, {size}); got {index}. "
            "Fix: check the size of the axis."
        ),
        IndexError,
    )
    start = index % size
    out = slicing.slice_in_dim(operand, start, start + 1, 1, place)
    return out if keepdims else squeeze(out, (place,))


def _starts(name: str, start_indices: Any, rank: int) -> list[Any]:
    """Starts as a list of scalars of one dtype; an array of them is taken apart."""
    if isinstance(start_indices, (list, tuple)):
        avals = [aval_of(start) for start in start_indices]
        check(
            len({aval.dtype for aval in avals}) < 2,
            lambda: (
                f"[{name}] starts must have one dtype, and Python's ints have the default one; got "
                f"{types_text(avals)}. Fix: convert them, or pass an array of starts."
            ),
        )
        return list(start_indices)
    return [index_in_dim(start_indices, k, 0, keepdims=False) for k in range(rank)]


Choice = bool | Sequence[bool]


def dynamic_slice(
    operand: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], slice_sizes: Sequence[int],
    *, allow_negative_indices: Choice = True,
) -> Array:  # fmt: skip
    """A window of known sizes at a place known at run time; it is moved to lie inside.

    Args:
        operand: array of any dtype and rank r.
        start_indices: r integer scalars of one dtype, or an array of them; negative ones count
            from the end.
        slice_sizes: r sizes.
        allow_negative_indices: whether they may; a bool, or one for each dimension. Without, starts
            below 0 are moved to 0 at run time.

    Raises:
        TypeError: starts that are not integers, or of several dtypes.
        ValueError: numbers of starts or sizes that do not fit, and negative starts, known before,
            that are not allowed.
    """
    starts = _starts("dynamic_slice", start_indices, aval_of(operand).ndim)
    starts = _wrapped("dynamic_slice", starts, operand, allow_negative_indices)
    return dynamic_slices.dynamic_slice(operand, starts, slice_sizes)


def dynamic_update_slice(
    operand: ArrayLike, update: ArrayLike, start_indices: ArrayLike | Sequence[ArrayLike], *,
    allow_negative_indices: Choice = True,
) -> Array:  # fmt: skip
    """``operand`` with a window replaced, at a place known at run time; see ``dynamic_slice``."""
    starts = _starts("dynamic_update_slice", start_indices, aval_of(operand).ndim)
    starts = _wrapped("dynamic_update_slice", starts, operand, allow_negative_indices)
    return dynamic_slices.dynamic_update_slice(operand, update, starts)


def _wrapped(op: str, starts: Sequence[Any], operand: Any, allowed: Choice) -> list[Any]:
    """Starts that count from the front, where the operation sees to that."""
    shape = aval_of(operand).shape
    if len(starts) != len(shape):
        return list(starts)  # refused further down
    choices = [allowed] * len(shape) if isinstance(allowed, bool) else list(allowed)
    check(
        len(choices) == len(shape),
        lambda: (
            f"[{op}] allow_negative_indices must be a bool or have one for each dimension; got "
            f"{allowed} for {aval_of(operand)}. Fix: allow_negative_indices=False."
        ),
        ValueError,
    )
    for start, choice in zip(starts, choices, strict=True):
        check(
            choice or not (isinstance(start, int) and start < 0),
            lambda start=start: (
                f"[{op}] starts must not be negative with allow_negative_indices=False; got "
                f"{start} for {aval_of(operand)}. Fix: allow_negative_indices=True."
            ),
            ValueError,
        )
    return [
        _from_the_end(start, size) if choice else start
        for start, size, choice in zip(starts, shape, choices, strict=True)
    ]


def _from_the_end(start: Any, size: int) -> Any:
    aval = aval_of(start)
    if dtypes.is_extended(aval.dtype) or aval.dtype.kind != "i":
        return start
    if isinstance(start, int):
        place = start + size if start < 0 else start
        return place if abs(place) < 2**31 else dtypes.index_dtype(abs(place)).type(place)
    if isinstance(start, np.integer) and start >= 0:
        return start
    start = asarray(start)
    is_negative = start < 0
    if size > np.iinfo(aval.dtype).max:  # an addition in uint32 wraps to what int64 gives
        start = convert_element_type(start, dtypes.index_dtype(size))
    dtype = aval_of(start).dtype
    return start + convert_element_type(is_negative, dtype) * np.asarray(size, dtype)


def dynamic_slice_in_dim(
    operand: ArrayLike, start_index: ArrayLike, slice_size: int, axis: int = 0, *,
    allow_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """``dynamic_slice`` along one axis; the others are whole."""
    place = canonicalize_axis(axis, aval_of(operand).ndim, "dynamic_slice_in_dim")
    sizes = list(aval_of(operand).shape)
    sizes[place] = slice_size
    starts = _only(operand, place, start_index)
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: ArrayLike, index: ArrayLike, axis: int = 0, keepdims: bool = True, *,
    allow_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """One element along ``axis``, at a place known at run time."""
    place = canonicalize_axis(axis, aval_of(operand).ndim, "dynamic_index_in_dim")
    out = dynamic_slice_in_dim(
        operand, index, 1, place, allow_negative_indices=allow_negative_indices
    )
    return out if keepdims else squeeze(out, (place,))


def dynamic_update_slice_in_dim(
    operand: ArrayLike, update: ArrayLike, start_index: ArrayLike, axis: int, *,
    allow_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """``dynamic_update_slice`` along one axis."""
    place = canonicalize_axis(axis, aval_of(operand).ndim, "dynamic_update_slice_in_dim")
    starts = _only(operand, place, start_index)
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: ArrayLike, update: ArrayLike, index: ArrayLike, axis: int, *,
    allow_negative_indices: bool = True,
) -> Array:  # fmt: skip
    """One element along ``axis`` replaced; ``update`` may lack that axis."""
    place = canonicalize_axis(axis, aval_of(operand).ndim, "dynamic_update_index_in_dim")
    if aval_of(update).ndim != aval_of(operand).ndim:
        update = expand_dims(update, (place,))
    return dynamic_update_slice_in_dim(
        operand, update, index, place, allow_negative_indices=allow_negative_indices
    )


def _only(operand: Any, place: int, start: Any) -> list[Any]:
    zero = 0 if isinstance(start, int) else np.zeros((), aval_of(start).dtype)[()]
    return [start if d == place else zero for d in range(aval_of(operand).ndim)]


@composite
def index_take(src: ArrayLike, idxs: Sequence[Any], axes: Sequence[int]) -> Array:
    """Elements of ``src`` at index vectors along ``axes``, which are replaced by one in front.

    Indices outside are taken modulo the size of their axis.
    """
    aval = aval_of(src)
    wrapped = [_modulo(index, aval.shape[axis]) for index, axis in zip(idxs, axes, strict=True)]
    columns = [expand_dims(index, (aval_of(index).ndim,)) for index in wrapped]
    indices = concatenate(columns, aval_of(columns[0]).ndim - 1)
    places = tuple(canonicalize_axis(axis, aval.ndim, "index_take") for axis in axes)
    sizes = [1 if d in places else size for d, size in enumerate(aval.shape)]
    kept = aval.ndim - len(places)
    lead = aval_of(indices).ndim - 1
    numbers = GatherDimensionNumbers(tuple(range(lead, lead + kept)), tuple(sorted(places)), places)
    return gather(src, indices, numbers, sizes, mode="clip")


def _modulo(index: Any, size: int) -> Any:
    """Indices in [0, size)."""
    dtype = aval_of(index).dtype
    rest = rem(index, np.asarray(size, dtype))
    return where(lt(rest, np.asarray(0, dtype)), add(rest, np.asarray(size, dtype)), rest)


# --- products ------------------------------------------------------------------------------


def dot(
    lhs: ArrayLike, rhs: ArrayLike, *, dimension_numbers: Any = None,
    precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:  # fmt: skip
    """The product of two vectors or matrices; with dimension numbers, ``dot_general``.

    Raises:
        TypeError: operands that are not vectors or matrices.
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


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: PrecisionLike = None) -> Array:
    """Products of matrices; leading dimensions go together.

    Raises:
        TypeError: ranks that differ or are below 2.
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


def empty(
    shape: Sequence[int], dtype: DTypeLike | None, *, out_sharding: ShardingLike = None
) -> Array:
    """An array of ``shape``; it is filled with zeros."""
    return in_sharding("empty", full_of(tuple(shape), 0, dtype), out_sharding)
