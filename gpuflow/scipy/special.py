"""Special functions."""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.names import missing_name, public_names
from gpuflow.base.util import canonicalize_axes
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import convert, promote_args_inexact
from gpuflow.numpy.reductions import keep_dims
from gpuflow.numpy.shaping import Axes
from gpuflow.numpy.ufuncs import make_unary
from gpuflow.ops.selection import where as select_where

expit = make_unary("expit", lax.logistic, "``1 / (1 + exp(-x))``.", promote_args_inexact)
erf = make_unary("erf", lax.erf, "The error function.", promote_args_inexact)
erfc = make_unary("erfc", lax.erfc, "``1 - erf(x)``, exact for large x.", promote_args_inexact)
erfinv = make_unary("erfinv", lax.erf_inv, "The inverse error function.", promote_args_inexact)


def logit(x: Any, /) -> Any:
    """``log(x / (1 - x))``, the inverse of ``expit``."""
    (x,) = promote_args_inexact("logit", x)
    return lax.sub(lax.log(x), lax.log1p(lax.neg(x)))


def xlogy(x: Any, y: Any, /) -> Any:
    """``x * log(y)``, and 0 where ``x`` is 0."""
    x, y = promote_args_inexact("xlogy", x, y)
    zero = convert(0, aval_of(x).dtype)
    is_zero = lax.eq(x, zero)
    # The inner choice keeps the derivative finite where the outer one drops the product.
    return select_where(is_zero, zero, lax.mul(x, lax.log(select_where(is_zero, 1, y))))


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


__getattr__ = missing_name(
    __name__,
    "special",
    [*public_names(globals(), __name__), "erf", "erfc", "erfinv", "expit"],
)
