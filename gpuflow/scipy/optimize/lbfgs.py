"""BFGS with limited memory: the last few steps approximate the inverse Hessian.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import value_and_grad
from gpuflow.core.aval import aval_of
from gpuflow.numpy.creation import astype
from gpuflow.numpy.exact_products import exact_dot, exact_vdot
from gpuflow.ops.linalg.algebra import real_dtype
from gpuflow.scipy.optimize.line_search import line_search

_ENDLESS = 2**31 - 1  # more than there will be


class LBFGSResults(NamedTuple):
    """The state of the iteration.

    Args:
        converged, failed: whether the gradient is small; whether it ended for another reason.
        k: iterations. nfev, ngev: evaluations of the function and of its gradient.
        x_k, f_k, g_k: the point, its value and its gradient.
        s_history, y_history: the last steps, and how the gradient changed; the newest ones last.
        rho_history: one over their products; 0 for steps that were not made.
        gamma: the scale of the inverse Hessian.
        status: 0: converged, 1: too many iterations, 2: evaluations, 3: gradients, 4: the value no
            longer falls, 5: the line search failed.
        ls_status: why it failed.
    """

    converged: Any
    failed: Any
    k: Any
    nfev: Any
    ngev: Any
    x_k: Any
    f_k: Any
    g_k: Any
    s_history: Any
    y_history: Any
    rho_history: Any
    gamma: Any
    status: Any
    ls_status: Any


def minimize_lbfgs(
    fun: Callable[[Any], Any],
    x0: Any,
    maxiter: float | None = None,
    norm: Any = np.inf,
    maxcor: int = 10,
    ftol: float = 2.220446049250313e-09,
    gtol: float = 1e-05,
    maxfun: float | None = None,
    maxgrad: float | None = None,
    maxls: int = 20,
) -> LBFGSResults:
    """Minimize with the last ``maxcor`` steps instead of a matrix.

    Args:
        fun: from a vector to a real number.
        x0: where to start, a vector of floats or complex numbers.
        maxiter, maxfun, maxgrad: the most iterations, evaluations and gradients; None for all
            three: 200 iterations for each element.
        norm: of the gradient, as for ``jnp.linalg.norm``. gtol: when to end.
        ftol: the least decrease of the value.
        maxls: the most trial steps until the line search finds an interval.

    Source: Nocedal and Wright, Numerical Optimization (2006), algorithms 7.4 and 7.5.
    """
    size, dtype = aval_of(x0).shape[0], aval_of(x0).dtype
    real = real_dtype(dtype)
    if maxiter is None and maxfun is None and maxgrad is None:
        maxiter = 200 * size
    budgets = (maxiter, maxfun, maxgrad)
    limits = [_ENDLESS if limit is None else min(limit, _ENDLESS) for limit in budgets]
    value, gradient = value_and_grad(fun)(x0)

    def goes_on(state: LBFGSResults) -> Any:
        return ~state.converged & ~state.failed

    def step(state: LBFGSResults) -> LBFGSResults:
        direction = _direction(state)
        # The first direction is a whole gradient, whose length is arbitrary.
        first = jnp.where(state.k == 0, 1 / jnp.maximum(1, jnp.linalg.norm(direction)), 1)
        search = line_search(fun, state.x_k, direction, state.f_k, state.g_k, first, maxls)
        shift = astype(search.step, dtype) * direction
        change = search.gradient - state.g_k
        product = jnp.real(exact_dot(change, shift))
        square = jnp.real(exact_vdot(change, change))
        usable = product > 0
        reasons = [
            (search.failed, 5),
            (state.k + 1 >= limits[0], 1),
            (state.nfev >= limits[1], 2),
            (state.ngev >= limits[2], 3),
            (state.f_k - search.value < ftol, 4),
        ]
        converged = jnp.linalg.norm(search.gradient, norm) < gtol
        status: Any = 0
        for holds, code in reversed(reasons):
            status = jnp.where(holds, code, status)
        return LBFGSResults(
            converged=converged,
            failed=(status > 0) & ~converged,
            k=state.k + 1,
            nfev=state.nfev + search.count,
            ngev=state.ngev + search.count,
            x_k=state.x_k + shift,
            f_k=search.value,
            g_k=search.gradient,
            s_history=_pushed(state.s_history, shift),
            y_history=_pushed(state.y_history, change),
            rho_history=_pushed(state.rho_history, jnp.where(usable, 1 / product, 0)),
            gamma=jnp.where(usable, product / square, state.gamma),
            status=jnp.where(converged, 0, status),
            ls_status=search.status,
        )

    state = LBFGSResults(
        converged=jnp.linalg.norm(gradient, norm) < gtol,
        failed=jnp.asarray(False),
        k=jnp.asarray(0),
        nfev=jnp.asarray(1, np.int32),
        ngev=jnp.asarray(1, np.int32),
        x_k=x0,
        f_k=jnp.asarray(value, real),
        g_k=gradient,
        s_history=jnp.zeros((maxcor, size), dtype),
        y_history=jnp.zeros((maxcor, size), dtype),
        rho_history=jnp.zeros(maxcor, real),
        gamma=jnp.ones((), real),
        status=jnp.asarray(0),
        ls_status=jnp.asarray(0),
    )
    return lax.while_loop(goes_on, step, state)


def _pushed(history: Any, new: Any) -> Any:
    """The newest element last; the oldest one is forgotten."""
    return jnp.concatenate([history[1:], new[None]])


def _direction(state: LBFGSResults) -> Any:
    """The inverse Hessian times the gradient, down; steps that were not made have no effect."""
    dtype, count = aval_of(state.x_k).dtype, aval_of(state.rho_history).shape[0]
    steps, changes, scale = state.s_history, state.y_history, state.rho_history

    def down(j: Any, carry: Any) -> Any:
        q, weights = carry
        i = count - 1 - j
        weight = scale[i] * jnp.real(exact_vdot(steps[i], q))
        return q - astype(weight, dtype) * jnp.conj(changes[i]), weights.at[i].set(weight)

    def up(i: Any, q: Any) -> Any:
        other = scale[i] * jnp.real(exact_dot(changes[i], q))
        return q + astype(weights[i] - other, dtype) * steps[i]

    q = -jnp.conj(state.g_k)
    q, weights = lax.fori_loop(0, count, down, (q, jnp.zeros_like(scale)))
    return lax.fori_loop(0, count, up, astype(state.gamma, dtype) * q)
