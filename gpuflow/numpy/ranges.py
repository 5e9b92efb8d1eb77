"""Ranges of numbers, identities and triangles.

Tests: tests/numpy/test_numpy_errors.py, tests/numpy/test_argument_kinds.py.
"""

from __future__ import annotations

import math
from operator import index as as_index
from typing import Any, Literal, overload

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis, known_index
from gpuflow.base.errors import OutOfMemoryError, check
from gpuflow.control.composite import composite
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.types import Array, ArrayLike, DeviceLike, DTypeLike, ShardingLike
from gpuflow.numpy.creation import placed
from gpuflow.numpy.logic import where
from gpuflow.numpy.promotion import (
    PYTHON_SCALARS,
    check_arraylike,
    convert,
    inexact_dtype,
    promote_dtypes,
    user_dtype,
)
from gpuflow.numpy.shaping import reshape
from gpuflow.runtime.array import from_numpy

# --- ranges --------------------------------------------------------------------------------


def arange(
    start: ArrayLike,
    stop: ArrayLike | None = None,
    step: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return evenly spaced numbers in the half-open interval [start, stop).

    Args:
        start: first value; a single argument is ``stop``.
        stop: end of the interval, excluded.
        step: spacing; 1 by default.
        dtype: dtype of the result; the dtype of the arguments by default.
        device: the device of the result; the default device by default.
        out_sharding: the sharding of the result; a single device by default.

    Returns:
        A vector.

    Raises:
        ConcretizationTypeError: if an argument is traced: the length must be static.
        TypeError: if all arguments are bools, or ``dtype`` is bool.
        ZeroDivisionError: if ``step`` is 0.

    Example:
        >>> jnp.arange(4)
        Array([0, 1, 2, 3], dtype=int32)
        >>> jnp.arange(1.0, 2.0, 0.25)
        Array([1.  , 1.25, 1.5 , 1.75], dtype=float32)
    """
    return placed("arange", _arange(start, stop, step, dtype), device, out_sharding)


def _arange(start: Any, stop: Any, step: Any, dtype: Any) -> Any:
    first, last = (0, start) if stop is None else (start, stop)
    range_args = [_known_number(v) for v in (first, last, 1 if step is None else step)]
    check(
        range_args[2] != 0,
        lambda: "[arange] step must not be 0; got 0. Fix: step=1.",
        ZeroDivisionError,
    )
    if dtype is None:
        avals = [aval_of(v) for v in (start, stop, step) if v is not None]
        dtype = dtypes.promote(*[(aval.dtype, aval.weak_type) for aval in avals])[0]
    else:
        dtype = user_dtype(dtype, "arange")
    check(
        not dtypes.is_bool(dtype),
        lambda: (
            f"[arange] numbers must have a dtype of numbers; got bool for {range_args}. "
            "Fix: dtype=int."
        ),
    )
    first, last, by = range_args
    try:
        count = max(0, math.ceil((last - first) / by))
    except (ValueError, OverflowError) as error:  # nan, infinity, or an int beyond floats
        raise type(error)(
            f"[arange] the numbers from start to stop must be countable; got {first} to {last} by "
            f"{by}. Fix: finite bounds."
        ) from None
    if all(isinstance(v, (int, np.integer)) for v in range_args):
        values = lax.iota(dtype, (count,))
        if range_args[2] != 1:
            values = lax.mul(values, convert(range_args[2], dtype))
        return values if range_args[0] == 0 else lax.add(values, convert(range_args[0], dtype))
    try:
        host = np.arange(*range_args, dtype=np.float64 if dtypes.is_floating(dtype) else dtype)
    except (MemoryError, ValueError) as error:
        raise OutOfMemoryError(
            f"[arange] the numbers must fit into memory; got {count:,} of them. Fix: a larger step."
        ) from error
    return from_numpy(host, ShapedArray(host.shape, dtype))


def _known_number(value: Any) -> Any:
    (value,) = check_arraylike("arange", value)
    check(
        aval_of(value).shape == (),
        lambda: f"[arange] arguments must be scalars; got {aval_of(value)}. Fix: pass numbers.",
        ValueError,
    )
    if type(value) in PYTHON_SCALARS or isinstance(value, np.generic):
        return value
    return int(value) if dtypes.is_integer(aval_of(value).dtype) else float(value)


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Array: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Any: ...
@composite
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike | None = None,
    axis: int = 0,
    *,
    device: DeviceLike = None,
) -> Any:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``.

    Args:
        start, stop: scalars or arrays; arrays add a new axis at ``axis``.
        num: number of samples.
        endpoint: whether ``stop`` is the last sample.
        retstep: whether to return the spacing too.
        dtype: dtype of the result; the float dtype of the arguments by default. Integers are
            rounded down.
        axis: position of the new axis.
        device: the device of the result; the default device by default.

    Returns:
        An array of ``num`` numbers, or of size ``num`` along ``axis``; with ``retstep`` a pair with
        the spacing.

    Raises:
        ValueError: if ``num`` is negative.

    Example:
        >>> jnp.linspace(0, 1, 5)
        Array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    start, stop = check_arraylike("linspace", start, stop)
    count = as_index(known_index(num))
    check(
        count >= 0,
        lambda: f"[linspace] num must not be negative; got {num}. Fix: num=50.",
        ValueError,
    )
    work = inexact_dtype(aval_of(promote_dtypes(start, stop)[0]).dtype)
    out_dtype = work if dtype is None else user_dtype(dtype, "linspace")
    first, last = (convert(v, work) for v in (start, stop))
    sizes = np.broadcast_shapes(aval_of(first).shape, aval_of(last).shape)
    intervals = count - 1 if endpoint else count
    first, last = (_with_axis(v, len(sizes)) for v in (first, last))
    ratio = reshape(lax.iota(work, (count,)), (count,) + (1,) * len(sizes))
    ratio = lax.div(ratio, convert(max(intervals, 1), work))
    blend = lax.mul(first, lax.sub(convert(1, work), ratio))
    out = lax.add(blend, lax.mul(last, ratio))
    if endpoint and count > 1:
        final = lax.broadcast_in_dim(last, (1, *sizes), range(len(sizes) + 1))
        out = lax.concatenate([lax.slice_in_dim(out, 0, count - 1, axis=0), final], 0)
    if dtypes.is_integer(out_dtype):
        out = lax.floor(out)
    out = lax.convert_element_type(out, out_dtype)
    position = canonicalize_axis(axis, len(sizes) + 1, "linspace")
    if position:
        order = list(range(1, len(sizes) + 1))
        order.insert(position, 0)
        out = lax.transpose(out, order)
    out = placed("linspace", out, device)
    if not retstep:
        return out
    if intervals <= 0:  # no intervals: a scalar nan for all shapes, as in JAX
        return out, convert(np.nan, work)
    return out, reshape(lax.div(lax.sub(last, first), convert(intervals, work)), sizes)


def _with_axis(x: Any, rank: int) -> Any:
    """``x``, broadcast to ``rank`` axes, with a new first axis of size 1."""
    sizes = aval_of(x).shape
    full_sizes = (1,) * (rank + 1 - len(sizes)) + sizes
    return lax.broadcast_in_dim(x, full_sizes, range(rank + 1 - len(sizes), rank + 1))


# --- triangles -----------------------------------------------------------------------------


def _diagonals(rows: int, columns: int) -> tuple[Any, Any]:
    """Row and column indices, of shapes (rows, 1) and (1, columns)."""
    return lax.iota(np.int32, (rows, 1), 0), lax.iota(np.int32, (1, columns), 1)


@composite
def eye(
    N: int,
    M: int | None = None,
    k: int = 0,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike = None,
) -> Array:
    """Return an N by M matrix with ones on diagonal ``k``, and zeros elsewhere.

    Args:
        N: number of rows.
        M: number of columns; ``N`` by default.
        k: offset of the diagonal above the main diagonal; it may be traced.
        dtype: dtype of the result; the default float dtype by default.
        device: the device of the result; the default device by default.

    Returns:
        A matrix of shape (N, M).

    Raises:
        ValueError: if ``k`` is not an integer, or ``N`` or ``M`` is negative.

    Example:
        >>> jnp.eye(2, 3, k=1)
        Array([[0., 1., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    sizes = as_index(N), as_index(N if M is None else M)
    check(
        min(sizes) >= 0,
        lambda: f"[eye] N and M must not be negative; got {sizes[0]}, {sizes[1]}. Fix: N=0.",
        ValueError,
    )
    rows, columns = _diagonals(*sizes)
    mask = lax.eq(lax.add(rows, _offset("eye", k, sizes, ValueError)), columns)
    out_dtype = user_dtype(float if dtype is None else dtype, "eye")
    return placed("eye", lax.convert_element_type(mask, out_dtype), device)


@composite
def identity(n: int, dtype: DTypeLike | None = None) -> Array:
    """Return the n by n identity matrix.

    Args:
        n: number of rows and columns.
        dtype: dtype of the result; the default float dtype by default.

    Returns:
        A matrix of shape (n, n).

    Example:
        >>> jnp.identity(2, dtype=int)
        Array([[1, 0],
               [0, 1]], dtype=int32)
    """
    return eye(n, dtype=dtype)


@composite
def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Return an N by M matrix with ones on and below diagonal ``k``, and zeros above it.

    Args:
        N: number of rows.
        M: number of columns; ``N`` by default.
        k: offset of the diagonal above the main diagonal; it may be traced.
        dtype: dtype of the result; float32 by default, also with x64.

    Returns:
        A matrix of shape (N, M).

    Raises:
        TypeError: if ``k`` is not an integer.

    Example:
        >>> jnp.tri(2, 3)
        Array([[1., 0., 0.],
               [1., 1., 0.]], dtype=float32)
    """
    sizes = as_index(N), as_index(N if M is None else M)
    mask = _lower(*sizes, _offset("tri", k, sizes, TypeError))
    return lax.convert_element_type(mask, user_dtype(np.float32 if dtype is None else dtype, "tri"))


def _lower(rows: int, columns: int, k: Any) -> Any:
    row, column = _diagonals(rows, columns)
    return lax.ge(lax.add(row, k), column)


def _is_whole(dtype: Any) -> bool:
    return dtypes.is_integer(dtype) or dtypes.is_bool(dtype)


def _offset(name: str, k: Any, sizes: tuple[int, int], error: type[Exception]) -> Any:
    """The offset of a diagonal as int32, traced if ``k`` is; static ones are clamped to the matrix.

    Raises:
        TypeError, ValueError: as ``error`` specifies, if it is not an integer.
    """
    k = k if is_value(k) else known_index(k)
    check(
        is_value(k) and aval_of(k).shape == () and _is_whole(aval_of(k).dtype),
        lambda: f"[{name}] k must be an integer; got {k!r}. Fix: k=1.",
        error,
    )
    if hasattr(k, "aval"):
        return lax.convert_element_type(k, np.int32)
    return np.int32(max(-sizes[0], min(int(k), sizes[1])))  # all diagonals beyond are empty


@composite
def tril(m: ArrayLike, k: int = 0) -> Array:
    """Set elements above diagonal ``k`` of the last two axes to zero.

    Args:
        m: array of shape (..., rows, columns).
        k: offset of the diagonal above the main diagonal; it may be traced.

    Returns:
        An array of the shape and dtype of ``m``.

    Raises:
        TypeError: if ``k`` is not an integer.
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.tril(jnp.array([[1, 2], [3, 4]]))
        Array([[1, 0],
               [3, 4]], dtype=int32)
    """
    m, rows, columns = _matrix("tril", m)
    lower = _lower(rows, columns, _offset("tril", k, (rows, columns), TypeError))
    return where(lower, m, convert(0, aval_of(m).dtype))


@composite
def triu(m: ArrayLike, k: int = 0) -> Array:
    """Set elements below diagonal ``k`` of the last two axes to zero.

    Args:
        m: array of shape (..., rows, columns).
        k: offset of the diagonal above the main diagonal; it may be traced.

    Returns:
        An array of the shape and dtype of ``m``.

    Raises:
        TypeError: if ``k`` is not an integer.
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.triu(jnp.array([[1, 2], [3, 4]]), 1)
        Array([[0, 2],
               [0, 0]], dtype=int32)
    """
    m, rows, columns = _matrix("triu", m)
    below = _lower(rows, columns, _offset("triu", k, (rows, columns), TypeError) - np.int32(1))
    return where(below, convert(0, aval_of(m).dtype), m)


def _matrix(name: str, m: Any) -> tuple[Any, int, int]:
    """The operand, and the sizes of its last two axes."""
    (m,) = check_arraylike(name, m)
    aval = aval_of(m)
    check(
        aval.ndim >= 2,
        lambda: f"[{name}] the array must have two axes; got {aval}. Fix: jnp.tri for a mask.",
        ValueError,
    )
    return m, aval.shape[-2], aval.shape[-1]


@composite
def diag(v: ArrayLike, k: int = 0) -> Array:
    """Return a matrix with the vector ``v`` on diagonal ``k``, or that diagonal of a matrix.

    Args:
        v: vector of n elements, or a matrix.
        k: offset of the diagonal above the main diagonal, an int.

    Returns:
        A matrix of n + abs(k) rows and columns, or a vector.

    Raises:
        ValueError: if the rank is not supported.

    Example:
        >>> jnp.diag(jnp.array([1, 2]))
        Array([[1, 0],
               [0, 2]], dtype=int32)
        >>> jnp.diag(jnp.array([[1, 2], [3, 4]]))
        Array([1, 4], dtype=int32)
    """
    (v,) = check_arraylike("diag", v)
    k = as_index(k)
    aval = aval_of(v)
    check(
        aval.ndim in (1, 2),
        lambda: f"[diag] the array must be a vector or a matrix; got {aval}. Fix: index it first.",
        ValueError,
    )
    if aval.ndim == 1:
        size = aval.shape[0] + abs(k)
        padded = lax.pad(v, convert(0, aval.dtype), [(max(k, 0), max(-k, 0), 0)])
        return where(eye(size, k=k, dtype=bool), padded[None, :], convert(0, aval.dtype))
    rows, columns = aval.shape
    first_row, first_column = min(max(-k, 0), rows), min(max(k, 0), columns)
    count = max(0, min(rows - first_row, columns - first_column))
    indices = (np.arange(count) + first_row) * columns + np.arange(count) + first_column
    return lax.row_gather(reshape(v, (rows * columns,)), indices.astype(np.int32), "clip")


@composite
def diagflat(v: ArrayLike, k: int = 0) -> Array:
    """Return a matrix with the flattened elements of ``v`` on diagonal ``k``.

    Args:
        v: array of n elements.
        k: offset of the diagonal above the main diagonal, an int.

    Returns:
        A matrix of n + abs(k) rows and columns, zero elsewhere.

    Example:
        >>> jnp.diagflat(jnp.array([[1], [2]]), 1)
        Array([[0, 1, 0],
               [0, 0, 2],
               [0, 0, 0]], dtype=int32)
    """
    (v,) = check_arraylike("diagflat", v)
    return diag(reshape(v, (aval_of(v).size,)), as_index(k))
