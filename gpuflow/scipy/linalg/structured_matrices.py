"""Matrices that are made of vectors.

Tests: tests/test_stored_values.py, tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from operator import index as as_index
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.promotion import (
    broadcast_shapes,
    promote_dtypes,
    promote_dtypes_inexact,
)
from gpuflow.ops.linalg.algebra import conjugate, with_batch


def _vectors(name: str, *operands: Any) -> list[Array]:
    """Vectors along the last axis, of one dtype and with equal batches."""
    vectors = [jnp.atleast_1d(x) for x in promote_dtypes(*as_arrays(name, *operands))]
    batch = broadcast_shapes(*[aval_of(x).shape[:-1] for x in vectors], name=name)
    return [with_batch(x, batch, 1) for x in vectors]


def _gathered(vector: Any, indices: np.ndarray) -> Any:
    """A matrix of elements of a vector, by constant indices."""
    return jnp.take(vector, indices.astype(np.int32), axis=-1, mode="clip")


@explained
def block_diag(*arrs: ArrayLike) -> Array:
    """Return a block diagonal matrix.

    Args:
        arrs: matrices, vectors (which become rows) and scalars.

    Returns:
        A matrix of the common dtype, with the total numbers of rows and columns.

    Raises:
        ValueError: if there are more than two axes.

    Example:
        >>> gf.scipy.linalg.block_diag(jnp.array([[1, 2], [3, 4]]), jnp.array([5, 6]))
        Array([[1, 2, 0, 0],
               [3, 4, 0, 0],
               [0, 0, 5, 6]], dtype=int32)
    """
    matrices = promote_dtypes(*[jnp.asarray(x) for x in arrs] or [jnp.zeros((1, 0))])
    for position, x in enumerate(matrices):
        check(
            aval_of(x).ndim <= 2,
            lambda position=position, x=x: (
                f"[block_diag] operands must have at most two axes; got {aval_of(x)} at position "
                f"{position}. Fix: gpuflow.vmap."
            ),
            ValueError,
        )
    blocks = [jnp.atleast_2d(x) for x in matrices]
    widths = [aval_of(x).shape[1] for x in blocks]
    zero = np.zeros((), aval_of(blocks[0]).dtype)
    out, before = [], 0
    for block, width in zip(blocks, widths, strict=True):
        after = sum(widths) - before - width
        out.append(lax.pad(block, zero, [(0, 0, 0), (before, after, 0)]))
        before += width
    return jnp.concatenate(out, 0)


@explained
def toeplitz(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Return Toeplitz matrices, with constant diagonals.

    Args:
        c: first columns, of shape (..., m).
        r: first rows, (..., n), with an ignored first element; None uses the conjugate of ``c``.

    Returns:
        An array of shape (..., m, n).

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> gf.scipy.linalg.toeplitz(jnp.array([1, 2, 3]), jnp.array([1, 5]))
        Array([[1, 5],
               [2, 1],
               [3, 2]], dtype=int32)
    """
    c = as_array("toeplitz", c)
    c, r = _vectors("toeplitz", c, conjugate(c) if r is None else r)
    height, width = aval_of(c).shape[-1], aval_of(r).shape[-1]
    elements = jnp.concatenate([jnp.flip(c, -1), r[..., 1:]], -1)
    return _gathered(elements, height - 1 - np.arange(height)[:, None] + np.arange(width))


@explained
def hankel(c: ArrayLike, r: ArrayLike | None = None) -> Array:
    """Return Hankel matrices, with constant antidiagonals.

    Args:
        c: first columns, of shape (..., m).
        r: last rows, (..., n), with an ignored first element; None means zeros.

    Returns:
        An array of shape (..., m, n).

    Raises:
        ValueError: if scalars are given instead of vectors.

    Example:
        >>> gf.scipy.linalg.hankel(jnp.array([1, 2, 3]))
        Array([[1, 2, 3],
               [2, 3, 0],
               [3, 0, 0]], dtype=int32)
    """
    c, r = as_arrays("hankel", c, jnp.zeros_like(c) if r is None else r)
    check(
        aval_of(c).ndim > 0 and aval_of(r).ndim > 0,
        lambda: (
            f"[hankel] operands must be vectors; got {aval_of(c)} and {aval_of(r)}. "
            "Fix: jnp.atleast_1d."
        ),
        ValueError,
    )
    c, r = _vectors("hankel", c, r)
    height, width = aval_of(c).shape[-1], aval_of(r).shape[-1]
    elements = jnp.concatenate([c, r[..., 1:]], -1)
    return _gathered(elements, np.arange(height)[:, None] + np.arange(width))


@explained
def circulant(c: ArrayLike) -> Array:
    """Return circulant matrices: each column is the previous one, rotated; ``c`` is the first.

    Args:
        c: vectors (..., n).

    Returns:
        An array of shape (..., n, n).

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> gf.scipy.linalg.circulant(jnp.array([1, 2, 3]))
        Array([[1, 3, 2],
               [2, 1, 3],
               [3, 2, 1]], dtype=int32)
    """
    (c,) = _vectors("circulant", c)
    index = np.arange(aval_of(c).shape[-1])
    return _gathered(c, (index[:, None] - index) % max(len(index), 1))


@explained
def convolution_matrix(a: ArrayLike, n: int, mode: str = "full") -> Array:
    """Return the matrix with ``matrix @ v == jnp.convolve(a, v, mode)`` for vectors of size ``n``.

    Args:
        a: vectors (..., m).
        n: the number of columns, positive.
        mode: "full", "valid" or "same".

    Returns:
        An array of shape (..., k, n): k is m + n - 1 for "full", max(m, n) for "same", and
        max(m, n) - min(m, n) + 1 for "valid".

    Raises:
        ValueError: if the argument is not a vector or is empty, ``n`` is below 1, or the mode is
            unknown.

    Example:
        >>> gf.scipy.linalg.convolution_matrix(jnp.array([1, 2]), 3)
        Array([[1, 0, 0],
               [2, 1, 0],
               [0, 2, 1],
               [0, 0, 2]], dtype=int32)
    """
    count = as_index(n)
    check_choice("convolution_matrix", "mode", mode, ("full", "valid", "same"))
    check(
        count > 0,
        lambda: f"[convolution_matrix] n must be positive; got {count}. Fix: n=1.",
        ValueError,
    )
    a = as_array("convolution_matrix", a)
    shape = aval_of(a).shape
    check(
        len(shape) > 0 and shape[-1] > 0,
        lambda: (
            f"[convolution_matrix] a must be a vector with elements; got {aval_of(a)}. "
            "Fix: jnp.atleast_1d."
        ),
        ValueError,
    )
    size = aval_of(a).shape[-1]
    cut = {"full": 0, "valid": 2 * min(count, size) - 2, "same": min(count, size) - 1}[mode]
    height = size + count - 1 - cut
    index = np.arange(height)[:, None] + cut // 2 - np.arange(count)
    valid = (index >= 0) & (index < size)
    return jnp.where(valid, _gathered(a, np.where(valid, index, 0)), np.zeros((), aval_of(a).dtype))


@explained
def leslie(f: ArrayLike, s: ArrayLike) -> Array:
    """Return Leslie matrices: ``f`` is the first row, ``s`` the subdiagonal.

    Args:
        f: vectors (..., n) with n > 1.
        s: vectors (..., n - 1).

    Returns:
        An array of shape (..., n, n).

    Raises:
        operands: pytrees of arrays.

    Example:
        >>> gf.scipy.linalg.leslie(jnp.array([1., 2., 3.]), jnp.array([0.5, 0.25]))
        Array([[1.  , 2.  , 3.  ],
               [0.5 , 0.  , 0.  ],
               [0.  , 0.25, 0.  ]], dtype=float32)
    """
    f, s = _vectors("leslie", f, s)
    size = aval_of(f).shape[-1]
    check(
        size > 1 and aval_of(s).shape[-1] == size - 1,
        lambda: (
            f"[leslie] f must have two or more elements and s one less; got {aval_of(f)} and "
            f"{aval_of(s)}. Fix: s[..., :-1]."
        ),
        ValueError,
    )
    return _under_a_row(f, jnp.expand_dims(s, -1))


def _under_a_row(row: Any, below: Any) -> Any:
    """Square matrices with a first row and with columns of elements below the diagonal."""
    size = aval_of(row).shape[-1]
    diagonal = jnp.where(np.eye(size - 1, size, dtype=bool), below, 0)
    first = jnp.expand_dims(row, -2)
    return jnp.concatenate([first, diagonal.astype(aval_of(row).dtype)], -2)


@explained
def companion(a: ArrayLike) -> Array:
    """Return companion matrices, with the roots of polynomials as eigenvalues.

    Args:
        a: coefficients (..., n) with n > 1, highest power first.

    Returns:
        Matrices of shape (..., n - 1, n - 1); inf and nan where the first coefficient is 0.

    Raises:
        ValueError: if there are fewer coefficients.

    Example:
        >>> gf.scipy.linalg.companion(jnp.array([1., -3., 2.]))
        Array([[ 3., -2.],
               [ 1.,  0.]], dtype=float32)
    """
    (a,) = promote_dtypes_inexact(as_array("companion", a))
    a = jnp.atleast_1d(a)
    check(
        aval_of(a).shape[-1] > 1,
        lambda: (
            f"[companion] there must be two or more coefficients; got {aval_of(a)}. "
            "Fix: the highest power first."
        ),
        ValueError,
    )
    row = -a[..., 1:] / a[..., :1]
    return _under_a_row(row, jnp.ones((*aval_of(row).shape[:-1], 1, 1), aval_of(row).dtype))


@explained
def fiedler(a: ArrayLike) -> Array:
    """Return Fiedler matrices, the absolute differences of all pairs of elements.

    Args:
        a: vectors (..., n).

    Returns:
        An array of shape (..., n, n): ``abs(a[i] - a[j])``.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> gf.scipy.linalg.fiedler(jnp.array([1, 4, 9]))
        Array([[0, 3, 8],
               [3, 0, 5],
               [8, 5, 0]], dtype=int32)
    """
    a = jnp.atleast_1d(as_array("fiedler", a))
    return jnp.abs(jnp.expand_dims(a, -1) - jnp.expand_dims(a, -2))


@explained
def fiedler_companion(a: ArrayLike) -> Array:
    """Return banded matrices with the roots of polynomials as eigenvalues.

    Args:
        a: coefficients (..., n), highest power first.

    Returns:
        Matrices of shape (..., n - 1, n - 1); inf and nan where the first coefficient is 0.

    Raises:
        ValueError: if there are no coefficients.

    Source:
        Fiedler, A note on companion matrices, Linear Algebra Appl. 372 (2003), 325.

    Example:
        >>> gf.scipy.linalg.fiedler_companion(jnp.array([1., -6., 11., -6.]))
        Array([[  6., -11.,   1.],
               [  1.,   0.,   0.],
               [  0.,   6.,   0.]], dtype=float32)
    """
    (a,) = promote_dtypes_inexact(as_array("fiedler_companion", a))
    a = jnp.atleast_1d(a)
    check(
        aval_of(a).shape[-1] > 0,
        lambda: (
            f"[fiedler_companion] there must be a coefficient; got {aval_of(a)}. Fix: jnp.ones(1)."
        ),
        ValueError,
    )
    size = aval_of(a).shape[-1] - 1
    # 0 encodes zeros, n encodes -a[n] / a[0]; ones have a mask of their own.
    taken, ones = np.zeros((size, size), int), np.zeros((size, size), bool)
    if size:
        taken[0, 0] = 1
    for k in range(size):
        if k % 2 == 0 and k + 1 < size:
            taken[k, k + 1] = k + 2
        if k % 2 == 0 and k + 2 < size:
            ones[k, k + 2] = True
        if k % 2 == 0 and k >= 2:
            taken[k, k - 1] = k + 1
        if k == 1 or (k % 2 and k >= 3):
            ones[k, max(k - 2, 0)] = True
    scaled = _gathered(-a / a[..., :1], taken)
    return jnp.where(taken > 0, scaled, ones.astype(aval_of(a).dtype))
