"""Matrices defined by their size: constants, each element rounded once.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_integer, check_choice
from gpuflow.base.errors import OutOfMemoryError, check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import Array, DTypeLike
from gpuflow.numpy.promotion import user_dtype


def _constant(values: Any, dtype: Any = None) -> Any:
    """Values of Python or NumPy in the default float dtype, each rounded once."""
    return jnp.asarray(np.asarray(values, np.float64), dtype or dtypes.default_float())


_MAX_ROWS = 1 << 15  # 8 GiB of float64
_MAX_BINOMIAL = 200  # larger ones have entries beyond float64


def _size(name: str, n: Any, most: int = _MAX_ROWS) -> int:
    """The size of a matrix that the host computes.

    Raises:
        TypeError: ``n`` is not an integer.
        OutOfMemoryError: more than ``most`` rows.
    """
    size = as_integer(name, "n", n)
    check(
        size <= most,
        lambda: (
            f"[{name}] n must be at most {most:,}; got one of {size.bit_length()} bits. "
            "Fix: a smaller n."
        ),
        OutOfMemoryError,
    )
    return size


@explained
def hilbert(n: int) -> Array:
    """Return the Hilbert matrix ``1 / (i + j + 1)``.

    Args:
        n: size of the matrix.

    Returns:
        Floats of the default dtype, (n, n).

    Raises:
        TypeError: if ``n`` is not an int.

    Example:
        >>> gf.scipy.linalg.hilbert(2)[0]
        Array([1. , 0.5], dtype=float32)
    """
    index = np.arange(_size("hilbert", n), dtype=np.float64)
    return _constant(1 / (index[:, None] + index + 1))


@explained
def invhilbert(n: int) -> Array:
    """Return the inverse of ``hilbert(n)``, from binomial coefficients.

    Args:
        n: size of the matrix.

    Returns:
        Floats of the default dtype, (n, n), each rounded once.

    Raises:
        TypeError: if ``n`` is not an int.

    Example:
        >>> gf.scipy.linalg.invhilbert(2)
        Array([[ 4., -6.],
               [-6., 12.]], dtype=float32)
    """
    size = _size("invhilbert", n, _MAX_BINOMIAL)

    def element(i: int, j: int) -> float:
        ways = comb(size + i, size - j - 1) * comb(size + j, size - i - 1) * comb(i + j, i) ** 2
        return float((-1) ** (i + j) * (i + j + 1) * ways)

    return _constant([[element(i, j) for j in range(size)] for i in range(size)]).reshape(
        size, size
    )


_PASCAL_KINDS = ("symmetric", "lower", "upper")


def _pascal(lower: list[list[int]], kind: str, left_upper: bool) -> list[list[float]]:
    """One of three matrices of a lower triangle of integers, exact until the end."""
    upper = [list(row) for row in zip(*lower, strict=True)]
    if kind != "symmetric":
        return [[float(v) for v in row] for row in (lower if kind == "lower" else upper)]
    first, second = (upper, lower) if left_upper else (lower, upper)
    indices = range(len(lower))
    return [
        [float(sum(first[i][k] * second[k][j] for k in indices)) for j in indices] for i in indices
    ]


@explained
def pascal(n: int, kind: str | None = None) -> Array:
    """Return the matrix of binomial coefficients.

    Args:
        n: size of the matrix.
        kind: "symmetric" (also for None): ``lower @ upper``; "lower": element (i, j) is i over j;
            "upper": the transpose of that.

    Returns:
        f32[n, n], also with x64, as in JAX.

    Raises:
        ValueError: if the kind is unknown.
        TypeError: if ``n`` is not an int.

    Example:
        >>> gf.scipy.linalg.pascal(3)
        Array([[1., 1., 1.],
               [1., 2., 3.],
               [1., 3., 6.]], dtype=float32)
        >>> gf.scipy.linalg.pascal(3, "lower")
        Array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 2., 1.]], dtype=float32)
    """
    kind = "symmetric" if kind is None else kind
    check_choice("pascal", "kind", kind, _PASCAL_KINDS)
    size = _size("pascal", n, _MAX_BINOMIAL)
    lower = [[comb(i, j) for j in range(size)] for i in range(size)]
    return _constant(_pascal(lower, kind, False), np.float32).reshape(size, size)


@explained
def invpascal(n: int, kind: str | None = None) -> Array:
    """Return the inverse of ``pascal(n, kind)``, in the default float dtype.

    Args:
        n: size of the matrix.
        kind: "symmetric" (also for None), "lower" or "upper".

    Returns:
        Floats of the default dtype, (n, n).

    Raises:
        ValueError: if the kind is unknown.
        TypeError: if ``n`` is not an int.

    Example:
        >>> gf.scipy.linalg.invpascal(3, "lower")
        Array([[ 1.,  0.,  0.],
               [-1.,  1.,  0.],
               [ 1., -2.,  1.]], dtype=float32)
    """
    kind = "symmetric" if kind is None else kind
    check_choice("invpascal", "kind", kind, _PASCAL_KINDS)
    size = _size("invpascal", n, _MAX_BINOMIAL)
    lower = [[(-1) ** (i + j) * comb(i, j) for j in range(size)] for i in range(size)]
    return _constant(_pascal(lower, kind, True)).reshape(size, size)


@explained
def helmert(n: int, full: bool = False) -> Array:
    """Return the Helmert matrix: orthonormal rows that compare an element with the mean before.

    Args:
        n: the number of columns, positive.
        full: whether to add a first row of equal elements, which makes the matrix square.

    Returns:
        Floats of the default dtype, (n - 1, n) or (n, n).

    Raises:
        ValueError: if ``n`` is below 1.
        TypeError: if ``n`` is not an int.

    Example:
        >>> jnp.round(gf.scipy.linalg.helmert(3), 3)
        Array([[ 0.707, -0.707,  0.   ],
               [ 0.408,  0.408, -0.816]], dtype=float32)
    """
    size = _size("helmert", n)
    check(size >= 1, lambda: f"[helmert] n must be positive; got {size}. Fix: n=1.", ValueError)
    row, column = np.arange(1, size)[:, None], np.arange(size)
    length = np.sqrt(row * (row + 1.0))
    out = np.where(column < row, 1 / length, np.where(column == row, -row / length, 0.0))
    first = np.full((1, size), 1 / np.sqrt(size))
    return _constant(np.concatenate([first, out]) if full else out)


@explained
def hadamard(n: int, dtype: DTypeLike = int) -> Array:
    """Return the Hadamard matrix of 1 and -1 by Sylvester's construction.

    Args:
        n: size of the matrix, a power of 2.
        dtype: dtype of the result; the default integer dtype by default.

    Returns:
        An array of shape (n, n).

    Raises:
        ValueError: if the size does not match.
        TypeError: if ``n`` is not an int.

    Example:
        >>> gf.scipy.linalg.hadamard(2)
        Array([[ 1,  1],
               [ 1, -1]], dtype=int32)
    """
    size = _size("hadamard", n)
    check(
        size >= 1 and size & (size - 1) == 0,
        lambda: f"[hadamard] n must be a power of 2; got {size}. Fix: n=1, 2, 4, ...",
        ValueError,
    )
    out = np.ones((1, 1), np.int8)
    while len(out) < size:
        out = np.block([[out, out], [out, -out]])
    return jnp.asarray(out, user_dtype(dtype, "hadamard"))


@explained
def dft(n: int, scale: str | None = None, *, dtype: DTypeLike | None = None) -> Array:
    """Return the matrix of the discrete Fourier transform.

    Args:
        n: size of the matrix.
        scale: None, "sqrtn": divided by the square root of n; "n": by n.
        dtype: a complex dtype; None uses the default one.

    Returns:
        An array of shape (n, n): ``dft(n) @ x == jnp.fft.fft(x)``.

    Raises:
        ValueError: if the scale is unknown, or the dtype is not complex.
        TypeError: if ``n`` is not an int.

    Example:
        >>> jnp.round(gf.scipy.linalg.dft(2).real)
        Array([[ 1.,  1.],
               [ 1., -1.]], dtype=float32)
    """
    size = _size("dft", n)
    if scale is not None:
        check_choice("dft", "scale", scale, ("sqrtn", "n"))
    dtype = dtypes.canonicalize(complex) if dtype is None else user_dtype(dtype, "dft")
    check(
        dtypes.is_complex(dtype),
        lambda: f"[dft] dtype must be complex; got {dtype}. Fix: dtype=jnp.complex64.",
        ValueError,
    )
    index = np.arange(size)
    # Integer periods are removed exactly, so that large products lose no digits.
    fractions = (index[:, None] * index) % max(size, 1) / max(size, 1)
    out = np.exp(-2j * np.pi * fractions)
    divisor = {None: 1.0, "sqrtn": np.sqrt(size), "n": float(size)}[scale]
    return jnp.asarray(out / divisor, dtype)
