"""Batches of small matrices as elementwise equations over the batch.

A LAPACK call for a 3 x 3 matrix takes longer than its arithmetic, and a batch of them many times
longer. The ``simplify`` rule of such an op replaces it by these equations, after differentiation
and batching, so that they fuse with their neighbors. The size of a matrix is part of a program's
key: it determines the number of equations. Matrices are real: complex equations would be library
calls, which take longer.

Tests: tests/ops/test_small_matrices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.ops.elementwise.arithmetic import add, div, max, min, mul, neg, sub
from gpuflow.ops.elementwise.comparison import bitwise_and, eq, gt, lt
from gpuflow.ops.elementwise.complex_numbers import abs as absolute
from gpuflow.ops.elementwise.complex_numbers import complex as complex_number
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.powers import cbrt, sqrt
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.elementwise.transcendental import acos, cos
from gpuflow.ops.layout.axes import broadcast_in_dim, insert_axis, reshape, squeeze
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.slicing import slice_, slice_in_dim
from gpuflow.ops.layout.transpose import transpose
from gpuflow.ops.zeros import full

# Larger matrices would take seconds to compile: the number of equations of a decomposition grows
# with the cube of the size, that of a substitution with its square.
MAX_ROWS = 4
MAX_TRIANGULAR_ROWS = 8

_REAL = (dtypes.float32, dtypes.float64)

Rows = list[list[Any]]


def is_small_batch(aval: ShapedArray, most: int = MAX_ROWS) -> bool:
    """Whether ``aval`` is a nonempty batch of real matrices with few rows and columns."""
    small = all(size <= most for size in aval.shape[-2:])
    return aval.ndim > 2 and aval.size > 0 and small and aval.dtype in _REAL


# --- elements ------------------------------------------------------------------------------


def _element(x: Any, row: int, column: int) -> Any:
    """One element of each matrix, in the shape of the batch."""
    shape = aval_of(x).shape
    rank = len(shape) - 2
    low, high = (0,) * rank + (row, column), (*shape[:-2], row + 1, column + 1)
    return squeeze(slice_(x, low, high), (rank, rank + 1))


def _elements(x: Any) -> Rows:
    height, width = aval_of(x).shape[-2:]
    return [[_element(x, i, j) for j in range(width)] for i in range(height)]


def _stacked(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Stack values of each batch element to an array of ``shape`` after the batch dimensions."""
    batch = aval_of(values[0]).shape
    flat = concatenate([insert_axis(value, len(batch)) for value in values], len(batch))
    return reshape(flat, (*batch, *shape))


# --- products ------------------------------------------------------------------------------


def is_small_product(
    lhs: ShapedArray, rhs: ShapedArray, out: ShapedArray, dimension_numbers: Any
) -> bool:
    """Whether a product is a batch of products of small matrices or vectors of one dtype."""
    (left, right), (left_batch, right_batch) = dimension_numbers
    free = [
        prod(aval.shape[d] for d in range(aval.ndim) if d not in (*contracted, *batch))
        for aval, contracted, batch in ((lhs, left, left_batch), (rhs, right, right_batch))
    ]
    return (
        len(left_batch) > 0
        and len(left) <= 1
        and out.size > 0
        and lhs.dtype == rhs.dtype == out.dtype
        and lhs.dtype in _REAL
        and all(0 < lhs.shape[d] <= MAX_ROWS for d in left)
        and all(count <= MAX_ROWS for count in free)
    )


def small_product(lhs: Any, rhs: Any, *, dimension_numbers: Any) -> list[Any]:
    """The product as an unrolled sum over the contracting dimension."""
    (left, right), (left_batch, right_batch) = dimension_numbers
    count = len(left_batch)
    ordered = []
    for x, contracted, batch in ((lhs, left, left_batch), (rhs, right, right_batch)):
        first = contracted
        if not contracted:
            first = (aval_of(x).ndim,)
            x = insert_axis(x, aval_of(x).ndim)
        free = [d for d in range(aval_of(x).ndim) if d not in first and d not in batch]
        ordered.append(transpose(x, (*first, *batch, *free)))
    avals = [aval_of(x) for x in ordered]
    rows, columns = avals[0].ndim - 1 - count, avals[1].ndim - 1 - count
    shape = (*avals[0].shape[1:], *avals[1].shape[1 + count :])
    dims_of_factors = (
        tuple(range(count + rows)),
        (*range(count), *range(count + rows, count + rows + columns)),
    )
    total: Any = None
    for k in range(avals[0].shape[0]):
        factors = [
            broadcast_in_dim(squeeze(slice_in_dim(x, k, k + 1), (0,)), shape, dims)
            for x, dims in zip(ordered, dims_of_factors, strict=True)
        ]
        term = mul(*factors)
        total = term if total is None else add(total, term)
    return [total]


# --- decompositions ------------------------------------------------------------------------


def small_lu(a: Any) -> list[Any]:
    """Gaussian elimination with partial pivoting: factors, pivots and permutation.

    Rows are exchanged by selects, each with every row below it.
    """
    rows = _elements(a)
    height, width = len(rows), len(rows[0])
    batch = aval_of(a).shape[:-2]
    order = [full(batch, k, np.int32) for k in range(height)]
    pivots = []
    for k in range(height if height < width else width):
        best, pivot_row = absolute(rows[k][k]), full(batch, k, np.int32)
        for i in range(k + 1, height):
            size = absolute(rows[i][k])
            larger = gt(size, best)
            best, pivot_row = where(larger, size, best), where(larger, np.int32(i), pivot_row)
        pivots.append(pivot_row)
        for i in range(k + 1, height):
            swapped = eq(pivot_row, np.int32(i))
            for exchanged in (rows, order):
                exchanged[k], exchanged[i] = _exchanged(swapped, exchanged[k], exchanged[i])
        pivot = where(eq(rows[k][k], 0), 1, rows[k][k])
        for i in range(k + 1, height):
            rows[i][k] = div(rows[i][k], pivot)
            for j in range(k + 1, width):
                rows[i][j] = sub(rows[i][j], mul(rows[i][k], rows[k][j]))
    factors = _stacked([x for row in rows for x in row], (height, width))
    return [factors, _stacked(pivots, (len(pivots),)), _stacked(order, (height,))]


def _exchanged(which: Any, x: Any, y: Any) -> tuple[Any, Any]:
    if isinstance(x, list):
        pairs = [_exchanged(which, p, q) for p, q in zip(x, y, strict=True)]
        return [p for p, _ in pairs], [q for _, q in pairs]
    return where(which, y, x), where(which, x, y)


def small_cholesky(a: Any) -> list[Any]:
    """The lower factor, from the lower triangle; nan if a pivot is not positive."""
    size, batch = aval_of(a).shape[-1], aval_of(a).shape[:-2]
    zero = full(batch, 0, aval_of(a).dtype)
    rows: Rows = [[zero] * size for _ in range(size)]
    positive: Any = full(batch, True, np.bool_)
    for j in range(size):
        square = _element(a, j, j)
        for k in range(j):
            square = sub(square, mul(rows[j][k], rows[j][k]))
        positive = bitwise_and(positive, gt(square, 0))
        pivot = sqrt(square)
        rows[j][j] = pivot
        for i in range(j + 1, size):
            value = _element(a, i, j)
            for k in range(j):
                value = sub(value, mul(rows[i][k], rows[j][k]))
            rows[i][j] = div(value, pivot)
    values = [
        where(positive, rows[i][j], np.nan) if j <= i else zero
        for i in range(size)
        for j in range(size)
    ]
    return [_stacked(values, (size, size))]


def small_triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> list[Any]:
    """Substitution by rows of the solution, or by columns with the matrix on the right."""
    del conjugate_a
    size, rank = aval_of(a).shape[-1], aval_of(b).ndim
    axis = rank - 2 if left_side else rank - 1
    # X op(A) = B is op(A)^T X^T = B^T, with the rows of X^T.
    is_transposed = transpose_a == left_side
    below = lower != is_transposed

    def coefficient(i: int, j: int) -> Any:
        value = _element(a, j, i) if is_transposed else _element(a, i, j)
        return insert_axis(insert_axis(value, rank - 2), rank - 1)

    solved: dict[int, Any] = {}
    for i in range(size) if below else range(size - 1, -1, -1):
        low = [i if d == axis else 0 for d in range(rank)]
        high = [i + 1 if d == axis else n for d, n in enumerate(aval_of(b).shape)]
        value = slice_(b, low, high)
        for j, other in solved.items():
            value = sub(value, mul(coefficient(i, j), other))
        solved[i] = value if unit_diagonal else div(value, coefficient(i, i))
    return [concatenate([solved[i] for i in range(size)], axis)]


# --- eigenvalues ---------------------------------------------------------------------------


def has_closed_eigenvalues(aval: ShapedArray) -> bool:
    """Whether float64 roots of the characteristic polynomial are as exact as iterations.

    Rounding perturbs a root like a relative change of the matrix by a few ulps of float64, and a
    double root by the square root of that, which is still below the precision of float32.
    """
    square = aval.ndim > 2 and aval.size > 0 and aval.shape[-1] == aval.shape[-2]
    return square and aval.dtype == dtypes.float32 and aval.shape[-1] in (2, 3)


def small_eigenvalues(a: Any) -> list[Any]:
    """The complex64 eigenvalues of float32 matrices of 2 x 2 or 3 x 3; nan for inf and nan."""
    rows = [[convert_element_type(x, np.float64) for x in row] for row in _elements(a)]
    size = len(rows)
    total = rows[0][0]
    for x in [x for row in rows for x in row][1:]:
        total = add(total, x)
    middle = rows[0][0]
    for k in range(1, size):
        middle = add(middle, rows[k][k])
    middle = add(mul(middle, 1 / size), mul(total, 0))
    for k in range(size):
        rows[k][k] = sub(rows[k][k], middle)
    roots = _square_roots(rows) if size == 2 else _cubic_roots(rows)
    narrow = [
        complex_number(*(convert_element_type(x, np.float32) for x in (add(middle, re), im)))
        for re, im in roots
    ]
    return [_stacked(narrow, (size,))]


def _square_roots(rows: Rows) -> list[tuple[Any, Any]]:
    """The eigenvalues of a 2 x 2 matrix with trace 0: +-sqrt(-det)."""
    square = add(mul(rows[0][0], rows[0][0]), mul(rows[0][1], rows[1][0]))
    size = sqrt(absolute(square))
    is_real = gt(square, 0)
    # A nan is neither real nor imaginary.
    zero = mul(square, 0)
    re, im = where(is_real, size, zero), where(is_real, zero, size)
    return [(re, im), (neg(re), neg(im))]


def _determinant(rows: Rows) -> Any:
    terms = []
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        minor = sub(mul(rows[1][i], rows[2][j]), mul(rows[1][j], rows[2][i]))
        terms.append(mul(rows[0][k], minor))
    return add(add(terms[0], terms[1]), terms[2])


def _cubic_roots(rows: Rows) -> list[tuple[Any, Any]]:
    """The eigenvalues of a 3 x 3 matrix with trace 0: x^3 + 3 p x - 2 q = 0.

    Three real roots by cosines of a third of an angle (Viète); else by cube roots, the larger one
    first (Cardano), to avoid cancellation.
    """
    squares = [mul(rows[i][j], rows[j][i]) for i in range(3) for j in range(3)]
    trace = squares[0]
    for term in squares[1:]:
        trace = add(trace, term)
    p, q = mul(trace, -1 / 6), mul(_determinant(rows), 0.5)
    discriminant = add(mul(q, q), mul(p, mul(p, p)))
    one_real = gt(discriminant, 0)
    root = sqrt(max(discriminant, 0.0))
    larger = cbrt(add(q, where(lt(q, 0), neg(root), root)))
    smaller = div(neg(p), where(eq(larger, 0), 1, larger))
    first, mean = add(larger, smaller), mul(add(larger, smaller), -0.5)
    imaginary = mul(absolute(sub(larger, smaller)), 3**0.5 / 2)
    radius = sqrt(max(neg(p), 0.0))
    cube = mul(radius, mul(radius, radius))
    cosine = div(q, where(eq(cube, 0), 1, cube))
    angle = mul(acos(max(min(cosine, 1.0), -1.0)), 1 / 3)
    reals = [mul(mul(radius, 2), cos(add(angle, 2 * pi * k / 3))) for k in (0, 1, 2)]
    zero = mul(discriminant, 0)
    real_terms = [where(one_real, x, y) for x, y in zip((first, mean, mean), reals, strict=True)]
    return [
        (add(real_terms[0], zero), zero),
        (add(real_terms[1], zero), where(one_real, imaginary, zero)),
        (add(real_terms[2], zero), where(one_real, neg(imaginary), zero)),
    ]
