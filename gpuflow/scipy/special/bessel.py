"""Bessel functions.

Tests: tests/scipy_surface/test_special_rules.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

from operator import index
from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.special.bessel import small_enough
from gpuflow.scipy.special import tables
from gpuflow.scipy.special.common import (
    chebyshev,
    kernel,
    on_interval,
    real_operands,
    scalar_like,
    with_derivatives,
)

# The limit between the series in x and those in 1 / x.
_LIMIT = 4.0
# Each order is a value of the recurrence's loop.
_MAX_ORDERS = 1000
_MAX_STEPS = 2**31 - 1


def _far_argument(size: Any) -> tuple[Any, Any]:
    inverse = 1.0 / jnp.maximum(size, _LIMIT)
    return jnp.sqrt(inverse), on_interval(0.0, 1.0 / _LIMIT, inverse)


@with_derivatives(lambda t, out, x: t * (_i1e(x) - jnp.sign(x) * out))
def _i0e(x: Any) -> Any:
    size = jnp.abs(x)
    root, argument = _far_argument(size)
    near = chebyshev(tables.I0E_NEAR, on_interval(0.0, _LIMIT, size))
    return jnp.where(size <= _LIMIT, near, root * chebyshev(tables.I0E_FAR, argument))


def _i1e_slope(out: Any, x: Any) -> Any:
    """``i0e - i1e (sign(x) + 1 / x)``, which is about ``1/2 - abs(x)`` near 0."""
    size = jnp.abs(x)
    near = size < small_enough(aval_of(x).dtype)
    safe = jnp.where(near, 1.0, x)
    return jnp.where(near, 0.5 - size, _i0e(x) - out * (jnp.sign(x) + 1.0 / safe))


def _i1_slope(out: Any, x: Any) -> Any:
    """``i0 - i1 / x``, which is 1/2 near 0."""
    near, even = jnp.abs(x) < small_enough(aval_of(x).dtype), _i0(x)
    far = jnp.isinf(even)
    slope = jnp.where(far, 0.0, even) - jnp.where(far, 0.0, out) / jnp.where(near, 1.0, x)
    return jnp.where(near, 0.5, jnp.where(far, even, slope))


@with_derivatives(lambda t, out, x: t * _i1e_slope(out, x))
def _i1e(x: Any) -> Any:
    size = jnp.abs(x)
    root, argument = _far_argument(size)
    near = x * chebyshev(tables.I1E_NEAR, on_interval(0.0, _LIMIT, size))
    far = root * chebyshev(tables.I1E_FAR, argument)
    return jnp.where(size <= _LIMIT, near, jnp.where(x < 0.0, -far, far))


@with_derivatives(lambda t, out, x: t * i1(x))
def _i0(x: Any) -> Any:
    half = jnp.exp(0.5 * jnp.abs(x))
    return jnp.where(jnp.isinf(x), jnp.inf, half * _i0e(x) * half)


@with_derivatives(lambda t, out, x: t * _i1_slope(out, x))
def _i1(x: Any) -> Any:
    half = jnp.exp(0.5 * jnp.abs(x))
    return jnp.where(jnp.isinf(x), x, half * _i1e(x) * half)


def i0e(x: ArrayLike) -> Array:
    """Compute ``exp(-abs(x)) i0(x)`` without overflow.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.i0e(jnp.array([0., 100.])), 3)
        Array([1.  , 0.04], dtype=float32)
    """
    return _i0e(*real_operands("i0e", x))


def i0(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the first kind, of order 0.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.i0(jnp.array([0., 1.])), 3)
        Array([1.   , 1.266], dtype=float32)
    """
    return _i0(*real_operands("i0", x))


def i1e(x: ArrayLike) -> Array:
    """Compute ``exp(-abs(x)) i1(x)`` without overflow.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.i1e(jnp.array([0., 100.])), 3)
        Array([0.  , 0.04], dtype=float32)
    """
    return _i1e(*real_operands("i1e", x))


def i1(x: ArrayLike) -> Array:
    """Return the modified Bessel function of the first kind, of order 1.

    Args:
        x: array of real numbers; integers are converted to floats.

    Returns:
        Floats of the shape of ``x``.

    Raises:
        ValueError: if an argument is complex.

    Example:
        >>> jnp.round(gf.scipy.special.i1(jnp.array([0., 1.])), 3)
        Array([0.   , 0.565], dtype=float32)
    """
    return _i1(*real_operands("i1", x))


# --- the first kind, all orders at once -----------------------------------------------------

# Below this the power series is used: the recurrence would grow without bound.
_SMALL = 0.25
_POWERS = 7
# The recurrence is scaled down when it passes this.
_LARGE = 1e15


def _small_argument(z: Any, order: int) -> Any:
    """Source: DLMF 10.2.2."""
    quarter = -0.25 * z * z
    series: Any = 1.0
    for k in range(_POWERS, 0, -1):
        series = 1.0 + series * quarter / (k * (order + k))
    leading: Any = 1.0
    for k in range(1, order + 1):
        leading = leading * (0.5 * z / k)
    return leading * series


def _recurrence(z: Any, order: int, count: int) -> tuple[Any, ...]:
    """J of orders 0 to ``order`` by Miller's recurrence from ``count`` down. Source: DLMF 3.6(ii).

    The even ones, doubled except for J_0, sum up to 1.
    """
    zero = jnp.zeros_like(z)

    def step(i: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        k = scalar_like(count - i, z)
        above, here, total, *by_order = state
        # The order below k, which is k - 1.
        below = 2.0 * k * here / z - above
        total = total + jnp.where((i + 1) % 2 == count % 2, 2.0 * below, 0.0)
        by_order = [jnp.where(k - 1.0 == j, below, v) for j, v in enumerate(by_order)]
        shrink = jnp.where(jnp.abs(below) > _LARGE, 1.0 / _LARGE, 1.0)
        return tuple(v * shrink for v in (here, below, total, *by_order))

    start = (zero, zero + 1.0 / _LARGE, zero, *[zero] * (order + 1))
    _, lowest, total, *by_order = lax.fori_loop(0, count, step, start)
    scale = 1.0 / (total - lowest)
    return tuple(v * scale for v in by_order)


def _all_orders(z: Any, order: int, count: int) -> tuple[Any, ...]:
    small = jnp.abs(z) < _SMALL
    safe = jnp.where(small, 1.0, z)
    rows = _recurrence(safe, order, count)
    return tuple(jnp.where(small, _small_argument(z, j), row) for j, row in enumerate(rows))


@composite
def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Array:
    """Return the Bessel functions of the first kind, of orders 0 to ``v``.

    Args:
        z: array of real numbers.
        v: the highest order, a static nonnegative int.
        n_iter: start of the downward recurrence; it must be well above ``abs(z)`` and ``v``.

    Returns:
        Floats of shape ``(v + 1, *z.shape)``.

    Raises:
        ValueError: if an argument is complex, ``v`` is negative or very large, or ``n_iter`` is
            very large.

    Example:
        >>> jnp.round(gf.scipy.special.bessel_jn(jnp.array([1.]), v=1), 3)
        Array([[0.765],
               [0.44 ]], dtype=float32)
    """
    order, count = index(v), max(index(n_iter), index(v)) + 1
    check(
        0 <= order <= _MAX_ORDERS and count <= _MAX_STEPS,
        lambda: (
            f"[bessel_jn] v must be from 0 to {_MAX_ORDERS}, and n_iter below {_MAX_STEPS}; "
            f"got v={order}, n_iter={n_iter}. Fix: bessel_jn(z, v=1, n_iter=50)."
        ),
        ValueError,
    )
    (z,) = real_operands("bessel_jn", z)

    @custom_jvp
    def rows(z: Any) -> Any:
        return kernel(lambda z: _all_orders(z, order, count))(z)

    @rows.defjvp
    def rows_rule(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (z,), (t,) = primals, tangents
        values = kernel(lambda z: _all_orders(z, order + 1, count))(z)
        # Source: DLMF 10.6.1.
        slopes = [-values[1]]
        slopes += [0.5 * (values[j - 1] - values[j + 1]) for j in range(1, order + 1)]
        return tuple(values[:-1]), tuple(t * slope for slope in slopes)

    return jnp.stack(rows(z))
