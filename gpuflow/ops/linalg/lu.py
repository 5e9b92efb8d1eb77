"""The LU decomposition with partial pivoting, and solutions of systems with it.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Lu
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.indexing.rows import row_gather
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import pad
from gpuflow.ops.linalg import device_lapack
from gpuflow.ops.linalg.algebra import (
    Shape,
    columns,
    exact_matmul,
    identity_like,
    is_diagonal,
    rows,
    through_float32,
    triangle,
)
from gpuflow.ops.linalg.common import Outputs, decomposition, each_matrix, lapack, matrix_op
from gpuflow.ops.linalg.row_exchanges import permutation_of, row_order_p
from gpuflow.ops.linalg.small_matrices import is_small_batch, small_lu
from gpuflow.ops.linalg.solve import triangular_solve
from gpuflow.ops.sorting.sort import sort_key_val
from gpuflow.ops.written_out import written_out


def _lu_result(shape: Shape, dtype: Any) -> Outputs:
    return [(shape, dtype), ((min(shape),), dtypes.int32), ((shape[0],), dtypes.int32)]


# Eliminating a column of all matrices of a batch costs NumPy as much as LAPACK calls for this many
# small matrices.
_MATRICES_PER_COLUMN = 6
_SMALL = 8


def _lu_impl(xp: Any, a: Any) -> list[Any]:
    factors, pivots = _factors_impl(xp, a)
    return [factors, pivots, permutation_of(xp, pivots, permutation_size=a.shape[-2])]


def _factors_impl(xp: Any, a: Any) -> list[Any]:
    size, batch = max(a.shape[-2:]), prod(a.shape[:-2])
    if not a.size:
        pivots = xp.arange(min(a.shape[-2:]), dtype=np.int32)
        empty = xp.zeros(a.shape, a.dtype)
        return [empty, xp.broadcast_to(pivots, (*a.shape[:-2], len(pivots)))]
    if xp is not np:
        return device_lapack.lu(xp, a)
    if size <= _SMALL and batch > _MATRICES_PER_COLUMN * size and np.isfinite(a).all():
        return list(_eliminate(a))
    return _by_lapack(a)


def _by_lapack(a: np.ndarray) -> list[np.ndarray]:
    outs = _lu_result(a.shape[-2:], a.dtype)[:2]
    (getrf,) = lapack(["getrf"], a)
    # A positive info reports a zero on the diagonal; the factors are correct.
    return each_matrix(lambda matrix: getrf(matrix)[:2], [a], [2], outs)


def _eliminate(a: Any) -> tuple[Any, Any]:
    """Gaussian elimination, one column of all matrices at a time."""
    count, size = prod(a.shape[:-2]), min(a.shape[-2:])
    work = a.reshape(count, *a.shape[-2:]).copy()
    pivots, every = np.empty((count, size), np.int32), np.arange(count)
    for k in range(size):
        column = work[:, k:, k]
        # LAPACK's measure of complex numbers.
        measure = np.abs(column.real) + np.abs(column.imag) if a.dtype.kind == "c" else abs(column)
        pivot_rows = measure.argmax(1) + k
        pivots[:, k] = pivot_rows
        row = work[every, pivot_rows]
        work[every, pivot_rows] = work[:, k]
        work[:, k] = row
        pivot = work[:, k, k, None]
        work[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        work[:, k + 1 :, k + 1 :] -= work[:, k + 1 :, k, None] * work[:, k, None, k + 1 :]
    return work.reshape(a.shape), pivots.reshape(*a.shape[:-2], size)


def _lu_tangent(factors: Any, tangent: Any, permutation: Any) -> Any:
    """Tangents of both factors, in one matrix.

    Source: de Hoog, Anderssen and Lukas, Differentiation of matrix functionals using triangular
    factorization (2011): L^-1 dA U^-1 has dL below its diagonal and dU on the other side.
    """
    height, width = aval_of(tangent).shape[-2:]
    size = min(height, width)
    lower = _extended(triangle(columns(factors, 0, size), True, -1), height, height)
    lower = where(is_diagonal(aval_of(lower).shape), 1, lower)
    upper = _extended(triangle(rows(factors, 0, size), False), width, width)
    if size < width:
        upper = add(upper, _ones_from(upper, size))
    permuted = permute_rows(tangent, permutation)
    inner = triangular_solve(lower, permuted, left_side=True, lower=True, unit_diagonal=True)
    inner = triangular_solve(upper, inner)
    d_lower = exact_matmul(lower, triangle(inner, True, -1))
    return add(d_lower, exact_matmul(triangle(inner, False), upper))


def _extended(x: Any, height: int, width: int) -> Any:
    """Pad matrices with zeros below and to the right."""
    shape = aval_of(x).shape
    edges = [(0, 0, 0)] * (len(shape) - 2)
    return pad(x, 0, [*edges, (0, height - shape[-2], 0), (0, width - shape[-1], 0)])


def _ones_from(x: Any, start: int) -> Any:
    """Ones on the diagonal from ``start`` on."""
    eye = rows(identity_like(x), start, aval_of(x).shape[-2])
    edges = [(0, 0, 0)] * (aval_of(eye).ndim - 2)
    return pad(eye, 0, [*edges, (start, 0, 0), (0, 0, 0)])


def permute_rows(x: Any, permutation: Any) -> Any:
    """Permute the rows of matrices, with equal batch dimensions."""
    return row_gather(x, permutation, "promise_in_bounds", aval_of(permutation).ndim - 1)


def _lu_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    factors, pivots, permutation = lu_p.bind(primals[0])
    tangent = _lu_tangent(factors, tangents[0], permutation)
    outs = [factors, pivots, permutation]
    return outs, [tangent, zero_tangent(pivots), zero_tangent(permutation)]


def _lu_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    del definition
    return written_out(small_lu, eqn, build) if is_small_batch(eqn.inputs[0].aval) else None


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Lu:
    del outs
    return decomposition(Lu, ins, params)


def _lu_flops(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> int:
    del outs, params
    return 2 * ins[0].size * min(ins[0].shape[-2:]) // 3


def _lu_on_gpu(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    """Sizes beyond the kernels' use a library call, followed by a kernel for the permutation."""
    del definition
    (matrices,) = eqn.inputs
    if _what([matrices.aval], [], eqn.params).fits_a_warp:
        return None
    factors, pivots = build.apply(lu_factors_p, matrices)
    rows = matrices.aval.shape[-2]
    return [factors, pivots, build.apply(row_order_p, pivots, permutation_size=rows)]


# The outputs of a library call: factors and pivots.
lu_factors_p = matrix_op(
    "lu_factors",
    (2,),
    lambda shape, dtype: _lu_result(shape, dtype)[:2],
    _factors_impl,
    multiple_results=True,
    lower=Library(flops=_lu_flops),
)

lu_p = matrix_op(
    "lu",
    (2,),
    _lu_result,
    _lu_impl,
    jvp=_lu_jvp,
    multiple_results=True,
    lower=Library(flops=_lu_flops, what=_what, on_gpu=_lu_on_gpu),
    simplify=_lu_simplify,
)


@explained
@through_float32
def lu(x: ArrayLike) -> list[Array]:
    """Compute the LU decomposition with partial pivoting.

    Args:
        x: matrices of shape (..., m, n).

    Returns:
        Both factors in one array, U on and above the diagonal and L below it (with a unit
        diagonal). The pivots i32[..., min(m, n)]: row k is swapped with row ``pivots[k]``. The
        resulting permutation i32[..., m]: ``x[permutation] == L @ U``.

    Example:
        >>> factors, pivots, permutation = lax.linalg.lu(jnp.array([[1.0, 2.0], [4.0, 4.0]]))
        >>> factors
        Array([[4.  , 4.  ],
               [0.25, 1.  ]], dtype=float32)
        >>> pivots, permutation
        (Array([1, 1], dtype=int32), Array([1, 0], dtype=int32))
    """
    factors, pivots, permutation = lu_p.bind(x)
    return [factors, pivots, permutation]


# --- systems -------------------------------------------------------------------------------


@through_float32
def lu_solve(factors: Any, permutation: Any, b: Any, transposed: bool = False) -> Any:
    """Solve ``A X = B``, or with the transposed matrix, given the decomposition of ``A``.

    Args:
        factors, permutation: as ``lu`` gives them, of shapes (..., n, n) and (..., n).
        b: right-hand sides of shape (..., n, k), with the same batch dimensions.
    """
    if not transposed:
        x = permute_rows(b, permutation)
        x = triangular_solve(factors, x, left_side=True, lower=True, unit_diagonal=True)
        return triangular_solve(factors, x, left_side=True)
    x = triangular_solve(factors, b, left_side=True, transpose_a=True)
    x = triangular_solve(
        factors, x, left_side=True, lower=True, unit_diagonal=True, transpose_a=True
    )
    return permute_rows(x, inverse_permutation(permutation))


def inverse_permutation(permutation: Any) -> Any:
    """The inverse of a permutation along the last dimension."""
    aval = aval_of(permutation)
    return sort_key_val(permutation, iota(np.int32, aval.shape, aval.ndim - 1))[1]


def solve_matrices(a: Any, b: Any) -> Any:
    """Solve ``A X = B`` for square matrices of shape (..., n, n) and (..., n, k)."""
    factors, _, permutation = lu_p.bind(a)
    return lu_solve(factors, permutation, b)
