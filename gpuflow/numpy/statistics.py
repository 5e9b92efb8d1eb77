"""Means, variances and standard deviations over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.util import canonicalize_axes
from gpuflow.core.aval import aval_of
from gpuflow.numpy.logic import as_bool
from gpuflow.numpy.logic import where as jnp_where
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    no_out,
    promote_dtypes_inexact,
    user_dtype,
)
from gpuflow.numpy.reductions import finish, prepare, sum
from gpuflow.numpy.shaping import Axes, broadcast_to

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
    a, axes = prepare("mean", a, axis, out, where, 0)
    shape = aval_of(a).shape
    wanted = user_dtype(dtype, "mean") if dtype is not None else _float_type(a)
    work = _working_dtype(wanted)
    total = finish(lax.reduce_sum(convert(a, work), axes), shape, axes, keepdims)
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
