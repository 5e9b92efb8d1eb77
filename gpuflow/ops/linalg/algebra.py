"""Matrix algebra for the rules of matrix ops: products, triangles, diagonals, adjoints.

All functions act on the last two dimensions.

Tests: tests/ops/test_linalg_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gpuflow.base import dtypes, tree
from gpuflow.core.aval import aval_of
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.contractions.precision import Precision
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.comparison import eq, ge
from gpuflow.ops.elementwise.complex_numbers import component_dtype, conj
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import broadcast_in_dim, insert_axis, reduce_sum, reshape
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.layout.transpose import transpose

P = ParamSpec("P")
T = TypeVar("T")
Shape = tuple[int, ...]


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of norms and singular values of matrices of ``dtype``."""
    return component_dtype(dtype) if dtypes.is_complex(dtype) else dtype


def complex_dtype(dtype: Any) -> np.dtype:
    """The dtype of eigenvalues of general matrices of ``dtype``."""
    double = dtype in (dtypes.float64, dtypes.complex128)
    return dtypes.complex128 if double else dtypes.complex64


def to_dtype(x: Any, dtype: Any) -> Any:
    """``x`` converted to ``dtype`` if needed."""
    return x if aval_of(x).dtype == dtype else convert_element_type(x, dtype)


_NARROW = frozenset({dtypes.float16, dtypes.bfloat16, *dtypes.NARROW_FLOATS})


def _dtype_of(x: Any) -> Any:
    """The dtype of an array, else None; also None for scalar types, which have a dtype."""
    return None if isinstance(x, type) else getattr(x, "dtype", None)


def through_float32(function: Callable[P, T]) -> Callable[P, T]:
    """Extend ``function`` to arrays of at most 16 bits: in float32, with each result rounded once.

    No library decomposes such matrices. Rounding every step would lose most digits, and sums or
    squares could overflow float16 although the result does not. Derivatives are those of the
    float32 steps.
    """

    @wraps(function)
    def computed(*operands: P.args, **params: P.kwargs) -> T:
        given = [_dtype_of(x) for x in (*operands, *params.values())]
        if not any(dtype in _NARROW for dtype in given):
            return function(*operands, **params)
        inexact = {dtype for dtype in given if dtype is not None and dtypes.is_inexact(dtype)}
        if len(inexact) > 1:  # the checks of dtypes raise
            return function(*operands, **params)
        (narrow,) = inexact

        def rounded(x: Any) -> Any:
            return to_dtype(x, narrow) if aval_of(x).dtype == dtypes.float32 else x

        def widened(x: Any) -> Any:
            return to_dtype(x, dtypes.float32) if _dtype_of(x) == narrow else x

        wide = map(widened, operands)
        named = {name: widened(x) for name, x in params.items()}
        return tree.tree_map(rounded, function(*wide, **named))

    return computed


def swap(x: Any) -> Any:
    """The transposed matrices."""
    rank = aval_of(x).ndim
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def adjoint(x: Any) -> Any:
    """The transposed conjugate matrices."""
    return swap(conjugate(x))


def symmetrized(x: Any) -> Any:
    """The mean of a matrix and its adjoint; a float for integers."""
    aval = aval_of(x)
    if dtypes.is_bool(aval.dtype):
        x = convert_element_type(x, dtypes.default_float(), True)
    elif not dtypes.is_inexact(aval.dtype):
        x = convert_element_type(x, dtypes.inexact_dtype(aval.dtype), aval.weak_type)
    return mul(add(x, adjoint(x)), 0.5)


def conjugate(x: Any) -> Any:
    """The conjugate; real arrays stay real."""
    return conj(x) if dtypes.is_complex(aval_of(x).dtype) else x


def exact_matmul(x: Any, y: Any) -> Any:
    """Matrix products with equal batch dimensions, without rounding to TF32.

    Products within algorithms must be exact, independent of the user's settings.
    """
    rank = aval_of(x).ndim
    batch = tuple(range(rank - 2))
    numbers = ((rank - 1,), (rank - 2,)), (batch, batch)
    return dot_general(x, y, numbers, Precision.HIGHEST)


def triangle(x: Any, lower: bool, offset: int = 0) -> Any:
    """The triangle on one side of diagonal ``offset``, including it; zeros elsewhere."""
    row, column = _row_and_column(aval_of(x).shape)
    diagonal = add(row, offset) if offset else row
    # A Python number of the kind of x, so that the result is weakly typed if x is.
    zero = 0j if dtypes.is_complex(aval_of(x).dtype) else 0.0
    return where(ge(diagonal, column) if lower else ge(column, diagonal), x, zero)


def _row_and_column(shape: Shape) -> tuple[Any, Any]:
    """The row and the column of each element, with batch dimensions of size 1."""
    sizes = (*(1,) * (len(shape) - 2), *shape[-2:])
    return iota(np.int32, sizes, len(sizes) - 2), iota(np.int32, sizes, len(sizes) - 1)


def is_diagonal(shape: Shape) -> Any:
    """Mask of the main diagonals of matrices, with batch dimensions of size 1."""
    return eq(*_row_and_column(shape))


def identity_like(x: Any) -> Any:
    """Identities of the size of the matrices ``x``, with batch dimensions of size 1."""
    aval = aval_of(x)
    return convert_element_type(is_diagonal(aval.shape), aval.dtype)


def diagonal_of(x: Any) -> Any:
    """The main diagonals of square matrices, as vectors."""
    return reduce_sum(where(is_diagonal(aval_of(x).shape), x, 0), (aval_of(x).ndim - 1,))


def as_column(x: Any) -> Any:
    """Vectors as matrices of one column."""
    return insert_axis(x, aval_of(x).ndim)


def as_row(x: Any) -> Any:
    """Vectors as matrices of one row."""
    return insert_axis(x, aval_of(x).ndim - 1)


def columns(x: Any, start: int, stop: int) -> Any:
    """Some columns of matrices."""
    return slice_in_dim(x, start, stop, axis=aval_of(x).ndim - 1)


def rows(x: Any, start: int, stop: int) -> Any:
    """Some rows of matrices."""
    return slice_in_dim(x, start, stop, axis=aval_of(x).ndim - 2)


def with_batch(x: Any, batch: Shape, rank: int) -> Any:
    """Broadcast all but the last ``rank`` dimensions of ``x`` to ``batch``."""
    shape = aval_of(x).shape
    lead, inner = shape[: len(shape) - rank], shape[len(shape) - rank :]
    if lead == batch:
        return x
    offset = len(batch) - len(lead)
    remaining = [d for d, size in enumerate(lead) if size != 1]
    squeezed = reshape(x, (*(lead[d] for d in remaining), *inner))
    dims = [*(offset + d for d in remaining), *range(len(batch), len(batch) + rank)]
    return broadcast_in_dim(squeezed, (*batch, *inner), dims)
