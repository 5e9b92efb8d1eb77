"""Schur, Hessenberg and polar forms of matrices.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.loops.branches import cond
from gpuflow.control.loops.fori import fori_loop
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.solvers import check_square
from gpuflow.numpy.vectorizing import vectorize
from gpuflow.ops.linalg.algebra import (
    adjoint,
    columns,
    complex_dtype,
    conjugate,
    exact_matmul,
    rows,
    through_float32,
    to_dtype,
)
from gpuflow.scipy.linalg.factorizations import floats, inexact


@explained
def schur(a: ArrayLike, output: str = "real") -> tuple[Array, Array]:
    """Return the Schur form ``a == Z @ T @ Z.conj().T`` with a unitary Z.

    Args:
        a: matrices of shape (..., n, n).
        output: "real": T of real matrices is real, with blocks of size 2 for conjugate pairs of
            eigenvalues; "complex": T is triangular.

    Returns:
        (T, Z). They are not differentiable, as in JAX.

    Raises:
        TypeError: if the matrices are integers and the output is not complex.
        ValueError: if the matrices are not square, or ``output`` is unknown.

    Example:
        >>> T, Z = gf.scipy.linalg.schur(jnp.array([[2., 1.], [1., 2.]]))
        >>> jnp.round(jnp.sort(jnp.diagonal(T)), 3)
        Array([1., 3.], dtype=float32)
    """
    check_choice("schur", "output", output, ("real", "complex"))
    (a,) = (inexact if output == "complex" else floats)("schur", a)
    check_square("schur", a)
    if output == "complex":
        a = to_dtype(a, complex_dtype(aval_of(a).dtype))
    form, vectors = lax.linalg.schur(a)
    return form, vectors


@explained
def rsf2csf(T: ArrayLike, Z: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """Convert the real Schur form to the complex one.

    Args:
        T: real Schur forms of shape (..., n, n).
        Z: Schur vectors, of the same shape.
        check_finite: accepted; no effect.

    Returns:
        (T, Z), complex, with a triangular T.

    Raises:
        ValueError: if the matrices are not square, or differ in size.

    Example:
        >>> T, Z = gf.scipy.linalg.schur(jnp.array([[0., -1.], [1., 0.]]))
        >>> T, Z = gf.scipy.linalg.rsf2csf(T, Z)
        >>> jnp.sort(jnp.round(jnp.diagonal(T).imag, 3))
        Array([-1.,  1.], dtype=float32)
    """
    del check_finite
    T, Z = inexact("rsf2csf", T, Z)
    check_square("rsf2csf", T)
    check_square("rsf2csf", Z)
    check(
        aval_of(T).shape[-1] == aval_of(Z).shape[-1],
        lambda: (
            f"[rsf2csf] T and Z must have one size; got {aval_of(T)} and {aval_of(Z)}. "
            "Fix: T, Z = schur(a)."
        ),
        ValueError,
    )
    dtype = complex_dtype(aval_of(T).dtype)
    to_complex = vectorize(_triangular_form, signature="(n,n),(n,n)->(n,n),(n,n)")
    return to_complex(to_dtype(T, dtype), to_dtype(Z, dtype))


def _triangular_form(form: Any, vectors: Any) -> tuple[Any, Any]:
    """A plane rotation for each block of size 2, from the last one up."""
    size = aval_of(form).shape[0]
    if size < 2:
        return form, vectors
    eps = np.finfo(aval_of(form).dtype).eps

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        form, vectors = state
        low = size - 1 - k
        block = lax.dynamic_slice(form, (low - 1, low - 1), (2, 2))
        below = block[1, 0]
        is_block = jnp.abs(below) > eps * (jnp.abs(block[0, 0]) + jnp.abs(block[1, 1]))
        reduced = cond(is_block, lambda: _rotated(form, vectors, low, block), lambda: state)
        return reduced[0].at[low, low - 1].set(0), reduced[1]

    return fori_loop(0, size - 1, step, (form, vectors))


def _rotated(form: Any, vectors: Any, low: Any, block: Any) -> tuple[Any, Any]:
    """The rotation that makes one block triangular, on both sides.

    An eigenvalue of [[a, b], [c, d]] less d is h + sqrt(h^2 + b c) with h = (a - d) / 2.
    """
    half = 0.5 * (block[0, 0] - block[1, 1])
    offset = half + jnp.sqrt(half * half + block[0, 1] * block[1, 0])
    length = to_dtype(jnp.hypot(jnp.abs(offset), jnp.abs(block[1, 0])), aval_of(form).dtype)
    c, s = offset / length, block[1, 0] / length
    rotation = jnp.stack([jnp.stack([jnp.conj(c), s]), jnp.stack([-s, c])])
    both = lax.dynamic_slice_in_dim(form, low - 1, 2, 0)
    form = lax.dynamic_update_slice_in_dim(form, exact_matmul(rotation, both), low - 1, 0)

    def from_right(x: Any) -> Any:
        pair = lax.dynamic_slice_in_dim(x, low - 1, 2, 1)
        return lax.dynamic_update_slice_in_dim(x, exact_matmul(pair, adjoint(rotation)), low - 1, 1)

    return from_right(form), from_right(vectors)


@explained
def hessenberg(
    a: ArrayLike, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Any:
    """Return the Hessenberg form ``a == q @ h @ q.conj().T`` with a unitary q.

    Args:
        a: matrices of shape (..., n, n).
        calc_q: whether to return q too.
        overwrite_a, check_finite: accepted; no effect.

    Returns:
        h, or (h, q): h is 0 below the first subdiagonal.

    Raises:
        TypeError: if an argument is integer or boolean.
        ValueError: if the matrices are not square.

    Example:
        >>> x = jnp.arange(9.).reshape(3, 3)
        >>> h, q = gf.scipy.linalg.hessenberg(x, calc_q=True)
        >>> jnp.round(q @ h @ q.T, 3) + 0.0
        Array([[0., 1., 2.],
               [3., 4., 5.],
               [6., 7., 8.]], dtype=float32)
    """
    del overwrite_a, check_finite
    (a,) = floats("hessenberg", a)
    check_square("hessenberg", a)
    size = aval_of(a).shape[-1]
    if size == 0:
        return (jnp.zeros_like(a), jnp.zeros_like(a)) if calc_q else jnp.zeros_like(a)
    form, factors = lax.linalg.hessenberg(a)
    h = jnp.triu(form, -1)
    if not calc_q:
        return h
    inner = lax.linalg.householder_product(columns(rows(form, 1, size), 0, size - 1), factors)
    edges = [(0, 0, 0)] * (aval_of(a).ndim - 2)
    padded = lax.pad(inner, np.zeros((), aval_of(a).dtype), [*edges, (1, 0, 0), (1, 0, 0)])
    corner = np.zeros((size, size), bool)
    corner[0, 0] = True
    return h, jnp.where(corner, 1, padded)


# --- polar ---------------------------------------------------------------------------------


@explained
def polar(
    a: ArrayLike,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Array, Array]:
    """Compute the polar decomposition ``a == u @ p``, or ``p @ u``, u unitary and p Hermitian.

    Args:
        a: matrices of shape (..., m, n).
        side: "right": ``u @ p``; "left": ``p @ u``.
        method: "qdwh": Halley's iteration, which requires m >= n for "right" and m <= n for "left";
            "svd": any shape.
        eps: target precision of the iteration; None uses that of the dtype.
        max_iterations: maximum number of iterations; None means 10.

    Returns:
        (u, p).

    Raises:
        TypeError: if an argument is integer or boolean.
        ValueError: if an argument is not a matrix, or the side or method is unknown.
        NotImplementedError: if shapes are not as described above.

    Example:
        >>> u, p = gf.scipy.linalg.polar(jnp.array([[0., -2.], [3., 0.]]))
        >>> jnp.round(u, 3) + 0.0
        Array([[ 0., -1.],
               [ 1.,  0.]], dtype=float32)
        >>> jnp.round(p, 3) + 0.0
        Array([[3., 0.],
               [0., 2.]], dtype=float32)
    """
    check_choice("polar", "side", side, ("right", "left"))
    check_choice("polar", "method", method, ("qdwh", "svd"))
    (a,) = floats("polar", a)
    check(
        aval_of(a).ndim >= 2,
        lambda: f"[polar] the operand must be a matrix; got {aval_of(a)}. Fix: a[:, None].",
        ValueError,
    )
    right = side == "right"
    height, width = aval_of(a).shape[-2:]
    if method == "svd":
        return _polar_by_svd(a, right)
    check(
        height >= width if right else height <= width,
        lambda: (
            f"[polar] method='qdwh' needs {'rows >= columns' if right else 'rows <= columns'} for "
            f"side={side!r}; got {aval_of(a)}. Fix: method='svd'."
        ),
        NotImplementedError,
    )

    def decompose(x: Any) -> tuple[Any, Any]:
        return _by_halley(x, eps, max_iterations)

    oriented = a if right else adjoint(a)
    unitary, definite = vectorize(decompose, signature="(m,n)->(m,n),(n,n)")(oriented)
    return (unitary, definite) if right else (adjoint(unitary), adjoint(definite))


@partial(custom_jvp, nondiff_argnums=(1, 2))
def _by_halley(a: Any, eps: float | None, max_iterations: int | None) -> tuple[Any, Any]:
    return lax.linalg.qdwh(a, eps=eps, max_iterations=max_iterations)[:2]


@_by_halley.defjvp
def _by_halley_jvp(
    eps: float | None, max_iterations: int | None, primals: Any, tangents: Any
) -> tuple[Any, Any]:
    """From A = U P: ``W P + P W = U^H dA - dA^H U`` for ``W = U^H dU``.

    Only sums of singular values are divided by, so equal singular values are allowed.
    """
    (a,), (tangent,) = primals, tangents
    u, p = _by_halley(a, eps, max_iterations)
    vectors, values = lax.linalg.eigh(p)

    def between(x: Any, quotients: Any) -> Any:
        inner = exact_matmul(exact_matmul(adjoint(vectors), x), vectors)
        inner = inner * to_dtype(quotients, aval_of(inner).dtype)
        return exact_matmul(exact_matmul(vectors, inner), adjoint(vectors))

    along = exact_matmul(adjoint(u), tangent)
    d_rotation = between(along - adjoint(along), 1 / (values[:, None] + values[None, :]))
    beyond = tangent - exact_matmul(u, along)
    inverse = exact_matmul(vectors / to_dtype(values, aval_of(vectors).dtype), adjoint(vectors))
    d_u = exact_matmul(u, d_rotation) + exact_matmul(beyond, inverse)
    return (u, p), (d_u, along - exact_matmul(d_rotation, p))


@through_float32
def _polar_by_svd(a: Any, right: bool) -> tuple[Any, Any]:
    u, s, vh = lax.linalg.svd(a, full_matrices=False)
    s = jnp.expand_dims(to_dtype(s, aval_of(u).dtype), -2)
    if right:
        return exact_matmul(u, vh), exact_matmul(conjugate(jnp.swapaxes(vh, -1, -2)) * s, vh)
    return exact_matmul(u, vh), exact_matmul(u * s, adjoint(u))
