"""LAPACK's routines on devices: cuSOLVER, cuBLAS and cuSPARSE, through CuPy's bindings.

CuPy's functions of arrays lack some of them, and wait for the device to report errors. This module
does not wait: the status of a routine (its info) remains on the device and becomes nan. Routines
are column-major: a row-major matrix that is passed unchanged is its transpose.

Source: NVIDIA, cuSOLVER, cuBLAS and cuSPARSE documentation; names and arguments of CuPy 14.2.

Tests: tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
# A batch of LU decompositions is one call if matrices have at most this many rows for each matrix
# of the batch. Source: jaxlib 0.4, solver.py: getrf.
_ROWS_OF_A_BATCH = 128
# cuSPARSE solves tridiagonal systems of this many rows or more.
_MIN_ROWS = 3


def bindings(library: str) -> ModuleType:
    """CuPy's bindings of a CUDA library.

    The package loads the library when the attribute is accessed. An import by the full name
    bypasses that, and finds a wheel's library only if something else has loaded it before.

    Raises:
        ImportError: if the library is not installed.
    """
    return getattr(_load_libraries(), library)


def _load_libraries() -> ModuleType:
    from cupy_backends.cuda import libs  # pyright: ignore[reportMissingImports] (optional)

    return libs


def _routine(library: str, name: str, dtype: Any) -> Callable[..., Any]:
    """The routine for a dtype; ``name`` lacks the leading letter."""
    return getattr(bindings(library), _LETTERS[np.dtype(dtype).char] + name)


def _unitary(name: str, dtype: Any) -> str:
    """The name of a routine for orthogonal, or complex unitary, matrices."""
    return ("un" if np.dtype(dtype).kind == "c" else "or") + name


def _by_columns(xp: Any, a: Any) -> Any:
    """A writable column-major copy of a batch of matrices, (count, columns, rows)."""
    transposed = xp.array(a.swapaxes(-1, -2), order="C", copy=True)
    return transposed.reshape(prod(a.shape[:-2]), *transposed.shape[-2:])


def _by_rows(columns: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of ``_by_columns``, with the original shape."""
    return columns.swapaxes(-1, -2).reshape(shape)


def _rows_of(xp: Any, x: Any) -> Any:
    """A writable copy of a batch of vectors, (count, size)."""
    return xp.array(x, order="C", copy=True).reshape(prod(x.shape[:-1]), x.shape[-1])


def _address(x: Any, k: int) -> int:
    """The address of element ``k`` of an array's first dimension."""
    return x.data.ptr + k * x.strides[0]


def _addresses(xp: Any, x: Any) -> Any:
    """The addresses of all elements of the first dimension, on the device."""
    step = x.strides[0]
    return xp.arange(x.data.ptr, x.data.ptr + len(x) * step, step, dtype=np.uintp)


def lu(xp: Any, a: Any) -> list[Any]:
    """Factors and pivots of nonempty matrices (..., m, n); pivots count from 0.

    Division by a zero on the diagonal is left to the library.
    """
    m, n = a.shape[-2:]
    factors = _by_columns(xp, a)
    count = len(factors)
    pivots = xp.empty((count, min(m, n)), np.int32)
    info = xp.empty((count,), np.int32)
    if m == n and count > 1 and n <= count * _ROWS_OF_A_BATCH:
        addresses = _addresses(xp, factors)
        _routine("cublas", "getrfBatched", a.dtype)(
            xp.cuda.device.get_cublas_handle(),
            n,
            addresses.data.ptr,
            n,
            pivots.data.ptr,
            info.data.ptr,
            count,
        )
    else:
        handle = xp.cuda.device.get_cusolver_handle()
        size = _routine("cusolver", "getrf_bufferSize", a.dtype)(handle, m, n, factors.data.ptr, m)
        work, getrf = xp.empty((size,), a.dtype), _routine("cusolver", "getrf", a.dtype)
        for k in range(count):
            getrf(
                handle,
                m,
                n,
                _address(factors, k),
                m,
                work.data.ptr,
                _address(pivots, k),
                _address(info, k),
            )
    return [_by_rows(factors, a.shape), (pivots - 1).reshape(*a.shape[:-2], min(m, n))]


def cholesky(xp: Any, a: Any) -> Any:
    """Lower factors of nonempty matrices (..., n, n), from their lower triangles.

    Matrices that the routine reports as not positive definite are nan; elements above the diagonals
    of the others are not cleared.
    """
    n = a.shape[-1]
    out = xp.array(a, order="C", copy=True).reshape(prod(a.shape[:-2]), n, n)
    count, info = len(out), xp.empty((prod(a.shape[:-2]),), np.int32)
    handle = xp.cuda.device.get_cusolver_handle()
    # Column-major, it is the upper triangle of the transpose: U^H U = A^T is L = U^T row-major.
    side = bindings("cublas").CUBLAS_FILL_MODE_UPPER
    if count > 1:
        addresses = _addresses(xp, out)
        _routine("cusolver", "potrfBatched", a.dtype)(
            handle, side, n, addresses.data.ptr, n, info.data.ptr, count
        )
    else:
        size = _routine("cusolver", "potrf_bufferSize", a.dtype)(handle, side, n, out.data.ptr, n)
        work = xp.empty((size,), a.dtype)
        _routine("cusolver", "potrf", a.dtype)(
            handle, side, n, out.data.ptr, n, work.data.ptr, size, info.data.ptr
        )
    return xp.where((info != 0)[:, None, None], np.nan, out).reshape(a.shape)


def geqrf(xp: Any, a: Any) -> list[Any]:
    """Reflectors and their factors of nonempty matrices (..., m, n)."""
    m, n = a.shape[-2:]
    out = _by_columns(xp, a)
    factors = xp.empty((len(out), min(m, n)), a.dtype)
    info = xp.empty((1,), np.int32)
    handle = xp.cuda.device.get_cusolver_handle()
    size = _routine("cusolver", "geqrf_bufferSize", a.dtype)(handle, m, n, out.data.ptr, m)
    work, geqrf_ = xp.empty((size,), a.dtype), _routine("cusolver", "geqrf", a.dtype)
    for k in range(len(out)):
        geqrf_(
            handle,
            m,
            n,
            _address(out, k),
            m,
            _address(factors, k),
            work.data.ptr,
            size,
            info.data.ptr,
        )
    return [_by_rows(out, a.shape), factors.reshape(*a.shape[:-2], min(m, n))]


def householder_product(xp: Any, a: Any, taus: Any) -> Any:
    """The first columns of products of reflections, for nonempty operands."""
    m, n = a.shape[-2:]
    out, taus = _by_columns(xp, a), _rows_of(xp, taus)
    count, depth = taus.shape
    info = xp.empty((1,), np.int32)
    handle = xp.cuda.device.get_cusolver_handle()
    name = _unitary("gqr", a.dtype)
    size = _routine("cusolver", f"{name}_bufferSize", a.dtype)(
        handle, m, n, depth, out.data.ptr, m, taus.data.ptr
    )
    work, product = xp.empty((size,), a.dtype), _routine("cusolver", name, a.dtype)
    for k in range(count):
        product(
            handle,
            m,
            n,
            depth,
            _address(out, k),
            m,
            _address(taus, k),
            work.data.ptr,
            size,
            info.data.ptr,
        )
    return _by_rows(out, a.shape)


def ormqr(xp: Any, a: Any, taus: Any, c: Any, left: bool, transpose: bool) -> Any:
    """Products of reflections with matrices, for nonempty operands."""
    depth, m = taus.shape[-1], a.shape[-2]
    reflectors = _by_columns(xp, a[..., :depth])
    out, taus = _by_columns(xp, c), _rows_of(xp, taus)
    info = xp.empty((1,), np.int32)
    cublas, handle = bindings("cublas"), xp.cuda.device.get_cusolver_handle()
    side = cublas.CUBLAS_SIDE_LEFT if left else cublas.CUBLAS_SIDE_RIGHT
    transposition = cublas.CUBLAS_OP_C if np.dtype(a.dtype).kind == "c" else cublas.CUBLAS_OP_T
    what = (side, transposition if transpose else cublas.CUBLAS_OP_N, *c.shape[-2:], depth)
    rows, name = c.shape[-2], _unitary("mqr", a.dtype)
    size = _routine("cusolver", f"{name}_bufferSize", a.dtype)(
        handle, *what, reflectors.data.ptr, m, taus.data.ptr, out.data.ptr, rows
    )
    work, product = xp.empty((size,), a.dtype), _routine("cusolver", name, a.dtype)
    for k in range(len(out)):
        product(
            handle,
            *what,
            _address(reflectors, k),
            m,
            _address(taus, k),
            _address(out, k),
            rows,
            work.data.ptr,
            size,
            info.data.ptr,
        )
    return _by_rows(out, c.shape)


def tridiagonal_solve(xp: Any, low: Any, middle: Any, high: Any, b: Any) -> Any:
    """Solve systems with nonempty right-hand sides (..., m, n), with pivoting.

    Singular matrices give the results of divisions by 0.
    """
    rows, sides = b.shape[-2:]
    padding = max(_MIN_ROWS - rows, 0)  # of the identity's
    right = _with_rows(xp, b.swapaxes(-1, -2), padding, 0)
    right = right.reshape(-1, sides, rows + padding)
    below, diagonal, above = (
        _with_rows(xp, x, padding, filling).reshape(-1, rows + padding)
        for x, filling in ((low, 0), (middle, 1), (high, 0))
    )
    below[:, 0] = 0  # the routine reads them
    above[:, rows - 1] = 0
    size = rows + padding
    handle = xp.cuda.device.get_cusparse_handle()
    count = _routine("cusparse", "gtsv2_bufferSizeExt", b.dtype)(
        handle,
        size,
        sides,
        below.data.ptr,
        diagonal.data.ptr,
        above.data.ptr,
        right.data.ptr,
        size,
    )
    work, solve = xp.empty((count,), np.uint8), _routine("cusparse", "gtsv2", b.dtype)
    for k in range(len(right)):
        solve(
            handle,
            size,
            sides,
            _address(below, k),
            _address(diagonal, k),
            _address(above, k),
            _address(right, k),
            size,
            work.data.ptr,
        )
    return _by_rows(right[..., :rows], b.shape)


def _with_rows(xp: Any, x: Any, padding: int, filling: int) -> Any:
    """A row-major copy with ``padding`` elements appended to each row."""
    out = xp.full((*x.shape[:-1], x.shape[-1] + padding), filling, x.dtype)
    out[..., : x.shape[-1]] = x
    return out
