"""Making arrays: from data, constants, ranges and triangles."""

from __future__ import annotations

import math
from operator import index as as_index
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.numpy.logic import where
from gpuflow.numpy.promotion import (
    PYTHON_SCALARS,
    check_arraylike,
    check_fits,
    convert,
    inexact_dtype,
    promote_dtypes,
    user_dtype,
)
from gpuflow.numpy.shaping import as_shape, expand_dims, reshape, stack
from gpuflow.ops.convert import convert_element_type_p
from gpuflow.runtime.array import Array, from_numpy


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: str | None = "K", ndmin: int = 0
) -> Any:
    """An array from numbers, nested lists, or another array.

    Args:
        object: a number, nested sequences of numbers and arrays, or an array of any kind.
        dtype: by default that of the data, narrowed to 32 bits unless x64 is enabled.
        copy: whether the result must not share memory with ``object``.
        order: ``"K"`` or ``"C"``; arrays are row-major.
        ndmin: the least number of axes; new ones come first.

    Returns:
        An Array; a Python number gives a weak type.

    Raises:
        TypeError: data that are no numbers.
        OverflowError: a Python int that the dtype does not hold.
    """
    check(
        order in ("K", "C", "A", None),
        lambda: f"[array] order must be 'K' or 'C': arrays are row-major; got {order!r}. Fix: 'C'.",
        NotImplementedError,
    )
    wanted = None if dtype is None else user_dtype(dtype, "array")
    out = _make(object, wanted)
    if copy and out is object:
        out = lax.copy(out)
    missing = ndmin - aval_of(out).ndim
    return expand_dims(out, tuple(range(missing))) if missing > 0 else out


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None
) -> Any:
    """``a`` as an array; arrays of that dtype are returned as they are."""
    return array(a, dtype, bool(copy), order)


def _make(value: Any, wanted: Any) -> Any:
    if isinstance(value, (Array, Tracer)):
        return value if wanted is None else convert(value, wanted)
    if type(value) in PYTHON_SCALARS:
        aval = aval_of(value)
        if type(value) is int:
            check_fits(value, aval.dtype if wanted is None else wanted)
        if wanted is not None:
            aval = ShapedArray((), wanted)
        return from_numpy(_host_convert(np.asarray(value), aval.dtype), aval)
    if hasattr(value, "__jax_array__"):
        return _make(value.__jax_array__(), wanted)
    if isinstance(value, (list, tuple)):
        return _from_sequence(value, wanted)
    check(
        value is not None,
        lambda: "[array] the data must be numbers; got None. Fix: use jnp.nan, or leave it out.",
    )
    host = np.asarray(value)
    aval = ShapedArray(host.shape, aval_of(host).dtype if wanted is None else wanted)
    return from_numpy(_host_convert(host, aval.dtype), aval)


def _host_convert(host: np.ndarray, dtype: Any) -> np.ndarray:
    """NumPy data in another dtype, under the rules of astype on arrays."""
    if host.dtype == dtype:
        return host
    assert convert_element_type_p.impl is not None
    with np.errstate(all="ignore"):
        return convert_element_type_p.impl(np, host, new_dtype=dtype, weak_type=False)


def _from_sequence(value: Any, wanted: Any) -> Any:
    leaves = _leaves(value)
    if any(isinstance(leaf, (Array, Tracer)) for leaf in leaves):
        return _stacked(value, wanted)
    for leaf in leaves:
        check(
            is_value(leaf) or hasattr(leaf, "__array__"),
            lambda leaf=leaf: (
                f"[array] the data must be numbers; got {leaf!r} of type {type(leaf).__name__}. "
                "Fix: leave it out, or use jnp.nan."
            ),
        )
    host = np.array(value)
    if wanted is None:
        wanted = dtypes.canonicalize(host.dtype)
    if host.dtype.kind in "iu" and host.size and dtypes.is_integer(wanted):
        for extreme in (int(host.min()), int(host.max())):
            check_fits(extreme, wanted)
    return from_numpy(_host_convert(host, wanted), ShapedArray(host.shape, wanted))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _stacked(value: Any, wanted: Any) -> Any:
    """Nested lists with arrays inside: their rows, stacked in one dtype."""
    leaves, structure = tree.flatten(_as_lists(value))
    promoted = promote_dtypes(*leaves)
    out = _stack_rows(tree.unflatten(structure, promoted))
    return out if wanted is None else convert(out, wanted)


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _stack_rows(value: Any) -> Any:
    return stack([_stack_rows(item) for item in value]) if isinstance(value, list) else value


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Any:
    """Convert elements; floats become integers by truncation, complex numbers lose a part."""
    del device
    check_arraylike("astype", x)
    wanted = dtypes.default_float() if dtype is None else user_dtype(dtype, "astype")
    out = lax.convert_element_type(x, wanted)
    return lax.copy(out) if copy and out is x else out


def copy(a: Any) -> Any:
    """A copy of an array, in memory of its own."""
    return array(a, copy=True)


# --- constants -----------------------------------------------------------------------------


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of ``shape`` filled with a number, or with an array that broadcasts."""
    check_arraylike("full", fill_value)
    if dtype is not None:
        fill_value = convert(fill_value, user_dtype(dtype, "full"))
    sizes, own = as_shape("full", shape), aval_of(fill_value).shape
    return lax.broadcast_in_dim(fill_value, sizes, range(len(sizes) - len(own), len(sizes)))


def zeros(shape: Any, dtype: Any = None) -> Any:
    """An array of zeros, by default float32."""
    return full(shape, 0, float if dtype is None else dtype)


def ones(shape: Any, dtype: Any = None) -> Any:
    """An array of ones, by default float32."""
    return full(shape, 1, float if dtype is None else dtype)


def empty(shape: Any, dtype: Any = None) -> Any:
    """An array of ``shape``; its elements are 0."""
    return zeros(shape, dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """An array like ``a`` filled with a number."""
    aval = _aval_like("full_like", a)
    sizes = aval.shape if shape is None else as_shape("full_like", shape)
    if dtype is not None:
        return full(sizes, fill_value, dtype)
    check_arraylike("full_like", fill_value)
    weak = aval.weak_type and aval.dtype.kind in "ifc"
    value = fill_value
    if weak and type(value) in PYTHON_SCALARS:
        value = aval.dtype.type(value).item()
    return full(sizes, convert(value, aval.dtype, weak))


def _aval_like(name: str, a: Any) -> ShapedArray:
    if hasattr(a, "shape") and hasattr(a, "dtype") and not is_value(a):
        return ShapedArray(a.shape, dtypes.canonicalize(a.dtype))
    check_arraylike(name, a)
    return aval_of(a)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Zeros with the shape and dtype of ``a``."""
    return full_like(a, 0, dtype, shape)


def ones_like(a: Any, dtype: Any = None, shape: Any = None) -> Any:
    """Ones with the shape and dtype of ``a``."""
    return full_like(a, 1, dtype, shape)


def empty_like(a: Any, dtype: Any = None, shape: Any = None) -> Any:
    """An array with the shape and dtype of ``a``; its elements are 0."""
    return zeros_like(a, dtype, shape)


# --- ranges --------------------------------------------------------------------------------


def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    """Evenly spaced numbers in the half-open interval [start, stop).

    Args:
        start: first number; the only argument is ``stop``.
        stop: end, excluded.
        step: distance, by default 1.
        dtype: by default that of the arguments.

    Raises:
        ConcretizationTypeError: traced arguments; the length must be known.
    """
    first, last = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    given = [_known_number(v) for v in (first, last, step)]
    check(
        given[2] != 0,
        lambda: "[arange] step must not be 0; got 0. Fix: step=1.",
        ZeroDivisionError,
    )
    if dtype is None:
        dtype = dtypes.promote(*[(aval_of(v).dtype, aval_of(v).weak_type) for v in given])[0]
    else:
        dtype = user_dtype(dtype, "arange")
    count = max(0, math.ceil((given[1] - given[0]) / given[2]))
    if all(isinstance(v, (int, np.integer)) for v in given) and not dtypes.is_bool(dtype):
        numbers = lax.iota(dtype, (count,))
        if given[2] != 1:
            numbers = lax.mul(numbers, convert(given[2], dtype))
        return numbers if given[0] == 0 else lax.add(numbers, convert(given[0], dtype))
    host = np.arange(*given, dtype=np.float64 if dtypes.is_floating(dtype) else dtype)
    return from_numpy(host, ShapedArray(host.shape, dtype))


def _known_number(value: Any) -> Any:
    check_arraylike("arange", value)
    check(
        aval_of(value).shape == (),
        lambda: f"[arange] arguments must be scalars; got {aval_of(value)}. Fix: pass numbers.",
        ValueError,
    )
    if type(value) in PYTHON_SCALARS or isinstance(value, np.generic):
        return value
    return int(value) if dtypes.is_integer(aval_of(value).dtype) else float(value)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False,
    dtype: Any = None, axis: int = 0,
) -> Any:  # fmt: skip
    """``num`` evenly spaced numbers from ``start`` to ``stop``.

    Args:
        start, stop: numbers or arrays; arrays give a new axis at ``axis``.
        num: how many.
        endpoint: whether ``stop`` is the last one.
        retstep: whether to return the distance too.
        dtype: by default the float dtype of the arguments; integers round down.
    """
    check_arraylike("linspace", start, stop)
    count = as_index(num)
    check(
        count >= 0,
        lambda: f"[linspace] num must not be negative; got {num}. Fix: num=50.",
        ValueError,
    )
    found = promote_dtypes(start, stop, 0.0)[0]
    out_dtype = inexact_dtype(aval_of(found).dtype) if dtype is None else user_dtype(dtype, "")
    work = inexact_dtype(aval_of(found).dtype)
    first, last = (convert(v, work) for v in (start, stop))
    sizes = np.broadcast_shapes(aval_of(first).shape, aval_of(last).shape)
    parts = count - 1 if endpoint else count
    first, last = (_with_axis(v, len(sizes)) for v in (first, last))
    ratio = reshape(lax.iota(work, (count,)), (count,) + (1,) * len(sizes))
    ratio = lax.div(ratio, convert(max(parts, 1), work))
    blend = lax.mul(first, lax.sub(convert(1, work), ratio))
    out = lax.add(blend, lax.mul(last, ratio))
    if endpoint and count > 1:
        final = lax.broadcast_in_dim(last, (1, *sizes), range(len(sizes) + 1))
        out = lax.concatenate([lax.slice_in_dim(out, 0, count - 1, axis=0), final], 0)
    if dtypes.is_integer(out_dtype):
        out = lax.floor(out)
    out = lax.convert_element_type(out, out_dtype)
    if axis:
        order = list(range(1, len(sizes) + 1))
        order.insert(axis % (len(sizes) + 1), 0)
        out = lax.transpose(out, order)
    step = lax.div(lax.sub(last, first), convert(parts or np.nan, work))
    return (out, reshape(step, sizes)) if retstep else out


def _with_axis(x: Any, rank: int) -> Any:
    """``x`` of ``rank`` axes behind a new axis of size 1."""
    sizes = aval_of(x).shape
    full_sizes = (1,) * (rank + 1 - len(sizes)) + sizes
    return lax.broadcast_in_dim(x, full_sizes, range(rank + 1 - len(sizes), rank + 1))


# --- triangles -----------------------------------------------------------------------------


def _diagonals(rows: int, columns: int) -> tuple[Any, Any]:
    """Row and column numbers, of shapes (rows, 1) and (1, columns)."""
    return lax.iota(np.int32, (rows, 1), 0), lax.iota(np.int32, (1, columns), 1)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """Ones on diagonal ``k`` of an N by M matrix, zeros elsewhere."""
    rows, columns = _diagonals(as_index(N), as_index(N if M is None else M))
    mask = lax.eq(lax.add(rows, np.int32(k)), columns)
    return lax.convert_element_type(mask, user_dtype(float if dtype is None else dtype, "eye"))


def identity(n: int, dtype: Any = None) -> Any:
    """The n by n identity matrix."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:
    """Ones on and below diagonal ``k`` of an N by M matrix."""
    mask = _lower(as_index(N), as_index(N if M is None else M), k)
    return lax.convert_element_type(mask, user_dtype(float if dtype is None else dtype, "tri"))


def _lower(rows: int, columns: int, k: int) -> Any:
    row, column = _diagonals(rows, columns)
    return lax.ge(lax.add(row, np.int32(k)), column)


def tril(m: Any, k: int = 0) -> Any:
    """The last two axes with zeros above diagonal ``k``."""
    sizes = _matrix_sizes("tril", m)
    return where(_lower(*sizes, k), m, convert(0, aval_of(m).dtype))


def triu(m: Any, k: int = 0) -> Any:
    """The last two axes with zeros below diagonal ``k``."""
    sizes = _matrix_sizes("triu", m)
    return where(_lower(*sizes, k - 1), convert(0, aval_of(m).dtype), m)


def _matrix_sizes(name: str, m: Any) -> tuple[int, int]:
    check_arraylike(name, m)
    aval = aval_of(m)
    check(
        aval.ndim >= 2,
        lambda: f"[{name}] the array must have two axes; got {aval}. Fix: jnp.tri for a mask.",
        ValueError,
    )
    return aval.shape[-2], aval.shape[-1]


def diag(v: Any, k: int = 0) -> Any:
    """A matrix with the vector ``v`` on diagonal ``k``, or that diagonal of a matrix."""
    check_arraylike("diag", v)
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
    first_row, first_column = max(-k, 0), max(k, 0)
    count = max(0, min(rows - first_row, columns - first_column))
    places = (np.arange(count) + first_row) * columns + np.arange(count) + first_column
    return lax.row_gather(reshape(v, (rows * columns,)), places.astype(np.int32), "clip")
