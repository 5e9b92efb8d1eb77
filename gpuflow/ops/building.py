"""Ops that build arrays: iota from nothing, concatenate from pieces."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Indexed
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.kir.scalar import NARROW_DTYPES, compute_dtype
from gpuflow.ops.define import check_same_dtype, define, is_number, types_text
from gpuflow.ops.layout import slice_
from gpuflow.ops.moving import batch_to_dim
from gpuflow.ops.zeros import instantiate

# --- iota ----------------------------------------------------------------------------------


def _iota_shape(*, dtype: Any, shape: tuple[int, ...], dimension: int) -> ShapedArray:
    check(
        not dtypes.is_extended(dtype) and is_number(np.dtype(dtype)),
        lambda: (
            f"[iota] the dtype must be a number; got {dtype}. "
            "Fix: make an iota of int32 and convert it."
        ),
    )
    check(
        all(size >= 0 for size in shape) and 0 <= dimension < len(shape),
        lambda: (
            "[iota] sizes must not be negative and dimension must exist; got shape "
            f"{shape} and dimension {dimension}. Fix: use a dimension in [0, {len(shape)})."
        ),
        ValueError,
    )
    return ShapedArray(shape, dtype)


def _iota_impl(xp: Any, *, dtype: Any, shape: tuple[int, ...], dimension: int) -> Any:
    # Counted in int64 and converted: integers wrap, floats round.
    numbers = xp.arange(shape[dimension]).astype(dtype)
    out = xp.empty(shape, dtype)
    out[...] = numbers.reshape([-1 if d == dimension else 1 for d in range(len(shape))])
    return out


def _iota_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    del in_avals
    name = out.dtype.name
    value = context.builder.cast(context.index(params["dimension"]), compute_dtype(name))
    return context.builder.apply(f"round_{name}", value) if name in NARROW_DTYPES else value


def iota(dtype: Any, shape: Sequence[int] | int, dimension: int = 0) -> Any:
    """An array whose elements are their positions along ``dimension``.

    Args:
        dtype: an integer, float or complex dtype; integers wrap.
        shape: sizes; one int makes a vector.
        dimension: the dimension that counts.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        TypeError: a dtype that is no number.
        ValueError: a dimension that ``shape`` does not have, or a negative size.
    """
    sizes = (shape,) if isinstance(shape, int) else shape
    return iota_p.bind(
        dtype=dtypes.canonicalize(dtype),
        shape=tuple(as_index(size) for size in sizes),
        dimension=as_index(dimension),
    )


iota_p = define(
    "iota",
    shape=_iota_shape,
    impl=_iota_impl,
    lower=Indexed(_iota_body, cheap=True),
    size_params=frozenset({"shape"}),
)


# --- concatenate ---------------------------------------------------------------------------


def _concatenate_shape(*pieces: ShapedArray, dimension: int) -> ShapedArray:
    check(
        len(pieces) > 0,
        lambda: "[concatenate] at least one array is needed; got none. Fix: pass a list of arrays.",
        ValueError,
    )
    check_same_dtype("concatenate", pieces)
    rank = pieces[0].ndim
    check(
        0 <= dimension < rank,
        lambda: (
            f"[concatenate] dimension must lie in [0, {rank}); got {dimension} for "
            f"{types_text(pieces)}. Fix: choose an existing dimension, or reshape scalars to (1,)."
        ),
        ValueError,
    )

    def others(aval: ShapedArray) -> tuple[int, ...]:
        return aval.shape[:dimension] + aval.shape[dimension + 1 :]

    check(
        all(p.ndim == rank and others(p) == others(pieces[0]) for p in pieces),
        lambda: (
            f"[concatenate] shapes must agree except along dimension {dimension}; got "
            f"{types_text(pieces)}. Fix: pad, slice or reshape the odd one."
        ),
    )
    total = sum(piece.shape[dimension] for piece in pieces)
    shape = (*pieces[0].shape[:dimension], total, *pieces[0].shape[dimension + 1 :])
    return ShapedArray(shape, pieces[0].dtype, all(piece.weak_type for piece in pieces))


def _concatenate_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, dimension: int
) -> tuple[Any, Any]:
    out = concatenate(primals, dimension)
    return out, concatenate([instantiate(tangent) for tangent in tangents], dimension)


def _concatenate_transpose(cotangent: Any, *pieces: Any, dimension: int) -> list[Any]:
    if type(cotangent) is Zero:
        return [Zero(p.aval.tangent()) if is_undefined(p) else None for p in pieces]
    shape = aval_of(cotangent).shape
    results, start = [], 0
    for piece in pieces:
        unknown = is_undefined(piece)
        size = (piece.aval if unknown else aval_of(piece)).shape[dimension]
        if unknown:
            first, last = [0] * len(shape), list(shape)
            first[dimension], last[dimension] = start, start + size
            results.append(slice_(cotangent, first, last))
        else:
            results.append(None)
        start += size
    return results


def _concatenate_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], *, dimension: int
) -> tuple[Any, int]:
    shared = {dim for dim in dims if dim is not None}
    target = shared.pop() if len(shared) == 1 else 0
    moved = [batch_to_dim(x, d, target, axis.size) for x, d in zip(operands, dims)]
    return concatenate(moved, dimension + (dimension >= target)), target


def _concatenate_body(context: Any, in_avals: Any, out: ShapedArray, params: Any) -> Any:
    dimension = params["dimension"]
    builder = context.builder
    position = context.index(dimension)
    indices = [context.index(d) for d in range(out.ndim)]
    result, start = None, 0
    for number, piece in enumerate(in_avals):
        size = piece.shape[dimension]
        stop = start + size
        if size == 0:
            continue
        if start:
            indices[dimension] = builder.apply("sub", position, context.size(start))
        last = stop == out.shape[dimension]
        inside = None if last else builder.apply("lt", position, context.size(stop))
        if start:
            after = builder.apply("ge", position, context.size(start))
            inside = after if inside is None else builder.apply("and", after, inside)
        value = context.load(number, list(indices), inside)
        # Before its own piece a load gives 0, which a later piece replaces.
        result = value if result is None else builder.select(after, value, result)
        start = stop
    return context.load(0, indices) if result is None else result


def concatenate(pieces: Sequence[Any], dimension: int) -> Any:
    """Join arrays along an existing dimension.

    Args:
        pieces: arrays of one dtype whose shapes agree except along ``dimension``.
        dimension: where to join.

    Returns:
        An array of that dtype.

    Raises:
        ValueError: no arrays, or a dimension that they do not have.
        TypeError: dtypes or shapes that do not agree.
    """
    if len(pieces) == 1 and hasattr(pieces[0], "aval"):
        return pieces[0]
    return concatenate_p.bind(*pieces, dimension=dimension)


concatenate_p = define(
    "concatenate",
    shape=_concatenate_shape,
    impl=lambda xp, *pieces, dimension: xp.concatenate(pieces, dimension),
    jvp=_concatenate_jvp,
    transpose=_concatenate_transpose,
    batch=_concatenate_batch,
    lower=Indexed(_concatenate_body),
)
