"""Sums, means, extremes and tests over axes."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.util import canonicalize_axes, canonicalize_axis
from gpuflow.core.aval import aval_of
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.logic import where as jnp_where
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    check_arraylike,
    convert,
    promote_args,
    promote_dtypes_inexact,
    user_dtype,
)
from gpuflow.numpy.shaping import Axes, broadcast_to, ravel, reshape
from gpuflow.numpy.ufuncs import no_out


def keep_dims(out: Any, shape: Sequence[int], axes: Sequence[int]) -> Any:
    """The result of a reduction of ``shape`` over ``axes``, with those axes at size 1."""
    kept = [d for d in range(len(shape)) if d not in axes]
    sizes = [size if d in kept else 1 for d, size in enumerate(shape)]
    return lax.broadcast_in_dim(out, sizes, kept)


def _prepare(name: str, a: Any, axis: Axes, out: Any, where: Any, fill: Any) -> Any:
    """The operand with elements outside of ``where`` replaced, and the axes."""
    no_out(name, out)
    check_arraylike(name, a)
    if where is not None:
        check_arraylike(name, where)
        a = broadcast_to(a, broadcast_shapes(aval_of(a).shape, aval_of(where).shape, name=name))
        a = jnp_where(where, a, convert(fill, aval_of(a).dtype))
    return a, canonicalize_axes(axis, aval_of(a).ndim, name)


def _finish(out: Any, shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> Any:
    return keep_dims(out, shape, axes) if keepdims and axes else out


def _sum_dtype(name: str, dtype: Any, wanted: Any) -> Any:
    """The dtype of sums and products: small integers and bools become default ones."""
    if wanted is not None:
        return user_dtype(wanted, name)
    if dtype.kind == "u":
        default = dtypes.canonicalize(np.uint64)
        return default if dtype.itemsize < default.itemsize else dtype
    if dtypes.is_bool(dtype) or dtypes.is_integer(dtype):
        default = dtypes.default_int()
        return default if dtype.itemsize < default.itemsize else dtype
    return dtype


def sum(
    a: Any, axis: Axes = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Any:  # fmt: skip
    """Sum over axes.

    Args:
        a: array; bools and small integers are added in the default integer dtype.
        axis: an axis, a tuple of axes, or None for all.
        dtype: dtype to add in.
        keepdims: keep the axes, with size 1.
        initial: number to start from.
        where: mask that broadcasts with ``a``; other elements count as 0.
    """
    return _accumulate("sum", lax.reduce_sum, 0, a, axis, dtype, out, keepdims, initial, where)


def prod(
    a: Any, axis: Axes = None, dtype: Any = None, out: None = None, keepdims: bool = False,
    initial: Any = None, where: Any = None,
) -> Any:  # fmt: skip
    """Product over axes; arguments as in ``sum``."""
    return _accumulate("prod", lax.reduce_prod, 1, a, axis, dtype, out, keepdims, initial, where)


def _accumulate(
    name: str, op: Callable[..., Any], neutral: int, a: Any, axis: Axes, dtype: Any, out: Any,
    keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    a, axes = _prepare(name, a, axis, out, where, neutral)
    aval = aval_of(a)
    result = op(convert(a, _sum_dtype(name, aval.dtype, dtype)), axes)
    if initial is not None:
        combine = lax.mul if neutral else lax.add
        result = combine(result, convert(initial, aval_of(result).dtype))
    return _finish(result, aval.shape, axes, keepdims)


# --- extremes ------------------------------------------------------------------------------


def _extreme(
    name: str, op: Callable[..., Any], pair: Callable[..., Any], a: Any, axis: Axes, out: Any,
    keepdims: bool, initial: Any, where: Any,
) -> Any:  # fmt: skip
    check(
        where is None or initial is not None,
        lambda: f"[{name}] where= needs initial=, as there is no neutral element; got none. "
        f"Fix: jnp.{name}(x, where=mask, initial=...).",
        ValueError,
    )
    a, axes = _prepare(name, a, axis, out, where, initial)
    sizes = aval_of(a).shape
    check(
        initial is not None or builtins.all(sizes[d] for d in axes),
        lambda: f"[{name}] an empty array has no {name}; got shape {sizes} and axes {axes}. "
        "Fix: pass initial=.",
        ValueError,
    )
    result = op(a, axes)
    if initial is not None:
        result = pair(*promote_args(name, initial, result))
    return _finish(result, sizes, axes, keepdims)


def max(
    a: Any, axis: Axes = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The largest element over axes; nan wins.

    Raises:
        ValueError: no elements, or a mask, without ``initial``.
    """
    return _extreme("max", lax.reduce_max, lax.max, a, axis, out, keepdims, initial, where)


def min(
    a: Any, axis: Axes = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The smallest element over axes; nan wins.

    Raises:
        ValueError: no elements, or a mask, without ``initial``.
    """
    return _extreme("min", lax.reduce_min, lax.min, a, axis, out, keepdims, initial, where)


amax, amin = max, min


def ptp(a: Any, axis: Axes = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest minus the smallest element."""
    return lax.sub(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


def argmax(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """The position of the first largest element, along ``axis`` or in the raveled array."""
    return _position("argmax", lax.argmax, a, axis, out, keepdims)


def argmin(a: Any, axis: int | None = None, out: None = None, keepdims: bool = False) -> Any:
    """The position of the first smallest element, along ``axis`` or in the raveled array."""
    return _position("argmin", lax.argmin, a, axis, out, keepdims)


def _position(
    name: str, op: Callable[..., Any], a: Any, axis: int | None, out: Any, keepdims: bool
) -> Any:
    no_out(name, out)
    check_arraylike(name, a)
    sizes = aval_of(a).shape
    if axis is None:
        found = op(ravel(a), 0, dtypes.default_int())
        return reshape(found, (1,) * len(sizes)) if keepdims else found
    place = canonicalize_axis(axis, len(sizes), name)
    check(
        sizes[place] > 0,
        lambda: f"[{name}] the axis must not be empty; got shape {sizes}, axis {place}. "
        "Fix: choose another axis.",
        ValueError,
    )
    found = op(a, place, dtypes.default_int())
    return _finish(found, sizes, (place,), keepdims)


# --- tests ---------------------------------------------------------------------------------


def all(
    a: Any, axis: Axes = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether all elements are nonzero."""
    return _test("all", lax.reduce_and, True, a, axis, out, keepdims, where)


def any(
    a: Any, axis: Axes = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether some element is nonzero."""
    return _test("any", lax.reduce_or, False, a, axis, out, keepdims, where)


def _test(
    name: str, op: Callable[..., Any], neutral: bool, a: Any, axis: Axes, out: Any,
    keepdims: bool, where: Any,
) -> Any:  # fmt: skip
    check_arraylike(name, a)
    a, axes = _prepare(name, as_bool(a), axis, out, where, neutral)
    return _finish(op(a, axes), aval_of(a).shape, axes, keepdims)


def count_nonzero(a: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """How many elements are nonzero."""
    check_arraylike("count_nonzero", a)
    return sum(as_bool(a), axis, keepdims=keepdims)


# --- means ---------------------------------------------------------------------------------


def _working_dtype(dtype: Any) -> Any:
    """16-bit floats are averaged in float32."""
    small = dtypes.is_floating(dtype) and dtype.itemsize <= 2
    return np.dtype(np.float32) if small else dtype


def _count(shape: Sequence[int], axes: Sequence[int], where: Any, keepdims: bool) -> Any:
    if where is None:
        return float(math.prod(shape[d] for d in axes))
    return sum(broadcast_to(as_bool(where), shape), tuple(axes), keepdims=keepdims)


def mean(
    a: Any, axis: Axes = None, dtype: Any = None, out: None = None, keepdims: bool = False, *,
    where: Any = None,
) -> Any:  # fmt: skip
    """Mean over axes; of integers in the default float dtype, of 16-bit floats via float32."""
    check_arraylike("mean", a)
    a, axes = _prepare("mean", a, axis, out, where, 0)
    shape = aval_of(a).shape
    wanted = user_dtype(dtype, "mean") if dtype is not None else _float_type(a)
    work = _working_dtype(wanted)
    total = _finish(lax.reduce_sum(convert(a, work), axes), shape, axes, keepdims)
    count = _count(shape, axes, where, keepdims)
    return convert(lax.div(total, convert(count, work)), wanted)


def _float_type(a: Any) -> Any:
    return aval_of(promote_dtypes_inexact(a)[0]).dtype


def var(
    a: Any, axis: Axes = None, dtype: Any = None, out: None = None, ddof: int = 0,
    keepdims: bool = False, *, where: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    """Mean squared distance from the mean, over axes.

    Args:
        a: array; of complex numbers the result is real.
        axis: an axis, a tuple of axes, or None for all.
        dtype: dtype of the result.
        ddof: taken from the number of elements before dividing; also called ``correction``.
        keepdims: keep the axes, with size 1.
        where: mask that broadcasts with ``a``.

    Returns:
        The variance; nan where the number of elements does not exceed ``ddof``.
    """
    no_out("var", out)
    check_arraylike("var", a)
    wanted = user_dtype(dtype, "var") if dtype is not None else _real_type(_float_type(a))
    a = convert(a, _working_dtype(_float_type(a)))
    axes = canonicalize_axes(axis, aval_of(a).ndim, "var")
    distance = lax.sub(a, mean(a, axes, keepdims=True, where=where))
    squared = _squared_modulus(distance)
    total = sum(squared, axes, keepdims=keepdims, where=where)
    work = aval_of(total).dtype
    less = ddof if correction is None else correction
    if where is not None:
        count = convert(_count(aval_of(a).shape, axes, where, keepdims), work)
        count = lax.sub(count, convert(less, work))
        out_ = lax.div(total, count)
        return convert(jnp_where(count > 0, out_, np.nan), wanted)
    count = _count(aval_of(a).shape, axes, None, keepdims) - less
    return convert(lax.div(total, convert(count if count > 0 else np.nan, work)), wanted)


def std(
    a: Any, axis: Axes = None, dtype: Any = None, out: None = None, ddof: int = 0,
    keepdims: bool = False, *, where: Any = None, correction: Any = None,
) -> Any:  # fmt: skip
    """The square root of ``var``; arguments as there."""
    no_out("std", out)
    check_arraylike("std", a)
    wanted = user_dtype(dtype, "std") if dtype is not None else _real_type(_float_type(a))
    squared = var(
        a, axis, _working_dtype(wanted), None, ddof, keepdims, where=where, correction=correction
    )
    return convert(lax.sqrt(squared), wanted)


def _real_type(dtype: Any) -> Any:
    return np.zeros(0, dtype).real.dtype if dtypes.is_complex(dtype) else dtype


def _squared_modulus(x: Any) -> Any:
    if dtypes.is_complex(aval_of(x).dtype):
        return lax.add(lax.square(lax.real(x)), lax.square(lax.imag(x)))
    return lax.square(x)
