"""Ordinary differential equations, with gradients by the adjoint equation.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import vjp
from gpuflow.api.vmap import vmap
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.vjp import custom_vjp
from gpuflow.control.linear_transpose import closure_convert
from gpuflow.core.aval import aval_of, is_value
from gpuflow.experimental.runge_kutta import (
    DORMAND_PRINCE,
    combined,
    error_of,
    first_step,
    mean_square_ratio,
    take_step,
)
from gpuflow.experimental.runge_kutta import abs2 as abs2
from gpuflow.flatten_util import ravel_pytree
from gpuflow.numpy.creation import astype
from gpuflow.numpy.promotion import promote_dtypes_inexact
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import real_dtype
from gpuflow.tree_util import tree_flatten, tree_map, tree_unflatten

zip = safe_zip

# JAX's module has it: programs make the debug_info of ravel_first_arg with it.
api_util = LazyModule("gpuflow.as_jax.internals.api_util")

# The state in the middle of a step, by the slopes of its stages.
# Source: Shampine, Some practical Runge-Kutta formulas, Math. Comp. 46 (1986), 135.
_MIDDLE = (
    6025192743 / 30085553152 / 2,
    0,
    51252292925 / 65400821598 / 2,
    -2691868925 / 45128329728 / 2,
    187940372067 / 1594534317056 / 2,
    -1776094331 / 19743644256 / 2,
    11237099 / 235043384 / 2,
)


def map(f: Callable[..., Any], *sequences: Any) -> list[Any]:
    """Apply a function to the elements of sequences of equal length."""
    return [f(*values) for values in safe_zip(*sequences)]


def ravel_first_arg(f: Callable[..., Any], unravel: Callable[[Any], Any], debug_info: Any) -> Any:
    """Return ``f`` as a function from a vector to a vector.

    Args:
        f: a function from a pytree to a pytree. unravel: converts the vector to the pytree.
        debug_info: accepted; no effect.
    """
    del debug_info

    def raveled(vector: Any, *args: Any) -> Any:
        return ravel_pytree(f(unravel(vector), *args))[0]

    return raveled


def interp_fit_dopri(y0: Any, y1: Any, k: Any, dt: Any) -> Any:
    """Return the interpolation polynomial of order 4 of a step, (5, n), from its slopes ``k``."""
    middle = y0 + astype(dt, aval_of(y0).dtype) * combined(_MIDDLE, k)
    return jnp.stack(fit_4th_order_polynomial(y0, y1, middle, k[0], k[-1], dt))


def fit_4th_order_polynomial(
    y0: Any, y1: Any, y_mid: Any, dy0: Any, dy1: Any, dt: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """Fit the polynomial with values at 0, 1/2 and 1 and slopes at 0 and 1, in steps ``dt``."""
    dt = astype(dt, aval_of(y0).dtype)
    a = 2 * dt * (dy1 - dy0) - 8 * (y0 + y1) + 16 * y_mid
    b = dt * (5 * dy0 - 3 * dy1) + 18 * y0 + 14 * y1 - 32 * y_mid
    c = dt * (dy1 - 4 * dy0) - 11 * y0 - 5 * y1 + 16 * y_mid
    return a, b, c, dt * dy0, y0


def initial_step_size(
    fun: Callable[..., Any], t0: Any, y0: Any, order: int, rtol: Any, atol: Any, f0: Any
) -> Any:
    """Estimate the first step of a method of ``order``.

    Source: Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I (1993), II.4.
    """
    y0, f0 = promote_dtypes_inexact(y0, f0)
    return first_step(lambda t, y: fun(y, t), t0, y0, f0, order, rtol, atol)


def runge_kutta_step(
    func: Callable[..., Any], y0: Any, f0: Any, t0: Any, dt: Any
) -> tuple[Any, Any, Any, Any]:
    """Compute a step: the new state, its slope, an error estimate, and the slopes (7, n)."""
    dtype = aval_of(f0).dtype
    y1, slopes = take_step(DORMAND_PRINCE, lambda t, y: astype(func(y, t), dtype), t0, y0, f0, dt)
    return y1, slopes[-1], error_of(DORMAND_PRINCE, dt, slopes), jnp.stack(slopes)


def mean_error_ratio(error_estimate: Any, rtol: Any, atol: Any, y0: Any, y1: Any) -> Any:
    """Return the mean ratio of the error of a step to the tolerated error."""
    return jnp.sqrt(mean_square_ratio(error_estimate, rtol, atol, y0, y1))


def optimal_step_size(
    last_step: Any,
    mean_error_ratio: Any,
    safety: float = 0.9,
    ifactor: float = 10.0,
    dfactor: float = 0.2,
    order: float = 5.0,
) -> Any:
    """Return the next step size, for which the error would be just below the tolerance."""
    least = jnp.where(mean_error_ratio < 1, 1.0, dfactor)
    exact = mean_error_ratio == 0
    ratio = where(exact, 1, mean_error_ratio)
    factor = jnp.minimum(ifactor, jnp.maximum(ratio ** (-1.0 / order) * safety, least))
    return last_step * jnp.where(exact, ifactor, factor)


def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = np.inf,
    hmax: float = np.inf,
) -> Any:
    """Solve ``dy/dt = func(y, t, *args)``.

    Args:
        func: ``(y, t, *args) -> dy/dt``, a pytree like ``y0``.
        y0: the state at ``t[0]``, an array or a pytree of arrays.
        t: the times of the returned states, a vector of floats, ascending or descending.
        args: arrays, or pytrees of them. Gradients are computed with respect to them and to arrays
            that ``func`` closes over.
        rtol, atol: relative and absolute error tolerance of a step.
        mxstep: maximum number of steps between two times. hmax: maximum step size.

    Returns:
        A pytree like ``y0``, with a new first axis for the times. States are nan at times that were
        not reached within ``mxstep`` steps, or because times change direction or no step is small
        enough. Reverse mode solves the adjoint equation backwards, and stores no steps.

    Raises:
        TypeError: if ``args`` are not arrays, or times are not floats.

    Source: Chen et al., Neural ordinary differential equations (2018), appendix C.
    """
    leaves, structure = tree_flatten(args)
    for arg in leaves:
        check(
            is_value(arg),
            lambda arg=arg: (
                f"[odeint] args must be arrays or numbers; got {type(arg).__name__}. "
                "Fix: let func close over it."
            ),
        )
    check(
        is_value(t) and dtypes.is_floating(aval_of(t).dtype),
        lambda: (
            f"[odeint] t must be an array of floats; got {aval_of(t) if is_value(t) else t!r}. "
            "Fix: jnp.linspace."
        ),
    )
    t = jnp.asarray(t)
    y0 = tree_map(jnp.asarray, y0)
    check(
        aval_of(t).ndim == 1 and aval_of(t).size > 0,
        lambda: f"[odeint] t must be a vector with elements; got {aval_of(t)}. Fix: t[None].",
        ValueError,
    )

    def slope(y: Any, t: Any, *leaves: Any) -> Any:
        return func(y, t, *tree_unflatten(structure, leaves))

    converted, consts = closure_convert(slope, y0, t[0], *leaves)
    vector, unravel = ravel_pytree(y0)
    flat = ravel_first_arg(converted, unravel, None)
    options = (float(rtol), float(atol), float(mxstep), float(hmax))
    out = _solve(flat, options, vector, t, *leaves, *consts)
    return vmap(unravel)(out)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _solve(
    func: Callable[..., Any], options: tuple[float, ...], y0: Any, times: Any, *args: Any
) -> Any:
    rtol, atol, _, hmax = options

    # Back in time the equation is solved in -t.
    sign = jnp.where(times[-1] < times[0], -1, 1).astype(aval_of(times).dtype)
    times = sign * times

    def slope(y: Any, t: Any) -> Any:
        out = func(y, sign * t, *args)
        return astype(sign, aval_of(out).dtype) * out

    f0 = slope(y0, times[0])
    dt = jnp.clip(initial_step_size(slope, times[0], y0, 4, rtol, atol, f0), 0.0, hmax)
    dt = astype(dt, aval_of(times).dtype)
    fit = jnp.stack([y0] * 5)
    carry = (y0, astype(f0, aval_of(y0).dtype), times[0], dt, times[0], fit)
    _, states = lax.scan(partial(_until, slope, options), carry, times[1:])
    return jnp.concatenate([y0[None], states])


def _until(
    slope: Callable[..., Any], options: tuple[float, ...], carry: Any, target: Any
) -> tuple[Any, Any]:
    """Steps until ``target`` is passed; the state there is that of the last step's polynomial."""
    rtol, atol, mxstep, hmax = options
    most = np.int32(min(np.ceil(mxstep), 2**31 - 1))

    def goes_on(state: Any) -> Any:
        count, (_, _, t, dt, _, _) = state
        return (t < target) & (count < most) & (dt > 0)

    def step(state: Any) -> Any:
        count, (y, f, t, dt, last, fit) = state
        new_y, new_f, error, slopes = runge_kutta_step(slope, y, f, t, dt)
        ratio = mean_error_ratio(error, rtol, atol, y, new_y)
        new_fit = interp_fit_dopri(y, new_y, slopes, dt)
        new_dt = astype(jnp.clip(optimal_step_size(dt, ratio), 0.0, hmax), aval_of(dt).dtype)
        taken = ratio <= 1
        accepted = [
            where(taken, new, old) for new, old in safe_zip((new_y, new_f, t + dt), (y, f, t))
        ]
        return count + 1, (*accepted, new_dt, where(taken, t, last), where(taken, new_fit, fit))

    _, carry = lax.while_loop(goes_on, step, (np.int32(0), carry))
    _, _, t, _, last, fit = carry
    fraction = (target - last) / where(t == last, 1, t - last)
    state = jnp.polyval(fit, astype(fraction, aval_of(fit).dtype))
    return carry, where((last <= target) & (target <= t), state, np.nan)


def _solve_forward(
    func: Callable[..., Any], options: tuple[float, ...], y0: Any, times: Any, *args: Any
) -> tuple[Any, Any]:
    states = _solve(func, options, y0, times, *args)
    return states, (states, times, args)


def _solve_backward(
    func: Callable[..., Any], options: tuple[float, ...], residuals: Any, cotangent: Any
) -> tuple[Any, ...]:
    """The adjoint equation from each time to the one before it, along with the state."""
    states, times, args = residuals
    # Integers have no derivatives.
    moves = [dtypes.is_inexact(aval_of(arg).dtype) for arg in args]
    # NumPy arrays cannot be indexed by a traced loop counter.
    states, times, cotangent = (jnp.asarray(x) for x in (states, times, cotangent))
    real = real_dtype(aval_of(times).dtype)

    def adjoint_slope(state: Any, t: Any, *args: Any) -> Any:
        y, y_bar, *_ = state
        slope, pull = vjp(func, y, t, *args)
        y_bar, t_bar, *args_bar = pull(-y_bar)
        return (slope, y_bar, t_bar, *_chosen(args_bar, moves))

    def step(carry: Any, k: Any) -> tuple[Any, Any]:
        y_bar, t_bar, args_bar = carry
        # A later end moves the state along its slope.
        here = jnp.real(jnp.dot(func(states[k], times[k], *args), cotangent[k])).astype(real)
        start = (states[k], y_bar, t_bar - here, *args_bar)
        vector, unravel = ravel_pytree(start)
        flat = ravel_first_arg(adjoint_slope, unravel, None)
        span = jnp.stack([times[k], times[k - 1]])
        _, y_bar, t_bar, *args_bar = unravel(_solve(flat, options, vector, span, *args)[1])
        return (y_bar + cotangent[k - 1], t_bar, tuple(args_bar)), here

    zeros = [jnp.zeros_like(arg) for arg in _chosen(args, moves)]
    carry = (cotangent[-1], jnp.zeros((), real), tuple(zeros))
    order = np.arange(aval_of(times).shape[0] - 1, 0, -1, dtype=np.int32)
    (y_bar, t_bar, args_bar), others = lax.scan(step, carry, order)
    arg_bars = iter(args_bar)
    t_bars = jnp.concatenate([t_bar[None], jnp.flip(others, 0)])
    return (y_bar, t_bars, *[next(arg_bars) if flag else None for flag in moves])


def _chosen(values: Any, flags: list[bool]) -> list[Any]:
    return [value for value, flag in safe_zip(values, flags) if flag]


_solve.defvjp(_solve_forward, _solve_backward)
