"""Activations: elementwise functions of any shape.

Tests: tests/nn/test_nn_values.py, tests/ops/test_special_points.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.nn.slopes import (
    celu_bent,
    celu_slope,
    celu_slope_by_alpha,
    constant_slope_beyond,
    gelu_by_tanh,
    squareplus_slope,
    squareplus_slope_by_b,
)
from gpuflow.numpy.promotion import check_arraylike, convert, promote_args_inexact
from gpuflow.ops.elementwise.select import where as select_where


@custom_jvp
def relu(x: ArrayLike) -> Array:
    """Compute ``max(x, 0)``, with derivative 0 at 0.

    Args:
        x: array of real numbers, of any shape.

    Returns:
        An array of the shape and dtype of ``x``.

    Example:
        >>> gf.nn.relu(jnp.array([-1.0, 0.0, 2.0]))
        Array([0., 0., 2.], dtype=float32)
    """
    return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return relu(x), select_where(jnp.greater(x, 0), t, convert(0, aval_of(t).dtype))


@custom_jvp
def relu6(x: ArrayLike) -> Array:
    """Compute ``min(max(x, 0), 6)``, with derivative 0 at 0 and at 6.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.relu6(jnp.array([-1.0, 3.0, 8.0]))
        Array([0., 3., 6.], dtype=float32)
    """
    return jnp.minimum(jnp.maximum(x, 0), 6.0)


@relu6.defjvp
def _relu6_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    unclipped = lax.bitwise_and(jnp.greater(x, 0), jnp.less(x, 6))
    return relu6(x), select_where(unclipped, t, convert(0, aval_of(t).dtype))


@composite
def sigmoid(x: ArrayLike) -> Array:
    """Compute the sigmoid ``1 / (1 + exp(-x))``.

    Args:
        x: array of floats or complex numbers, of any shape.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> gf.nn.sigmoid(jnp.array([-jnp.inf, 0.0, jnp.inf]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return lax.logistic(*check_arraylike("sigmoid", x))


def _above_minus_infinity(x: ArrayLike) -> Any:
    """``x`` with -inf replaced by the least number, whose product with a weight of 0 is 0."""
    dtype = aval_of(x).dtype
    if not dtypes.is_floating(dtype):
        return x
    return lax.max(x, lax.full_like(x, float(ml_dtypes.finfo(dtype).min)))


@composite
def silu(x: ArrayLike) -> Array:
    """Compute ``x * sigmoid(x)``; also called swish.

    Args:
        x: array of floats or complex numbers, of any shape.

    Returns:
        An array of the shape and dtype of ``x``.

    Raises:
        TypeError: if the dtype is not supported.

    Example:
        >>> gf.nn.silu(jnp.array([-1.0, 0.0, 1.0])).round(3)
        Array([-0.269,  0.   ,  0.731], dtype=float32)
    """
    (x,) = check_arraylike("silu", x)
    return _silu(x)


@constant_slope_beyond(1000.0)
def _silu(x: Any) -> Any:
    return lax.mul(_above_minus_infinity(x), lax.logistic(x))


swish = silu


def tanh(x: ArrayLike) -> Array:
    """Compute the hyperbolic tangent.

    Args:
        x: array of real or complex numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.tanh(jnp.array([-1.0, 0.0, 1.0])).round(3)
        Array([-0.762,  0.   ,  0.762], dtype=float32)
    """
    return jnp.tanh(x)


@composite
def softplus(x: ArrayLike) -> Array:
    """Compute ``log(1 + exp(x))`` without overflow.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.softplus(jnp.array([-1.0, 0.0, 100.0])).round(3)
        Array([  0.313,   0.693, 100.   ], dtype=float32)
    """
    return jnp.logaddexp(x, 0)  # by an integer: 0.0 would make integers weak floats


@composite
def log_sigmoid(x: ArrayLike) -> Array:
    """Compute ``log(sigmoid(x))`` without overflow.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.log_sigmoid(jnp.array([-100.0, 0.0, 1.0])).round(3)
        Array([-100.   ,   -0.693,   -0.313], dtype=float32)
    """
    return jnp.negative(softplus(jnp.negative(x)))


@composite
def soft_sign(x: ArrayLike) -> Array:
    """Compute ``x / (1 + abs(x))``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.soft_sign(jnp.array([-1.0, 0.0, 3.0]))
        Array([-0.5 ,  0.  ,  0.75], dtype=float32)
    """
    (x,) = check_arraylike("soft_sign", x)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return jnp.divide(x, jnp.add(jnp.abs(x), 1))
    return _soft_sign(x)


@custom_jvp
def _soft_sign(x: Any) -> Any:
    size = jnp.abs(x)
    far = jnp.isinf(size)
    return jnp.where(far, jnp.sign(x), jnp.divide(x, jnp.add(jnp.where(far, 0, size), 1)))


@_soft_sign.defjvp
def _soft_sign_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return _soft_sign(x), jnp.multiply(t, jnp.square(jnp.divide(1, jnp.add(jnp.abs(x), 1))))


@composite
def mish(x: ArrayLike) -> Array:
    """Compute ``x * tanh(softplus(x))``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.mish(jnp.array([-1.0, 0.0, 1.0])).round(3)
        Array([-0.303,  0.   ,  0.865], dtype=float32)
    """
    return _mish(*check_arraylike("mish", x))


@constant_slope_beyond(1000.0)
def _mish(x: Any) -> Any:
    return jnp.multiply(_above_minus_infinity(x), jnp.tanh(softplus(x)))


@composite
def gelu(x: ArrayLike, approximate: bool = True) -> Array:
    """Compute ``x`` times the normal cumulative distribution function of ``x``.

    Args:
        x: array.
        approximate: whether to use the tanh approximation.

    Returns:
        An array of the shape and float dtype of ``x``.

    Source: Hendrycks and Gimpel 2016, "Gaussian error linear units".

    Example:
        >>> gf.nn.gelu(jnp.array([-1.0, 0.0, 1.0]), approximate=False).round(3)
        Array([-0.159,  0.   ,  0.841], dtype=float32)
    """
    (x,) = promote_args_inexact("gelu", x)
    return gelu_by_tanh(x) if approximate else _gelu(x)


@constant_slope_beyond(40.0)
def _gelu(x: Any) -> Any:
    half, root = (convert(value, aval_of(x).dtype) for value in (0.5, float(np.sqrt(0.5))))
    return lax.mul(lax.mul(half, _above_minus_infinity(x)), lax.erfc(lax.mul(lax.neg(x), root)))


@composite
def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 1e-2) -> Array:
    """Return ``x`` where it is positive, else ``negative_slope * x``.

    Args:
        x: array of real numbers, of any shape.
        negative_slope: a scalar, or an array that broadcasts.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.leaky_relu(jnp.array([-2.0, 0.0, 2.0]), 0.5)
        Array([-1.,  0.,  2.], dtype=float32)
    """
    (x,) = check_arraylike("leaky_relu", x)
    return _leaky_relu(x, negative_slope)


@custom_jvp
def _leaky_relu(x: Any, slope: Any) -> Any:
    return jnp.where(jnp.greater_equal(x, 0), x, jnp.multiply(slope, x))


# Tangents are multiplied once: the branch that is not taken might be infinite.
_leaky_relu.defjvps(
    lambda t, out, x, slope: jnp.multiply(t, jnp.where(jnp.greater_equal(x, 0), 1, slope)),
    lambda t, out, x, slope: jnp.multiply(t, jnp.where(jnp.greater_equal(x, 0), 0, x)),
)


@composite
def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Return ``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.
        alpha: a scalar, or an array that broadcasts.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.elu(jnp.array([-1.0, 0.0, 2.0])).round(3)
        Array([-0.632,  0.   ,  2.   ], dtype=float32)
    """
    (x,) = check_arraylike("elu", x)
    positive = jnp.greater(x, 0)
    # The inner select prevents overflow of exp where its branch is not taken.
    return jnp.where(positive, x, jnp.multiply(alpha, jnp.expm1(jnp.where(positive, 0.0, x))))


@composite
def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Array:
    """Compute ``max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.
        alpha: a nonzero scalar, or an array that broadcasts.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.celu(jnp.array([-1.0, 0.0, 2.0]), 0.5).round(3)
        Array([-0.432,  0.   ,  2.   ], dtype=float32)
    """
    x, alpha = check_arraylike("celu", x, alpha)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return _bent_celu(x, alpha)
    return _celu(*promote_args_inexact("celu", x, alpha))


def _bent_celu(x: Any, alpha: Any) -> Any:
    return jnp.add(jnp.maximum(x, 0.0), jnp.multiply(alpha, celu_bent(x, alpha)))


_celu = custom_jvp(_bent_celu)
_celu.defjvps(celu_slope, celu_slope_by_alpha)


@composite
def selu(x: ArrayLike) -> Array:
    """Compute the scaled ``elu`` that preserves mean and variance.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Source: Klambauer et al. 2017, "Self-normalizing neural networks".

    Example:
        >>> gf.nn.selu(jnp.array([-1.0, 0.0, 1.0])).round(3)
        Array([-1.111,  0.   ,  1.051], dtype=float32)
    """
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return jnp.multiply(scale, elu(x, alpha))


@composite
def hard_sigmoid(x: ArrayLike) -> Array:
    """Compute ``relu6(x + 3) / 6``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.hard_sigmoid(jnp.array([-3.0, 0.0, 3.0]))
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    return jnp.divide(relu6(jnp.add(x, 3.0)), 6.0)


@composite
def hard_tanh(x: ArrayLike) -> Array:
    """Clip ``x`` to [-1, 1].

    Args:
        x: array of real numbers, of any shape.

    Returns:
        An array of the shape and dtype of ``x``.

    Example:
        >>> gf.nn.hard_tanh(jnp.array([-2.0, 0.5, 2.0]))
        Array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return jnp.where(jnp.greater(x, 1), 1, jnp.where(jnp.less(x, -1), -1, x))


@composite
def glu(x: ArrayLike, axis: int = -1) -> Array:
    """Return the first half of ``axis`` times the sigmoid of the second half.

    Args:
        x: array with an even size along ``axis``.
        axis: the axis to split in half.

    Returns:
        An array of the shape of ``x``, except that ``axis`` has half the size.

    Raises:
        ValueError: if the size is odd, or the axis does not exist.

    Example:
        >>> gf.nn.glu(jnp.array([2.0, 4.0, 0.0, jnp.inf]))
        Array([1., 4.], dtype=float32)
    """
    (x,) = check_arraylike("glu", x)
    first, second = jnp.split(x, 2, axis)
    return jnp.multiply(first, sigmoid(second))


@composite
def hard_silu(x: ArrayLike) -> Array:
    """Compute ``x * hard_sigmoid(x)``; also called hard_swish.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.hard_silu(jnp.array([-3.0, 1.5, 3.0]))
        Array([-0.   ,  1.125,  3.   ], dtype=float32)
    """
    return _hard_silu(*check_arraylike("hard_silu", x))


@constant_slope_beyond(8.0)
def _hard_silu(x: Any) -> Any:
    return jnp.multiply(_above_minus_infinity(x), hard_sigmoid(x))


hard_swish = hard_silu


def identity(x: ArrayLike) -> Array:
    """Return ``x`` as an array.

    Args:
        x: array or scalar.

    Returns:
        An array of the shape and dtype of ``x``.

    Example:
        >>> gf.nn.identity(jnp.array([1, 2]))
        Array([1, 2], dtype=int32)
    """
    (x,) = check_arraylike("identity", x)
    return jnp.asarray(x)


@composite
def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Array:
    """Compute ``(x + sqrt(x**2 + b)) / 2``.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.
        b: smoothness of the bend; 0 gives ``relu``.

    Returns:
        An array of the shape and float dtype of ``x``.

    Source: Barron 2021, "Squareplus: a softplus-like algebraic rectifier".

    Example:
        >>> gf.nn.squareplus(jnp.array([0.0, 1.5]))
        Array([1., 2.], dtype=float32)
    """
    x, b = check_arraylike("squareplus", x, b)
    if not dtypes.is_inexact(aval_of(x).dtype):
        return jnp.divide(jnp.add(x, jnp.sqrt(jnp.add(jnp.square(x), b))), 2)
    return _squareplus(*promote_args_inexact("squareplus", x, b))


@custom_jvp
def _squareplus(x: Any, b: Any) -> Any:
    size = jnp.abs(x)
    # Squares may overflow, and for negative x the sum with the root would cancel.
    large = size > 1
    safe = jnp.where(large, size, 1)
    far = jnp.multiply(safe, jnp.sqrt(jnp.add(1, jnp.divide(jnp.divide(b, safe), safe))))
    near = jnp.sqrt(jnp.add(jnp.square(jnp.where(large, 0, x)), b))
    half = jnp.multiply(0.5, jnp.add(size, jnp.where(large, far, near)))
    negative = jnp.less(x, 0)
    reflected = jnp.divide(jnp.multiply(0.25, b), jnp.where(negative, half, 1))
    return jnp.where(negative, reflected, half)


_squareplus.defjvps(squareplus_slope, squareplus_slope_by_b)


@composite
def sparse_plus(x: ArrayLike) -> Array:
    """Return 0 below -1, ``x`` above 1, and ``(x + 1)**2 / 4`` in between.

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Source: Blondel, Martins and Niculae 2019, "Learning with Fenchel-Young losses".

    Example:
        >>> gf.nn.sparse_plus(jnp.array([-2.0, 0.0, 2.0]))
        Array([0.  , 0.25, 2.  ], dtype=float32)
    """
    bounded = jnp.where(jnp.greater_equal(jnp.abs(x), 1.0), 0.0, x)
    bent = jnp.divide(jnp.square(jnp.add(bounded, 1.0)), 4)
    linear = jnp.where(jnp.greater_equal(x, 1.0), x, bent)
    return jnp.where(jnp.less_equal(x, -1.0), 0.0, linear)


@composite
def sparse_sigmoid(x: ArrayLike) -> Array:
    """Return 0 below -1, 1 above 1, and ``(x + 1) / 2`` in between (``sparse_plus`` derivative).

    Args:
        x: array of real numbers, of any shape; integers are converted to floats.

    Returns:
        An array of the shape and float dtype of ``x``.

    Example:
        >>> gf.nn.sparse_sigmoid(jnp.array([-2.0, 0.5, 2.0]))
        Array([0.  , 0.75, 1.  ], dtype=float32)
    """
    return jnp.add(jnp.multiply(0.5, jnp.clip(x, -1.0, 1.0)), 0.5)


@custom_jvp
def log1mexp(x: ArrayLike) -> Array:
    """Compute ``log(1 - exp(-x))`` accurately for small and large ``x``.

    Args:
        x: array of positive numbers, of any shape.

    Returns:
        An array of the shape and float dtype of ``x``.

    Source: Maechler 2012, "Accurately computing log(1 - exp(-abs(a)))".

    Example:
        >>> gf.nn.log1mexp(jnp.array([1e-8, 0.7, 50.0])).round(2)
        Array([-18.42,  -0.69,  -0.  ], dtype=float32)
    """
    small = jnp.log(jnp.negative(jnp.expm1(jnp.negative(x))))
    large = jnp.log1p(jnp.negative(jnp.exp(jnp.negative(x))))
    return jnp.where(jnp.less(x, float(np.log(2.0))), small, large)


@log1mexp.defjvp
def _log1mexp_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    # 1 / expm1(x) in powers that vanish at infinity, whose own derivatives are finite there.
    positive = jnp.greater(x, 0)
    negated = jnp.negative(jnp.where(positive, x, 1))
    slope = jnp.divide(jnp.exp(negated), jnp.negative(jnp.expm1(negated)))
    other_slope = jnp.divide(1, jnp.expm1(jnp.where(positive, -1, x)))
    return log1mexp(x), jnp.multiply(t, jnp.where(positive, slope, other_slope))
