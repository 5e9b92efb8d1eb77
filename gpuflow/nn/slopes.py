"""Derivatives of activations that stay finite for huge and infinite operands.

Tests: tests/ops/test_special_points.py, tests/nn/test_nn_values.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import jvp
from gpuflow.base import dtypes
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import convert
from gpuflow.ops.special.gelu import gelu_limited, gelu_share, gelu_share_slope, gelu_slope

# The formula of celu loses digits nearer to 0; this many series terms give 53 bits there.
_NEAR, _TERMS = 0.1, 11


def limited(x: Any, bound: float) -> Any:
    """``x`` in ``[-bound, bound]``."""
    dtype = aval_of(x).dtype
    limit = convert(min(bound, float(jnp.finfo(dtype).max)), dtype)
    return lax.clamp(lax.neg(limit), x, limit)


def constant_slope_beyond(bound: float) -> Callable[..., Any]:
    """Decorator: compute the derivative of a function at operands clamped to ``bound``.

    Beyond, it is 0 or 1 in every dtype. Its formula would give infinity times 0 there, if operands
    or their squares or cubes are infinite.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def at_limited(x: Any, t: Any) -> Any:
            dtype = aval_of(x).dtype
            if dtypes.is_complex(dtype):
                return jvp(function, (x,), (t,))[1]
            ones = lax.full_like(x, 1)
            return lax.mul(t, jvp(function, (limited(x, bound),), (ones,))[1])

        rule = custom_jvp(function)
        rule.defjvp(lambda primals, tangents: (rule(*primals), at_limited(*primals, *tangents)))

        def call(x: Any) -> Any:
            return rule(x) if dtypes.is_inexact(aval_of(x).dtype) else function(x)

        return call

    return decorate


def _exponent(x: Any, alpha: Any) -> Any:
    return jnp.divide(jnp.minimum(x, 0.0), alpha)


def celu_bent(x: Any, alpha: Any) -> Any:
    """``exp(min(x, 0) / alpha) - 1``."""
    return jnp.expm1(_exponent(x, alpha))


def celu_slope(t: Any, out: Any, x: Any, alpha: Any) -> Any:
    """``exp(min(x, 0) / alpha)``."""
    del out
    return jnp.multiply(t, jnp.exp(_exponent(x, alpha)))


def celu_slope_by_alpha(t: Any, out: Any, x: Any, alpha: Any) -> Any:
    """``exp(q) (1 - q) - 1`` with ``q = min(x, 0) / alpha``, which is -1 at -inf.

    Near 0, where the terms cancel, its series: the sum of ``(1 - k) / k! q**k``.
    """
    del out
    quotient = _exponent(x, alpha)
    power = jnp.exp(quotient)
    finite = jnp.where(jnp.equal(power, 0), 0, quotient)
    difference = jnp.subtract(jnp.expm1(quotient), jnp.multiply(finite, power))
    near = jnp.less(jnp.abs(quotient), _NEAR)
    small = jnp.where(near, quotient, 0)
    series = 0.0
    for k in range(_TERMS, 1, -1):
        series = jnp.add(jnp.multiply(small, series), (1 - k) / math.factorial(k))
    series = jnp.multiply(jnp.multiply(small, small), series)
    return jnp.multiply(t, jnp.where(near, series, difference))


def squareplus_slope(t: Any, out: Any, x: Any, b: Any) -> Any:
    """``(1 + x / root) / 2``; for negative ``x``, ``b / (2 root (root - x))``."""
    del out
    far = jnp.isinf(x)
    near, _, scaled_b, root = _scaled_root(jnp.where(far, 1, x), b)
    rises, zero = jnp.greater(near, 0), jnp.equal(root, 0)
    root = jnp.where(zero, 1, root)
    upper = jnp.add(1, jnp.divide(near, root))
    gap = jnp.where(jnp.logical_or(rises, zero), 1, jnp.subtract(root, near))
    lower = jnp.divide(scaled_b, jnp.multiply(root, gap))
    slope = jnp.where(rises, upper, jnp.where(zero, 1, lower))
    return jnp.multiply(t, jnp.where(far, jnp.greater(x, 0), jnp.multiply(0.5, slope)))


def squareplus_slope_by_b(t: Any, out: Any, x: Any, b: Any) -> Any:
    """``1 / (4 root)``."""
    del out
    far = jnp.isinf(x)
    _, size, _, root = _scaled_root(jnp.where(far, 1, x), b)
    slope = jnp.divide(1, jnp.multiply(4, jnp.multiply(size, root)))
    return jnp.multiply(t, jnp.where(far, 0, slope))


def _scaled_root(x: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """``x / size``, ``size``, ``b / size**2`` and ``root / size``, which do not overflow."""
    size = jnp.maximum(jnp.abs(x), 1)
    scaled_x, scaled_b = jnp.divide(x, size), jnp.divide(jnp.divide(b, size), size)
    return scaled_x, size, scaled_b, jnp.sqrt(jnp.add(jnp.square(scaled_x), scaled_b))


@custom_jvp
def gelu_by_tanh(x: Any) -> Any:
    """``x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``."""
    return lax.mul(x, _gelu_share(x))


@gelu_by_tanh.defjvp
def _gelu_by_tanh_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    share = _gelu_share(x)
    return lax.mul(x, share), lax.mul(t, gelu_slope(x, share))


_gelu_share = custom_jvp(gelu_share)


@_gelu_share.defjvp
def _gelu_share_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    share = _gelu_share(x)
    return share, lax.mul(t, gelu_share_slope(gelu_limited(x), share))
