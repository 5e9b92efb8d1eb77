"""Sums of exponentials, without overflow."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.util import canonicalize_axes
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import convert, promote_args_inexact
from gpuflow.numpy.reductions import keep_dims
from gpuflow.numpy.shaping import Axes
from gpuflow.ops.selection import where as select_where


def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False,
    where: Any = None,
) -> Any:  # fmt: skip
    """``log(sum(exp(a)))`` without overflow.

    Args:
        a: real array.
        axis: an axis, a tuple of axes, or None for all.
        b: weights of the exponentials; they may be negative.
        keepdims: keep the axes, with size 1.
        return_sign: whether to return (log of the absolute sum, its sign); without it, a negative
            sum gives nan.
        where: mask of the elements to sum.
    """
    if b is None:
        (a,) = promote_args_inexact("logsumexp", a)
    else:
        a, b = promote_args_inexact("logsumexp", a, b)
        a = jnp.where(jnp.not_equal(b, 0), a, -np.inf)
    shape = aval_of(a).shape
    axes = canonicalize_axes(axis, len(shape), "logsumexp")
    top = jnp.max(a, axes, initial=-np.inf, where=where)
    top = lax.stop_gradient(select_where(lax.is_finite(top), top, convert(0, aval_of(a).dtype)))
    scaled = lax.exp(lax.sub(a, keep_dims(top, shape, axes)))
    if b is not None:
        scaled = jnp.multiply(b, scaled)
    total = jnp.sum(scaled, axes, where=where)
    sign = lax.sign(total)
    out = lax.add(lax.log(lax.abs(total) if b is not None else total), top)
    if keepdims:
        out, sign = keep_dims(out, shape, axes), keep_dims(sign, shape, axes)
    if return_sign:
        return out, sign
    return out if b is None else jnp.where(jnp.less(sign, 0), np.nan, out)
