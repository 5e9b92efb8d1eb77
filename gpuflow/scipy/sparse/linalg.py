"""Iterative solvers of linear systems, which only multiply by the matrix.

Pytrees of arrays are flattened to one vector, so that iterations only use that vector. The solution
is differentiated as that of an equation, independent of the iterations.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.aval import aval_of
from gpuflow.flatten_util import ravel_pytree
from gpuflow.numpy.exact_products import exact_dot, exact_vdot
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import to_dtype
from gpuflow.scipy.sparse.restarted import gmres_on_vectors
from gpuflow.tree_util import tree_leaves, tree_map, tree_structure

Operator = Callable[[Any], Any]


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, None]:
    """Solve ``A x = b`` for a Hermitian positive definite ``A`` by conjugate gradients.

    Args:
        A: a square matrix, or a function that multiplies by it; it maps pytrees like ``b``.
        b: an array, or a pytree of arrays.
        x0: initial guess; None means zeros.
        tol, atol: tolerances: iterations stop when the residual is at most ``max(tol * norm(b),
            atol)``.
        maxiter: maximum number of iterations; None means ten for each element.
        M: preconditioner, an approximate inverse of ``A`` in the same form. It must be Hermitian
            positive definite too.

    Returns:
        (x, None).

    Raises:
        ValueError: if trees or shapes do not match.
        TypeError: if ``A`` is not a function or matrix, ``b`` is integer, or ``A @ b`` or ``x0``
            has another dtype than ``b``.

    Source: Hestenes and Stiefel (1952); Barrett et al., Templates for the solution of linear
    systems (1994), figure 2.5.
    """
    return _solve("cg", _cg, A, b, x0, tol, atol, maxiter, M)


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> tuple[Any, None]:
    """Solve ``A x = b`` by stabilized biconjugate gradients; arguments as for ``cg``.

    ``A`` may be any nonsingular matrix.

    Source: van der Vorst, Bi-CGSTAB, SIAM J. Sci. Stat. Comput. 13 (1992), 631.
    """
    return _solve("bicgstab", _bicgstab, A, b, x0, tol, atol, maxiter, M)


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, Any]:
    """Solve ``A x = b`` by generalized minimal residuals; arguments as for ``cg``.

    Args:
        restart: dimension of the Krylov subspace; that many vectors are stored.
        maxiter: maximum number of restarts.
        M: preconditioner, an approximate inverse of ``A``; the preconditioned residual is measured.
        solve_method: "batched": solves after each complete subspace; "incremental": tracks the
            residual, so that the last subspace ends early.

    Returns:
        (x, info): info is -1 if x is nan, else 0.

    Raises:
        ValueError: if the method is unknown, and as for ``cg``.

    Source: Saad and Schultz, GMRES, SIAM J. Sci. Stat. Comput. 7 (1986), 856.
    """
    check_choice("gmres", "solve_method", solve_method, ("batched", "incremental"))
    multiply, precondition, vector, start, restore = _as_vectors("gmres", A, b, x0, M)
    size = aval_of(vector).size
    space = min(restart, size)
    most = 10 * size if maxiter is None else maxiter
    norm = jnp.linalg.norm(vector)
    limit = jnp.maximum(tol * norm, atol)
    # The same, for residuals after M.
    limit_after = jnp.linalg.norm(precondition(vector)) * jnp.minimum(1.0, limit / norm)

    def solver(matvec: Operator, right: Any) -> Any:
        return gmres_on_vectors(
            matvec,
            right,
            start,
            limit,
            limit_after,
            space,
            most,
            precondition,
            solve_method == "incremental",
        )

    x = lax.custom_linear_solve(multiply, vector, solve=solver, transpose_solve=solver)
    return restore(x), jnp.where(jnp.any(jnp.isnan(x)), -1, 0)


# --- vectors -------------------------------------------------------------------------------


def _as_vectors(
    name: str, A: Any, b: Any, x0: Any, M: Any
) -> tuple[Operator, Operator, Any, Any, Operator]:
    """Both operators on vectors, right-hand side and start as vectors, and the inverse map."""
    b = tree_map(jnp.asarray, b)
    x0 = tree_map(jnp.zeros_like, b) if x0 is None else tree_map(jnp.asarray, x0)
    shapes = [[aval_of(x).shape for x in tree_leaves(value)] for value in (x0, b)]
    check(
        tree_structure(x0) == tree_structure(b) and shapes[0] == shapes[1],
        lambda: (
            f"[{name}] x0 must be a tree like b, with equal shapes; got {tree_structure(x0)} with "
            f"{shapes[0]} for {tree_structure(b)} with {shapes[1]}. Fix: x0=None."
        ),
        ValueError,
    )
    vector, restore = ravel_pytree(b)
    dtype = aval_of(vector).dtype
    check(
        dtypes.is_inexact(dtype),
        lambda: (
            f"[{name}] b must hold floats or complex numbers; got {aval_of(vector)}. "
            "Fix: b.astype(jnp.float32)."
        ),
    )
    start = ravel_pytree(x0)[0]
    check(
        aval_of(start).dtype == dtype,
        lambda: (
            f"[{name}] x0 must have b's dtype, {dtype}; got {aval_of(start).dtype}. "
            "Fix: x0.astype(b.dtype)."
        ),
    )

    def on_vectors(what: str, operator: Operator) -> Operator:
        def multiply(x: Any) -> Any:
            product, _ = ravel_pytree(operator(restore(x)))
            check(
                aval_of(product).dtype == dtype,
                lambda: (
                    f"[{name}] {what} must give products of b's dtype, {dtype}; got "
                    f"{aval_of(product).dtype}. Fix: b.astype({aval_of(product).dtype})."
                ),
            )
            return product

        return multiply

    precondition = (lambda x: x) if M is None else on_vectors("M", _operator(name, "M", M))
    return on_vectors("A", _operator(name, "A", A)), precondition, vector, start, restore


def _operator(name: str, what: str, operator: Any) -> Operator:
    if callable(operator):
        return operator
    check(
        hasattr(operator, "__matmul__") and hasattr(operator, "shape"),
        lambda: (
            f"[{name}] {what} must be a function or a matrix; got {type(operator).__name__}. "
            f"Fix: lambda x: matrix @ x."
        ),
    )
    check(
        len(operator.shape) == 2 and operator.shape[0] == operator.shape[1],
        lambda: (
            f"[{name}] {what} must be a square matrix; got shape {tuple(operator.shape)}. "
            "Fix: the normal equations, A.T @ A."
        ),
        ValueError,
    )
    if isinstance(operator, np.ndarray | jnp.ndarray):
        return partial(exact_dot, jnp.asarray(operator))
    return lambda x: operator @ x


def _inner(x: Any, y: Any) -> Any:
    return exact_vdot(x, y)


def _real_inner(x: Any, y: Any) -> Any:
    return jnp.real(exact_vdot(x, y))


def _solve(
    name: str, iterate: Any, A: Any, b: Any, x0: Any, tol: Any, atol: Any, maxiter: Any, M: Any
) -> tuple[Any, None]:
    multiply, precondition, vector, start, restore = _as_vectors(name, A, b, x0, M)
    most = 10 * aval_of(vector).size if maxiter is None else maxiter

    def solver(matvec: Operator, right: Any) -> Any:
        limit = jnp.maximum(jnp.square(tol) * _real_inner(right, right), jnp.square(atol))
        return iterate(matvec, right, start, limit, most, precondition)

    # The transpose of a Hermitian matrix that is not real is its conjugate.
    symmetric = name == "cg" and not dtypes.is_complex(aval_of(vector).dtype)
    x = lax.custom_linear_solve(
        multiply, vector, solve=solver, transpose_solve=solver, symmetric=symmetric
    )
    return restore(x), None


# --- iterations ----------------------------------------------------------------------------


def _cg(multiply: Operator, b: Any, x: Any, limit: Any, most: Any, precondition: Operator) -> Any:
    dtype = aval_of(b).dtype
    residual = b - multiply(x)
    direction = precondition(residual)

    def goes_on(state: Any) -> Any:
        _, residual, _, _, count = state
        return (_real_inner(residual, residual) > limit) & (count < most)

    def step(state: Any) -> Any:
        x, residual, direction, size, count = state
        product = multiply(direction)
        length = to_dtype(size / _real_inner(direction, product), dtype)
        x, residual = x + length * direction, residual - length * product
        preconditioned = precondition(residual)
        new_size = _real_inner(residual, preconditioned)
        direction = preconditioned + to_dtype(new_size / size, dtype) * direction
        return x, residual, direction, new_size, count + 1

    start = (x, residual, direction, _real_inner(residual, direction), np.int32(0))
    return lax.while_loop(goes_on, step, start)[0]


def _bicgstab(
    multiply: Operator, b: Any, x: Any, limit: Any, most: Any, precondition: Operator
) -> Any:
    shadow = b - multiply(x)
    one, zero = jnp.ones((), aval_of(b).dtype), jnp.zeros_like(b)

    def goes_on(state: Any) -> Any:
        residual, broken, count = state[1], state[-2], state[-1]
        return (_real_inner(residual, residual) > limit) & (count < most) & ~broken

    def step(state: Any) -> Any:
        x, residual, rho, alpha, omega, direction, product, _, count = state
        new_rho = _inner(shadow, residual)
        beta = new_rho / rho * alpha / omega
        direction = residual + beta * (direction - omega * product)
        preconditioned = precondition(direction)
        product = multiply(preconditioned)
        alpha = new_rho / _inner(shadow, product)
        half = residual - alpha * product
        ends = _real_inner(half, half) < limit
        preconditioned_half = precondition(half)
        image = multiply(preconditioned_half)
        omega = _inner(image, half) / _inner(image, image)
        second = where(ends, 0, omega)
        # Half a step may be exact, and then the other half is a quotient of zeros.
        x = x + alpha * preconditioned + where(ends, 0, second * preconditioned_half)
        residual = half - where(ends, 0, second * image)
        broken = (new_rho == 0) | (omega == 0) | (alpha == 0)
        return x, residual, new_rho, alpha, omega, direction, product, broken, count + 1

    start = (x, shadow, one, one, one, zero, zero, np.False_, np.int32(0))
    return lax.while_loop(goes_on, step, start)[0]


publish(globals(), "scipy.sparse.linalg", public_names(globals(), __name__))
