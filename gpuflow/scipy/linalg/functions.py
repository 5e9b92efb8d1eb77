"""Functions of matrices: exponentials, square roots and others.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import jvp
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.loops.branches import cond
from gpuflow.control.loops.fori import fori_loop
from gpuflow.control.loops.scan_and_map import scan
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.exact_products import exact_dot
from gpuflow.numpy.solvers import check_square
from gpuflow.numpy.vectorizing import vectorize
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import (
    adjoint,
    exact_matmul,
    identity_like,
    is_diagonal,
    real_dtype,
    swap,
    to_dtype,
)
from gpuflow.scipy.linalg.factorizations import floats, inexact
from gpuflow.scipy.linalg.forms import schur
from gpuflow.scipy.linalg.systems import solve_triangular

# Numerators of the Padé approximants of exp of degree 7 and 13, lowest power first, and the norms
# up to which they are as precise as float32 and float64.
# Source: Higham, The scaling and squaring method for the matrix exponential revisited, SIAM J.
# Matrix Anal. Appl. 26 (2005), 1179, tables 2.3 and (2.7).
_SINGLE = (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)
_DOUBLE = (
    64764752532480000,
    32382376266240000,
    7771770303897600,
    1187353796428800,
    129060195264000,
    10559470521600,
    670442572800,
    33522128640,
    1323241920,
    40840800,
    960960,
    16380,
    182,
    1,
)
_SINGLE_LIMIT, _DOUBLE_LIMIT = 3.925724783138660, 5.371920351148152


@explained
def expm(A: ArrayLike, *, upper_triangular: bool = False, max_squarings: int = 16) -> Array:
    """Return the exponentials of square matrices, by scaling and squaring.

    Args:
        A: matrices of shape (..., n, n).
        upper_triangular: whether the matrices are upper triangular, which makes one step cheaper.
        max_squarings: maximum number of squarings; matrices with a norm that requires more give
            nan.

    Returns:
        Floats or complex numbers of the shape of ``A``.

    Raises:
        TypeError: if floats have 16 bits or fewer.
        ValueError: if the matrices are not square.

    Source:
        Higham, The scaling and squaring method for the matrix exponential revisited, SIAM J. Matrix
        Anal. Appl. 26 (2005), 1179.

    Example:
        >>> jnp.round(gf.scipy.linalg.expm(jnp.array([[0., 1.], [0., 0.]])), 3)
        Array([[1., 1.],
               [0., 1.]], dtype=float32)
    """
    (A,) = inexact("expm", A)
    check(
        dtypes.bits_of(aval_of(A).dtype) >= 32,
        lambda: (
            f"[expm] matrices must have 32 bits or more, as steps overflow 16; got {aval_of(A)}. "
            "Fix: expm(A.astype(jnp.float32))."
        ),
    )
    check_square("expm", A)
    double = real_dtype(aval_of(A).dtype) == np.float64
    limit = _DOUBLE_LIMIT if double else _SINGLE_LIMIT
    norm = jnp.max(jnp.sum(jnp.abs(A), -2, keepdims=True), -1, keepdims=True, initial=0)
    over = lax.stop_gradient(jnp.log2(norm / limit))
    count = jnp.clip(jnp.ceil(over), 0, max_squarings)
    scaled = A * jnp.exp2(-count).astype(aval_of(A).dtype)
    numerator, denominator = _pade(scaled, _DOUBLE if double else _SINGLE)
    if upper_triangular:
        out = solve_triangular(denominator, numerator)
    else:
        out = jnp.linalg.solve(denominator, numerator)
    out = _squared(out, count, max_squarings)
    return jnp.where(jnp.floor(over) > max_squarings, jnp.nan, out)


def _pade(a: Any, coefficients: tuple[int, ...]) -> tuple[Any, Any]:
    """Numerator and denominator: sums of even powers, plus and minus ``a`` times such a sum."""
    dtype = aval_of(a).dtype
    square = exact_matmul(a, a)
    powers = [square]
    while len(powers) < min(3, len(coefficients) // 2 - 1):
        powers.append(exact_matmul(powers[-1], square))

    def total(series: tuple[int, ...]) -> Any:
        low = identity_like(a) * dtype.type(series[0])
        for power, factor in zip(powers, series[1:4], strict=False):
            low = low + power * dtype.type(factor)
        if len(series) <= 4:
            return low
        high = sum(p * dtype.type(f) for p, f in zip(powers, series[4:], strict=True))
        return low + exact_matmul(powers[-1], high)

    odd = exact_matmul(a, total(coefficients[1::2]))
    even = total(coefficients[::2])
    return even + odd, even - odd


def _squared(x: Any, counts: Any, most: int) -> Any:
    """Each matrix squared as often as its count says; steps that no matrix needs are skipped."""
    needed = jnp.max(counts, initial=0)

    def step(x: Any, k: Any) -> tuple[Any, None]:
        squared = cond(k < needed, lambda: jnp.where(k < counts, exact_matmul(x, x), x), lambda: x)
        return squared, None

    return scan(step, x, np.arange(most, dtype=aval_of(counts).dtype))[0]


@explained
def expm_frechet(
    A: ArrayLike, E: ArrayLike, *, method: str | None = None, compute_expm: bool = True
) -> Any:
    """Return the derivative of ``expm`` at ``A`` in the direction ``E``.

    Args:
        A, E: matrices of one shape (..., n, n).
        method: accepted; no effect.
        compute_expm: whether to return the exponential too.

    Returns:
        (exponential, derivative), or the derivative.

    Raises:
        TypeError: if arguments are integers, or dtypes differ.
        ValueError: if the matrices are not square, or differ in shape.

    Example:
        >>> A, E = jnp.zeros((2, 2)), jnp.array([[0., 1.], [2., 3.]])
        >>> jnp.round(gf.scipy.linalg.expm_frechet(A, E, compute_expm=False), 3)
        Array([[0., 1.],
               [2., 3.]], dtype=float32)
    """
    del method
    A, E = jnp.asarray(A), jnp.asarray(E)
    check_square("expm_frechet", A)
    check_square("expm_frechet", E)
    check(
        aval_of(A).shape == aval_of(E).shape,
        lambda: (
            f"[expm_frechet] A and E must have one shape; got {aval_of(A)} and {aval_of(E)}. "
            "Fix: broadcast E."
        ),
        ValueError,
    )
    A, E = floats("expm_frechet", A, E)
    value, derivative = jvp(expm, (A,), (E,))
    return (value, derivative) if compute_expm else derivative


# --- by Schur forms ------------------------------------------------------------------------


def _columns_of(
    form: Any, values: Any, matrix_of: Callable[..., Any], right_of: Callable[..., Any]
) -> Any:
    """An upper triangular matrix with a given diagonal, column by column.

    The elements of a column above the diagonal solve a triangular system made of the columns
    before it. Where a pivot is 0, the right-hand side itself is taken.

    Args:
        form: an upper triangular matrix (n, n). values: the diagonal of the result.
        matrix_of: (columns before, k) -> the matrix of the system of column k.
        right_of: (columns before, k) -> its right-hand side; elements from k on are not read.
    """
    size = aval_of(form).shape[0]
    index, on_diagonal = np.arange(size, dtype=np.int32), is_diagonal((size, size))

    def column(k: Any, columns_before: Any) -> Any:
        above = index < k
        matrix = where(above[:, None] & above[None, :], matrix_of(columns_before, k), 0)
        matrix = where(on_diagonal & (matrix == 0), 1, matrix)
        solution = solve_triangular(matrix, where(above, right_of(columns_before, k), 0))
        return columns_before.at[:, k].set(where(index == k, values[k], solution))

    return fori_loop(0, size, column, jnp.zeros_like(form))


@explained
def sqrtm(A: ArrayLike, blocksize: int = 1) -> Array:
    """Return the principal square roots of matrices.

    Args:
        A: matrices of shape (..., n, n).
        blocksize: must be 1.

    Returns:
        Complex matrices. They are differentiable if the square root is nonsingular.

    Raises:
        ValueError: if the matrices are not square.
        NotImplementedError: if ``blocksize`` is given.

    Source:
        Björck and Hammarling, A Schur method for the square root of a matrix, Linear Algebra
        Appl. 52/53 (1983), 127.

    Example:
        >>> jnp.round(gf.scipy.linalg.sqrtm(jnp.array([[4., 0.], [0., 9.]])).real, 3)
        Array([[2., 0.],
               [0., 3.]], dtype=float32)
    """
    check(
        blocksize <= 1,
        lambda: f"[sqrtm] blocksize must be 1; got {blocksize}. Fix: leave it out.",
        NotImplementedError,
    )
    (A,) = inexact("sqrtm", A)
    check_square("sqrtm", A)
    return vectorize(_sqrtm, signature="(n,n)->(n,n)")(A)


@custom_jvp
def _sqrtm(a: Any) -> Any:
    form, vectors = schur(a, output="complex")
    values = jnp.sqrt(jnp.diagonal(form))
    on_diagonal = is_diagonal(aval_of(form).shape)

    # With U U = T, column k of U above the diagonal: (U + u_kk) u = t.
    def matrix_of(root_before: Any, k: Any) -> Any:
        return root_before + where(on_diagonal, values[k], 0)

    root = _columns_of(form, values, matrix_of, lambda root_before, k: form[:, k])
    # Two eigenvalues 0 that are coupled have no root.
    sums = values[:, None] + values[None, :]
    root = where((sums == 0) & (root != 0) & ~on_diagonal, np.inf, root)
    return exact_matmul(exact_matmul(vectors, root), adjoint(vectors))


@_sqrtm.defjvp
def _sqrtm_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """From X X = A: X dX + dX X = dA."""
    root = _sqrtm(*primals)
    return root, _sylvester(root, to_dtype(tangents[0], aval_of(root).dtype))


def _sylvester(x: Any, right: Any) -> Any:
    """The matrix Y with ``x Y + Y x == right``."""
    return lax.custom_linear_solve(
        lambda y: exact_matmul(x, y) + exact_matmul(y, x),
        right,
        solve=lambda _, right: _sylvester_by_schur(x, right),
        transpose_solve=lambda _, right: _sylvester_by_schur(swap(x), right),
    )


def _sylvester_by_schur(x: Any, right: Any) -> Any:
    """Solve the triangular equation column by column.

    Source: Bartels and Stewart, Solution of the matrix equation AX + XB = C, Communications of the
    ACM 15 (1972), 820.
    """
    form, vectors = schur(x, output="complex")
    inner = exact_matmul(exact_matmul(adjoint(vectors), right), vectors)
    on_diagonal = is_diagonal(aval_of(form).shape)

    def column(k: Any, columns_before: Any) -> Any:
        matrix = form + where(on_diagonal, form[k, k], 0)
        solution = solve_triangular(matrix, inner[:, k] - exact_dot(columns_before, form[:, k]))
        return columns_before.at[:, k].set(solution)

    solved = fori_loop(0, aval_of(form).shape[0], column, jnp.zeros_like(form))
    return exact_matmul(exact_matmul(vectors, solved), adjoint(vectors))


@explained
def funm(A: ArrayLike, func: Callable[[Any], Any], disp: bool = True) -> Any:
    """Compute a matrix function, given as a function of scalars.

    Args:
        A: a matrix of shape (n, n).
        func: an elementwise function of a complex vector.
        disp: if False, an estimate of the relative error is returned too.

    Returns:
        A complex matrix, or (matrix, error). Equal eigenvalues make it inaccurate.

    Raises:
        TypeError: if an argument is integer or boolean.
        ValueError: if the matrix is not square.

    Source:
        Parlett, A recurrence among the elements of functions of triangular matrices, Linear
        Algebra Appl. 14 (1976), 117.

    Example:
        >>> out = gf.scipy.linalg.funm(jnp.array([[1., 2.], [0., 3.]]), lambda x: x * x)
        >>> jnp.round(out.real, 3) + 0.0
        Array([[1., 8.],
               [0., 9.]], dtype=float32)
    """
    (A,) = floats("funm", A)
    check(
        aval_of(A).ndim == 2,
        lambda: f"[funm] the operand must be one matrix; got {aval_of(A)}. Fix: gpuflow.vmap.",
        ValueError,
    )
    check_square("funm", A)
    form, vectors = schur(A, output="complex")
    diagonal = jnp.diagonal(form)
    values = jnp.asarray(func(diagonal)).astype(aval_of(form).dtype)
    on_diagonal = is_diagonal(aval_of(form).shape)

    # From F T = T F, column k of F above the diagonal: (T - t_kk) f = F t - t f_kk.
    def matrix_of(columns_before: Any, k: Any) -> Any:
        del columns_before
        return form - where(on_diagonal, diagonal[k], 0)

    def right_of(columns_before: Any, k: Any) -> Any:
        return exact_dot(columns_before, form[:, k]) - form[:, k] * values[k]

    inner = _columns_of(form, values, matrix_of, right_of)
    out = exact_matmul(exact_matmul(vectors, inner), adjoint(vectors))
    return out if disp else (out, _error_of(out, form))


def _error_of(out: Any, form: Any) -> Any:
    """Error estimate: rounding over the smallest distance of two eigenvalues."""
    diagonal = jnp.diagonal(form)
    eps = np.finfo(aval_of(form).dtype).eps
    gaps = jnp.abs(diagonal[:, None] - diagonal[None, :])
    gaps = where(is_diagonal(aval_of(form).shape), jnp.abs(diagonal[0]), gaps)
    least = jnp.min(gaps)
    least = jnp.where(least == 0, eps, least)
    norm = jnp.linalg.norm(jnp.triu(form, 1), 1)
    error = jnp.minimum(1, jnp.maximum(eps, eps / least * norm))
    return jnp.where(jnp.any(jnp.isinf(out)), np.inf, error)
