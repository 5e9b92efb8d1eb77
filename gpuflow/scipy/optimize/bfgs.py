"""The method of Broyden, Fletcher, Goldfarb and Shanno.

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
from gpuflow.numpy.exact_products import exact_dot, exact_matmul
from gpuflow.scipy.optimize.line_search import line_search


class BFGSResults(NamedTuple):
    """The state of the iteration.

    Args:
        converged, failed: whether the gradient is small; whether no step was found.
        k: iterations. nfev, ngev: evaluations of the function and of its gradient.
        x_k, f_k, g_k: the point, its value and its gradient.
        H_k: about the inverse of the Hessian.
        old_old_fval: the value before.
        status: 0: converged; 1: too many iterations; 3 and 5: the line search failed.
        line_search_status: why it failed.
    """

    converged: Any
    failed: Any
    k: Any
    nfev: Any
    ngev: Any
    x_k: Any
    f_k: Any
    g_k: Any
    H_k: Any
    old_old_fval: Any
    status: Any
    line_search_status: Any


def first_step(value: Any, before: Any, slope: Any) -> Any:
    """The length to try first: the decrease of the last step again, at most 1.

    Source: Nocedal and Wright, Numerical Optimization (2006), (3.60).
    """
    guess = 1.01 * 2 * (value - before) / slope
    return jnp.where((guess > 0) & (guess < 1), guess, 1)


def minimize_bfgs(
    fun: Callable[[Any], Any],
    x0: Any,
    maxiter: int | None = None,
    norm: Any = np.inf,
    gtol: float = 1e-5,
    line_search_maxiter: int = 10,
) -> BFGSResults:
    """Minimize with an approximation of the inverse Hessian that each step improves.

    The approximation is held as ``factor @ factor.T``, which is never indefinite, and whose factor
    has the root of its condition: in float32 the digits of the matrix itself would not do for
    conditions of 1e7 and more.

    Where the line search finds no step along its direction, it begins again with the identity, and
    fails only if there is no step along the gradient either.

    Args:
        fun: from a vector to a number.
        x0: initial guess, a vector of floats.
        maxiter: None: 200 for each element.
        norm: of the gradient, as for ``jnp.linalg.norm``. gtol: when to end.
        line_search_maxiter: the most trial steps until an interval is found.

    Sources: Nocedal and Wright, Numerical Optimization (2006), algorithm 6.1; K. Brodlie,
        A. Gourlay and J. Greenstadt, Rank-one and rank-two corrections to positive definite
        matrices expressed in product form, 1973.
    """
    size, dtype = aval_of(x0).shape[0], aval_of(x0).dtype
    most = 200 * size if maxiter is None else maxiter
    value, gradient = value_and_grad(fun)(x0)
    identity = jnp.eye(size, dtype=dtype)

    def as_at_start(value: Any, gradient: Any) -> Any:
        """A value before, from which the first step to try is as at the start."""
        return value + jnp.linalg.norm(gradient) / 2

    def goes_on(carry: tuple[BFGSResults, Any, Any]) -> Any:
        state, _, _ = carry
        return ~state.converged & ~state.failed & (state.k < most)

    def step(carry: tuple[BFGSResults, Any, Any]) -> tuple[BFGSResults, Any, Any]:
        state, factor, fresh = carry
        half = exact_dot(factor.T, state.g_k)
        direction = -exact_dot(factor, half)
        slope = -exact_dot(half, half)
        first = first_step(state.f_k, state.old_old_fval, slope)
        search = line_search(
            fun, state.x_k, direction, state.f_k, state.g_k, first, line_search_maxiter
        )
        shift = search.step * direction
        change = search.gradient - state.g_k
        updated = _updated(
            factor, shift, change, search.step * state.g_k, -(search.step**2) * slope
        )
        # Where no step is found, rounding has spoilt the matrix: steepest descent restarts.
        restarts = search.failed & ~fresh
        result = BFGSResults(
            converged=jnp.linalg.norm(search.gradient, norm) < gtol,
            failed=search.failed & fresh,
            k=state.k + 1,
            nfev=state.nfev + search.count,
            ngev=state.ngev + search.count,
            x_k=state.x_k + shift,
            f_k=search.value,
            g_k=search.gradient,
            H_k=None,
            old_old_fval=jnp.where(restarts, as_at_start(search.value, search.gradient), state.f_k),
            status=state.status,
            line_search_status=search.status,
        )
        return result, jnp.where(restarts, identity, updated), restarts

    state = BFGSResults(
        converged=jnp.linalg.norm(gradient, norm) < gtol,
        failed=jnp.asarray(False),
        k=jnp.asarray(0),
        nfev=jnp.asarray(1, np.int32),
        ngev=jnp.asarray(1, np.int32),
        x_k=x0,
        f_k=jnp.asarray(value, dtype),
        g_k=gradient,
        H_k=None,
        old_old_fval=as_at_start(jnp.asarray(value, dtype), gradient),
        status=jnp.asarray(0),
        line_search_status=jnp.asarray(0),
    )
    end, factor, _ = lax.while_loop(goes_on, step, (state, identity, jnp.asarray(True)))
    unfinished = jnp.where(end.failed, 2 + end.line_search_status, 1)
    status = jnp.where(end.converged, 0, unfinished)
    return end._replace(H_k=exact_matmul(factor, factor.T), status=status)


def _updated(factor: Any, shift: Any, change: Any, pull: Any, curvature: Any) -> Any:
    """The factor of the next inverse Hessian, or ``factor`` where the step shows no curvature.

    With H the inverse of B, s the step, y the change of the gradient and ``a = sqrt(y.s / s.B s)``:
    ``factor - s (y / y.s - B s / (a s.B s)) @ factor``.

    Args:
        factor: of H. shift: s. change: y.
        pull: ``-B s``. curvature: ``s.B s``.
    """
    product = exact_dot(change, shift)
    usable = (product > 0) & (curvature > 0)
    product, curvature = jnp.where(usable, product, 1), jnp.where(usable, curvature, 1)
    scale = jnp.sqrt(product) * jnp.sqrt(curvature)
    row = exact_dot(change / product + pull / scale, factor)
    new = factor - jnp.outer(shift, row)
    return jnp.where(usable & jnp.all(jnp.isfinite(new)), new, factor)
