"""Functions for neural networks: activations, softmax, normalization, one-hot vectors."""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.names import missing_name, public_names
from gpuflow.base.util import canonicalize_axis
from gpuflow.control.custom_rules import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.numpy.promotion import check_arraylike, convert, promote_args_inexact, user_dtype
from gpuflow.numpy.shaping import Axes
from gpuflow.ops.selection import where as select_where
from gpuflow.scipy.special import logsumexp as logsumexp

# --- activations ---------------------------------------------------------------------------


@custom_jvp
def relu(x: Any) -> Any:
    """``max(x, 0)``, with derivative 0 at 0."""
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return relu(x), select_where(jnp.greater(x, 0), t, convert(0, aval_of(t).dtype))


@custom_jvp
def relu6(x: Any) -> Any:
    """``min(max(x, 0), 6)``."""
    return jnp.minimum(jnp.maximum(x, 0), 6.0)


@relu6.defjvp
def _relu6_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    inside = lax.bitwise_and(jnp.greater(x, 0), jnp.less(x, 6))
    return relu6(x), select_where(inside, t, convert(0, aval_of(t).dtype))


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return lax.logistic(*promote_args_inexact("sigmoid", x))


def silu(x: Any) -> Any:
    """``x * sigmoid(x)``; also called swish."""
    (x,) = promote_args_inexact("silu", x)
    return lax.mul(x, lax.logistic(x))


swish = silu


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return jnp.tanh(x)


def softplus(x: Any) -> Any:
    """``log(1 + exp(x))`` without overflow."""
    return jnp.logaddexp(x, 0.0)


def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x))`` without overflow."""
    return jnp.negative(softplus(jnp.negative(x)))


def soft_sign(x: Any) -> Any:
    """``x / (1 + abs(x))``."""
    return jnp.divide(x, jnp.add(jnp.abs(x), 1))


def mish(x: Any) -> Any:
    """``x * tanh(softplus(x))``."""
    return jnp.multiply(x, jnp.tanh(softplus(x)))


def gelu(x: Any, approximate: bool = True) -> Any:
    """``x`` times the normal distribution function of ``x``.

    Args:
        x: array.
        approximate: whether by tanh.

    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units".
    """
    (x,) = promote_args_inexact("gelu", x)
    dtype = aval_of(x).dtype

    def number(value: float) -> Any:
        return convert(value, dtype)

    if not approximate:
        scaled = lax.mul(lax.neg(x), number(float(np.sqrt(0.5))))
        return lax.mul(lax.mul(number(0.5), x), lax.erfc(scaled))
    cubic = lax.add(x, lax.mul(number(0.044715), lax.integer_pow(x, 3)))
    bent = lax.tanh(lax.mul(number(float(np.sqrt(2 / np.pi))), cubic))
    return lax.mul(x, lax.mul(number(0.5), lax.add(number(1.0), bent)))


def leaky_relu(x: Any, negative_slope: Any = 1e-2) -> Any:
    """``x`` where positive, else ``negative_slope * x``."""
    check_arraylike("leaky_relu", x)
    return jnp.where(jnp.greater_equal(x, 0), x, jnp.multiply(negative_slope, x))


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    check_arraylike("elu", x)
    positive = jnp.greater(x, 0)
    # The inner choice keeps exp from overflowing where its branch is not taken.
    return jnp.where(positive, x, jnp.multiply(alpha, jnp.expm1(jnp.where(positive, 0.0, x))))


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """``max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)``."""
    bent = jnp.expm1(jnp.divide(jnp.minimum(x, 0.0), alpha))
    return jnp.add(jnp.maximum(x, 0.0), jnp.multiply(alpha, bent))


def selu(x: Any) -> Any:
    """The scaled ``elu`` that keeps mean and variance.

    Source: Klambauer et al. 2017, "Self-normalizing neural networks".
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return jnp.multiply(scale, elu(x, alpha))


def hard_sigmoid(x: Any) -> Any:
    """``relu6(x + 3) / 6``."""
    return jnp.divide(relu6(jnp.add(x, 3.0)), 6.0)


def hard_tanh(x: Any) -> Any:
    """``x`` limited to [-1, 1]."""
    return jnp.where(jnp.greater(x, 1), 1, jnp.where(jnp.less(x, -1), -1, x))


def glu(x: Any, axis: int = -1) -> Any:
    """The first half of ``axis`` times the sigmoid of the second half."""
    check_arraylike("glu", x)
    first, second = jnp.split(x, 2, axis)
    return jnp.multiply(first, sigmoid(second))


# --- softmax and normalization -------------------------------------------------------------


def softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """``exp(x) / sum(exp(x))`` along ``axis``, without overflow.

    Args:
        x: array.
        axis: an axis, a tuple of axes, or None for all.
        where: mask of the elements that take part; the others give 0.
    """
    (x,) = promote_args_inexact("softmax", x)
    top = jnp.max(x, axis, keepdims=True, initial=-np.inf, where=where)
    masked = x if where is None else jnp.where(where, x, -np.inf)
    powers = lax.exp(lax.sub(masked, lax.stop_gradient(top)))
    result = lax.div(powers, jnp.sum(powers, axis, keepdims=True, where=where))
    return result if where is None else jnp.where(where, result, 0)


def log_softmax(x: Any, axis: Axes = -1, where: Any = None) -> Any:
    """``log(softmax(x))`` along ``axis``, without overflow; arguments as in ``softmax``."""
    (x,) = promote_args_inexact("log_softmax", x)
    top = jnp.max(x, axis, keepdims=True, initial=-np.inf, where=where)
    masked = x if where is None else jnp.where(where, x, -np.inf)
    shifted = lax.sub(masked, lax.stop_gradient(top))
    total = lax.log(jnp.sum(lax.exp(shifted), axis, keepdims=True, where=where))
    result = lax.sub(shifted, total)
    return result if where is None else jnp.where(where, result, -np.inf)


def standardize(
    x: Any, axis: Axes = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-5,
    where: Any = None,
) -> Any:  # fmt: skip
    """``(x - mean) / sqrt(variance + epsilon)`` along ``axis``.

    Args:
        x: array.
        axis: an axis, a tuple of axes, or None for all.
        mean: by default that of ``x``.
        variance: by default ``mean(x**2) - mean(x)**2``, limited to 0 from below.
        epsilon: keeps the root away from 0.
        where: mask of the elements that count.
    """
    check_arraylike("standardize", x)
    if mean is None:
        mean = jnp.mean(x, axis, keepdims=True, where=where)
    if variance is None:
        square_mean = jnp.mean(jnp.square(x), axis, keepdims=True, where=where)
        variance = jnp.clip(jnp.subtract(square_mean, jnp.square(mean)), 0)
    scale = lax.rsqrt(*promote_args_inexact("standardize", jnp.add(variance, epsilon)))
    return jnp.multiply(jnp.subtract(x, mean), scale)


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """Vectors with 1 at the positions ``x`` and 0 elsewhere; positions outside give zeros.

    Args:
        x: integer array.
        num_classes: length of the vectors.
        dtype: by default float32.
        axis: where the new axis goes.

    Raises:
        TypeError: positions that are not integers.
    """
    x = jnp.asarray(x)
    aval = aval_of(x)
    place = canonicalize_axis(axis, aval.ndim + 1, "one_hot")
    check(
        dtypes.is_integer(aval.dtype),
        lambda: f"[one_hot] positions must be integers; got {aval}. Fix: x.astype(jnp.int32).",
    )
    sizes = [1] * (aval.ndim + 1)
    sizes[place] = as_index(num_classes)
    found = lax.eq(jnp.expand_dims(x, place), lax.iota(aval.dtype, sizes, place))
    return lax.convert_element_type(found, user_dtype(float if dtype is None else dtype, "one_hot"))


__getattr__ = missing_name(
    __name__, "nn", [*public_names(globals(), __name__), "logsumexp"]
)
