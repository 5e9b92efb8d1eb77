"""Decompositions of matrices, with NumPy's names and results.

Tests: tests/numpy/test_numpy_linalg.py, tests/ops/test_linalg_dtypes.py.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import numpy as np

from gpuflow import lax
from gpuflow.base.arguments import as_truth
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.lax import linalg as lax_linalg
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import promote_args_inexact
from gpuflow.ops.linalg.algebra import adjoint, as_row, swap, to_dtype
from gpuflow.ops.linalg.eigh import eigh_values
from gpuflow.ops.sorting.sort import take_along


class EigResult(NamedTuple):
    """Result of ``eig``."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """Result of ``eigh``."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Result of ``qr``."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """Result of ``svd``."""

    U: Array
    S: Array
    Vh: Array


def matrices(name: str, *operands: Any) -> list[Any]:
    """Operands as arrays of one float or complex dtype."""
    return [asarray(x) for x in (promote_args_inexact(name, x)[0] for x in operands)]


@composite
def cholesky(a: ArrayLike, *, upper: bool = False, symmetrize_input: bool = True) -> Array:
    """Return the lower triangular ``L`` with ``L @ L.conj().T == a``, or the upper one.

    Args:
        a: symmetric or Hermitian positive definite matrices of shape (..., n, n).
        upper: whether to return the adjoint of ``L``.
        symmetrize_input: whether to replace ``a`` by the mean of ``a`` and its adjoint first.

    Returns:
        An array like ``a``, of floats or complex numbers; nan for matrices that are not positive
        definite.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> jnp.linalg.cholesky(jnp.array([[4., 2.], [2., 10.]]))
        Array([[2., 0.],
               [1., 3.]], dtype=float32)
    """
    (a,) = matrices("cholesky", a)
    factor = lax_linalg.cholesky(a, symmetrize_input=symmetrize_input)
    return adjoint(factor) if upper else factor


@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: Literal[True] = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult: ...
@overload
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Array: ...
def svd(
    a: ArrayLike,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> Any:
    """Return the singular value decomposition ``a == U @ diag(S) @ Vh``.

    Args:
        a: matrices of shape (..., m, n).
        full_matrices: whether U and Vh are square; otherwise they have min(m, n) columns and rows.
        compute_uv: whether to return the singular vectors too.
        hermitian: whether ``a`` is Hermitian, which allows a faster algorithm.
        subset_by_index: index range (start, stop) of the values to return; None returns all.

    Returns:
        (U, S, Vh), or S; S is real and descending.

    Raises:
        TypeError: if the array has fewer than two axes.

    Example:
        >>> x = jnp.array([[0., 2.], [1., 0.], [0., 0.]])
        >>> u, s, vh = jnp.linalg.svd(x, full_matrices=False)
        >>> jnp.round(s, 3)
        Array([2., 1.], dtype=float32)
        >>> jnp.round(u * s @ vh, 3) + 0.0
        Array([[0., 2.],
               [1., 0.],
               [0., 0.]], dtype=float32)
    """
    (a,) = matrices("svd", a)
    if as_truth("svd", "hermitian", hermitian):
        return _hermitian_svd(a, compute_uv, subset_by_index)
    decomposition = lax_linalg.svd(
        a, full_matrices=full_matrices, compute_uv=compute_uv, subset_by_index=subset_by_index
    )
    return SVDResult(*decomposition) if compute_uv else decomposition


def _hermitian_svd(a: Any, compute_uv: bool, subset: Any) -> Any:
    """SVD by eigenvalues: their absolute values; the right vectors take the signs."""
    vectors, values = lax_linalg.eigh(a, subset_by_index=subset)
    sizes, last = lax.abs(values), aval_of(values).ndim - 1
    if not compute_uv:
        return lax.rev(lax.sort(sizes), (last,))
    order = lax.iota(np.int32, aval_of(sizes).shape, last)
    sizes, order, signs = (
        lax.rev(x, (last,)) for x in lax.sort((sizes, order, lax.sign(values)), num_keys=1)
    )
    columns = lax.broadcast_in_dim(order, aval_of(vectors).shape, (*range(last), last + 1))
    left = take_along(vectors, columns, last + 1)
    signed = lax.mul(left, as_row(to_dtype(signs, aval_of(left).dtype)))
    return SVDResult(left, sizes, adjoint(signed))


def svdvals(x: ArrayLike, /) -> Array:
    """Return the singular values of matrices, in descending order.

    Args:
        x: matrices of shape (..., m, n).

    Returns:
        Floats of shape (..., min(m, n)).

    Raises:
        TypeError: if the array has fewer than two axes.

    Example:
        >>> jnp.round(jnp.linalg.svdvals(jnp.array([[0., 2.], [3., 0.]])), 3)
        Array([3., 2.], dtype=float32)
    """
    return svd(x, compute_uv=False)


def eig(a: ArrayLike) -> EigResult:
    """Return eigenvalues and right eigenvectors of general matrices.

    Args:
        a: matrices of shape (..., n, n).

    Returns:
        (eigenvalues, eigenvectors), complex, in no particular order; the vectors are columns of
        norm 1. Use ``lax.linalg.eig`` to differentiate the vectors.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> values, vectors = jnp.linalg.eig(jnp.array([[2., 0.], [0., 3.]]))
        >>> values
        Array([2.+0.j, 3.+0.j], dtype=complex64)
    """
    (a,) = matrices("eig", a)
    values, vectors = lax_linalg.eig(a, compute_left_eigenvectors=False)
    return EigResult(values, vectors)


def eigvals(a: ArrayLike) -> Array:
    """Return the complex eigenvalues of general matrices, in no particular order.

    Args:
        a: matrices of shape (..., n, n).

    Returns:
        Complex numbers of shape (..., n).

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> values = jnp.linalg.eigvals(jnp.array([[0., -1.], [1., 0.]]))
        >>> jnp.sort(jnp.round(values.imag, 3))
        Array([-1.,  1.], dtype=float32)
    """
    (a,) = matrices("eigvals", a)
    (values,) = lax_linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
    return values


def _is_lower(name: str, side: str | None) -> bool:
    check(
        side in (None, "L", "U"),
        lambda: f"[{name}] UPLO must be None, 'L' or 'U'; got {side!r}. Fix: UPLO='L'.",
        ValueError,
    )
    return side != "U"


@composite
def eigh(a: ArrayLike, UPLO: str | None = None, symmetrize_input: bool = True) -> EighResult:
    """Return eigenvalues and eigenvectors of symmetric or Hermitian matrices.

    Args:
        a: matrices of shape (..., n, n).
        UPLO: the triangle to read if ``symmetrize_input`` is False, ``"L"`` or ``"U"``.
        symmetrize_input: whether to replace ``a`` by the mean of ``a`` and its adjoint first.

    Returns:
        (eigenvalues, eigenvectors): eigenvalues are real and ascend, the vectors are columns of
        norm 1.

    Raises:
        ValueError: if the matrices are not square, or ``UPLO`` is invalid.

    Example:
        >>> values, vectors = jnp.linalg.eigh(jnp.array([[0., 2.], [2., 0.]]))
        >>> jnp.round(values, 3)
        Array([-2.,  2.], dtype=float32)
        >>> jnp.round(vectors * values @ vectors.T, 3) + 0.0
        Array([[0., 2.],
               [2., 0.]], dtype=float32)
    """
    (a,) = matrices("eigh", a)
    vectors, values = lax_linalg.eigh(
        a, lower=_is_lower("eigh", UPLO), symmetrize_input=symmetrize_input
    )
    return EighResult(values, vectors)


@composite
def eigvalsh(a: ArrayLike, UPLO: str | None = "L", *, symmetrize_input: bool = True) -> Array:
    """Return the real eigenvalues of symmetric or Hermitian matrices, ascending.

    Args:
        a: matrices of shape (..., n, n).
        UPLO: the triangle to read if ``symmetrize_input`` is False, ``"L"`` or ``"U"``.
        symmetrize_input: whether to replace ``a`` by the mean of ``a`` and its adjoint first.

    Returns:
        Floats of shape (..., n).

    Raises:
        ValueError: if the matrices are not square, or ``UPLO`` is invalid.

    Example:
        >>> jnp.round(jnp.linalg.eigvalsh(jnp.array([[0., 2.], [2., 0.]])), 3)
        Array([-2.,  2.], dtype=float32)
    """
    (a,) = matrices("eigvalsh", a)
    lower = _is_lower("eigvalsh", UPLO)
    return eigh_values(a, lower=lower, symmetrize_input=symmetrize_input)


@overload
def qr(a: ArrayLike, mode: Literal["reduced", "full", "complete"] = "reduced") -> QRResult: ...
@overload
def qr(a: ArrayLike, mode: Literal["r"]) -> Array: ...
@overload
def qr(a: ArrayLike, mode: str) -> Any: ...
def qr(a: ArrayLike, mode: str = "reduced") -> Any:
    """Compute ``a == Q @ R`` with orthonormal columns of Q and upper triangular R.

    Args:
        a: matrices of shape (..., m, n).
        mode: ``"reduced"`` (or ``"full"``): Q has min(m, n) columns; ``"complete"``: m columns;
            ``"r"``: only R; ``"raw"``: LAPACK's form, transposed, and its factors.

    Returns:
        (Q, R), or R; with ``"raw"`` (..., n, m) reflectors and (..., min(m, n)) factors.

    Raises:
        ValueError: if the mode is unknown.
        TypeError: if the array has fewer than two axes.

    Example:
        >>> q, r = jnp.linalg.qr(jnp.array([[3., 0.], [4., 5.]]))
        >>> jnp.round(q.T @ q, 3) + 0.0
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
        >>> jnp.round(q @ r, 3) + 0.0
        Array([[3., 0.],
               [4., 5.]], dtype=float32)
    """
    (a,) = matrices("qr", a)
    check(
        mode in ("reduced", "full", "complete", "r", "raw"),
        lambda: (
            f"[qr] mode must be 'reduced', 'complete', 'r' or 'raw'; got {mode!r}. "
            "Fix: mode='reduced'."
        ),
        ValueError,
    )
    if mode == "raw":
        reflectors, factors = lax_linalg.geqrf(a)
        return QRResult(swap(reflectors), factors)
    q, r = lax_linalg.qr(a, full_matrices=mode == "complete")
    return r if mode == "r" else QRResult(q, r)
