"""Generalized minimal residuals, on one vector.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.core.aval import aval_of
from gpuflow.numpy.exact_products import exact_dot
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import conjugate, to_dtype
from gpuflow.scipy.linalg.systems import solve_triangular

Operator = Callable[[Any], Any]


def gmres_on_vectors(
    multiply: Operator,
    b: Any,
    x: Any,
    limit: Any,
    limit_after: Any,
    space: int,
    most: Any,
    precondition: Operator,
    incremental: bool,
) -> Any:
    """Spaces of ``space`` products one after the other, until the residual is small.

    Args:
        limit: when to end. limit_after: when the incremental method ends a space.
        most: the most spaces.
    """

    def residual_of(x: Any) -> tuple[Any, Any]:
        return _unit(precondition(b - multiply(x)), float(jnp.finfo(aval_of(b).dtype).tiny))

    def goes_on(state: Any) -> Any:
        _, _, norm, count = state
        return (count < most) & (norm > limit)

    def step(state: Any) -> Any:
        x, unit, norm, count = state
        solve = _incremental if incremental else _batched
        coefficients, basis = solve(
            lambda v: precondition(multiply(v)), unit, norm, space, limit_after
        )
        x = x + exact_dot(coefficients, basis[:-1])
        return (x, *residual_of(x), count + 1)

    return lax.while_loop(goes_on, step, (x, *residual_of(x), np.int32(0)))[0]


def _unit(x: Any, least: Any) -> tuple[Any, Any]:
    """A vector of length 1, and its length; zeros where that is not above ``least``."""
    norm = jnp.linalg.norm(x)
    counts = norm > least
    divided = x / to_dtype(where(counts, norm, 1), aval_of(x).dtype)
    return where(counts, divided, 0), where(counts, norm, 0)


def _start(unit: Any, space: int) -> tuple[Any, Any]:
    """The basis, one row each, and the projections of products on it, one row each.

    Rows of the identity replace products that are not computed: their coefficients are 0.
    """
    basis = jnp.zeros((space + 1, aval_of(unit).size), aval_of(unit).dtype).at[0].set(unit)
    return basis, jnp.eye(space, space + 1, dtype=aval_of(unit).dtype)


def _extended(operator: Operator, basis: Any, k: Any) -> tuple[Any, Any, Any]:
    """Arnoldi's step: the basis with the product of its row k, projections, and the new vector.

    Classical Gram and Schmidt, twice: rounding leaves nothing to a third time.
    Source: Giraud et al., The loss of orthogonality in the Gram-Schmidt orthogonalization process,
    Comput. Math. Appl. 50 (2005), 1069.
    """
    vector = operator(basis[k])
    before = jnp.linalg.norm(vector)
    row = jnp.zeros(aval_of(basis).shape[0], aval_of(basis).dtype)
    for _ in range(2):
        along = exact_dot(conjugate(basis), vector)
        vector = vector - exact_dot(along, basis)
        row = row + along
    unit, norm = _unit(vector, float(jnp.finfo(aval_of(before).dtype).eps) * before)
    row = row.at[k + 1].set(to_dtype(norm, aval_of(row).dtype))
    return basis.at[k + 1].set(unit), row, norm


def _batched(operator: Operator, unit: Any, norm: Any, space: int, limit: Any) -> tuple[Any, Any]:
    """All products first; then the least residual by the QR decomposition."""
    del limit
    basis, rows = _start(unit, space)

    def goes_on(state: Any) -> Any:
        _, _, new, k = state
        return (k < space) & (new > 0)

    def step(state: Any) -> Any:
        basis, rows, _, k = state
        basis, row, new = _extended(operator, basis, k)
        return basis, rows.at[k].set(row), new, k + 1

    state = (basis, rows, jnp.ones_like(norm), np.int32(0))
    basis, rows, *_ = lax.while_loop(goes_on, step, state)
    q, r = jnp.linalg.qr(rows.T)
    return solve_triangular(r, conjugate(q[0]) * to_dtype(norm, aval_of(q).dtype)), basis


def _incremental(
    operator: Operator, unit: Any, norm: Any, space: int, limit: Any
) -> tuple[Any, Any]:
    """After each product a plane rotation makes its projections triangular.

    The element of the right-hand side below the triangle is then the residual.
    """
    basis, rows = _start(unit, space)
    dtype = aval_of(unit).dtype
    right = jnp.zeros(space + 1, dtype).at[0].set(to_dtype(norm, dtype))
    rotations = jnp.zeros((space, 2), dtype)

    def goes_on(state: Any) -> Any:
        *_, error, k = state
        return (k < space) & (error > limit)

    def step(state: Any) -> Any:
        basis, rows, right, rotations, _, k = state
        basis, row, _ = _extended(operator, basis, k)
        row = lax.fori_loop(0, k, lambda j, row: _rotated(row, j, rotations[j]), row)
        rotation = _rotation(row[k], row[k + 1])
        right = _rotated(right, k, rotation)
        rows = rows.at[k].set(_rotated(row, k, rotation))
        error = jnp.abs(right[k + 1])
        return basis, rows, right, rotations.at[k].set(rotation), error, k + 1

    state = (basis, rows, right, rotations, norm, np.int32(0))
    basis, rows, right, _, _, k = lax.while_loop(goes_on, step, state)
    # The last element is the residual norm, not a coefficient.
    return solve_triangular(rows[:, :-1].T, right.at[k].set(0)[:-1]), basis


def _rotation(a: Any, b: Any) -> Any:
    """(cosine, sine) with which the second of two numbers becomes 0."""
    length = jnp.hypot(jnp.abs(a), jnp.abs(b))
    safe = to_dtype(where(length == 0, 1, length), aval_of(a).dtype)
    return jnp.stack([where(length == 0, 1, conjugate(a) / safe), conjugate(b) / safe])


def _rotated(vector: Any, k: Any, rotation: Any) -> Any:
    """Elements k and k + 1 in the rotated plane."""
    a, b, cosine, sine = vector[k], vector[k + 1], rotation[0], rotation[1]
    first, second = cosine * a + sine * b, conjugate(cosine) * b - conjugate(sine) * a
    return vector.at[k].set(first).at[k + 1].set(second)
