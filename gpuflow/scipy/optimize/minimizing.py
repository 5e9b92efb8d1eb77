"""``minimize``: one entry for all methods.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.core.aval import aval_of
from gpuflow.core.types import ArrayLike
from gpuflow.numpy.arguments import as_array
from gpuflow.scipy.optimize.bfgs import minimize_bfgs
from gpuflow.scipy.optimize.lbfgs import minimize_lbfgs

_METHODS = ("bfgs", "l-bfgs-experimental-do-not-rely-on-this")
# Options of each method, besides the function and the starting point.
_OPTIONS = {
    "bfgs": ("maxiter", "norm", "gtol", "line_search_maxiter"),
    "l-bfgs-experimental-do-not-rely-on-this": (
        "maxiter",
        "norm",
        "maxcor",
        "ftol",
        "gtol",
        "maxfun",
        "maxgrad",
        "maxls",
    ),
}


class OptimizeResults(NamedTuple):
    """The result of ``minimize``.

    Args:
        x: the solution. fun, jac: value and gradient at ``x``.
        success: whether the gradient is below the tolerance.
        status: termination code, 0 for success; other codes depend on the method.
        hess_inv: approximation of the inverse Hessian, or None.
        nfev, njev: numbers of evaluations of the function and of its gradient. nit: number of
            iterations.
    """

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


def minimize(
    fun: Callable[..., Any],
    x0: ArrayLike,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """Find a local minimum of a function of a vector.

    Args:
        fun: a differentiable function ``fun(x, *args)`` that returns a scalar.
        x0: initial guess, a vector of floats.
        args: additional arguments of ``fun``.
        method: "BFGS", or "l-bfgs-experimental-do-not-rely-on-this".
        tol: tolerance of the gradient norm, unless ``options`` contains ``gtol``.
        options: options of the method: ``maxiter``, ``norm``, ``gtol`` and ``line_search_maxiter``;
            or ``maxiter``, ``norm``, ``maxcor``, ``ftol``, ``gtol``, ``maxfun``, ``maxgrad`` and
            ``maxls``.

    Returns:
        The solution, its value, and how it was found. It is not differentiable in reverse mode.

    Raises:
        TypeError: if ``args`` is not a tuple, the method does not have an option, or the start is
            not a float vector. ValueError: if the method is unknown.
    """
    check(
        isinstance(args, tuple),
        lambda: f"[minimize] args must be a tuple; got {type(args).__name__}. Fix: args=(value,).",
    )
    name = method.lower() if isinstance(method, str) else method
    check_choice("minimize", "method", name, _METHODS)
    solver_options = dict(options or {})
    for option in solver_options:
        check(
            option in _OPTIONS[name],
            lambda option=option: (
                f"[minimize] options must be {', '.join(_OPTIONS[name])}; got {option!r}. "
                "Fix: leave it out."
            ),
        )
    if tol is not None:
        solver_options.setdefault("gtol", tol)
    x0 = as_array("minimize", x0)
    aval = aval_of(x0)
    check(
        aval.ndim == 1 and dtypes.is_inexact(aval.dtype),
        lambda: (
            f"[minimize] x0 must be a vector of floats; got {aval}. Fix: flatten_util.ravel_pytree."
        ),
    )

    def function(x: Any) -> Any:
        return fun(x, *args)

    if name == "bfgs":
        optimum: Any = minimize_bfgs(function, x0, **solver_options)
        inverse = optimum.H_k
    else:
        optimum, inverse = minimize_lbfgs(function, x0, **solver_options), None
    return OptimizeResults(
        x=optimum.x_k,
        success=optimum.converged & jnp.logical_not(optimum.failed),
        status=optimum.status,
        fun=optimum.f_k,
        jac=optimum.g_k,
        hess_inv=inverse,
        nfev=optimum.nfev,
        njev=optimum.ngev,
        nit=optimum.k,
    )
