"""What the matrix ops share: how one is defined, calls of LAPACK, and small matrix algebra.

Every op acts on the last two dimensions and is batched over the leading ones. Failures (a matrix
that is not positive definite, an iteration that does not converge, nan inside) give nan for the
matrix in question, never an exception: the others of a batch are not to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData
from gpuflow.ops.axes import broadcast_in_dim, insert_axis, reduce_sum, reshape, transpose
from gpuflow.ops.comparison import eq, ge
from gpuflow.ops.complex_numbers import conj, part_dtype
from gpuflow.ops.contractions import dot_general
from gpuflow.ops.convert import convert_element_type
from gpuflow.ops.define import check_kind, check_same_dtype, define, types_text
from gpuflow.ops.elementwise import add
from gpuflow.ops.layout import iota, slice_in_dim
from gpuflow.ops.moving import batch_to_dim
from gpuflow.ops.selection import where

Shape = tuple[int, ...]
Outputs = list[tuple[Shape, Any]]

MATRIX_DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


def real_dtype(dtype: Any) -> np.dtype:
    """The dtype of norms and singular values of matrices of ``dtype``."""
    return part_dtype(dtype) if dtypes.is_complex(dtype) else dtype


def complex_dtype(dtype: Any) -> np.dtype:
    """The dtype of eigenvalues of general matrices of ``dtype``."""
    double = dtype in (dtypes.float64, dtypes.complex128)
    return dtypes.complex128 if double else dtypes.complex64


def to_dtype(x: Any, dtype: Any) -> Any:
    """``x`` in ``dtype``, unchanged where it has it."""
    return x if aval_of(x).dtype == dtype else convert_element_type(x, dtype)


# --- definition ----------------------------------------------------------------------------


def matrix_op(
    name: str,
    ranks: Sequence[int],
    result: Callable[..., Any],
    impl: Callable[..., Any],
    *,
    integer: bool = False,
    **fields: Any,
) -> Primitive:
    """Define an op on matrices.

    Args:
        name: as printed in jaxprs.
        ranks: the rank of each operand without batch dimensions.
        result: ``(*shapes, dtype, **params) -> [(shape, dtype), ...]``, one for each result and
            without batch dimensions; it checks the shapes.
        impl: as in Primitive.
        integer: whether operands hold integers instead of floats.
        fields: of Primitive.
    """
    many = fields.get("multiple_results", False)

    def shape(*avals: ShapedArray, **params: Any) -> Any:
        for aval in avals:
            if integer:
                check_kind(name, aval, dtypes.is_integer, "an integer")
            else:
                check_kind(
                    name, aval, MATRIX_DTYPES.__contains__,
                    "float32, float64, complex64 or complex128",
                )  # fmt: skip
        check_same_dtype(name, avals)
        batch = _batch_shape(name, avals, ranks)
        inner = [aval.shape[aval.ndim - rank :] for aval, rank in zip(avals, ranks, strict=True)]
        found = result(*inner, avals[0].dtype, **params)
        if not many:
            ((own, dtype),) = found
            return ShapedArray((*batch, *own), dtype)
        return [ShapedArray((*batch, *own), dtype) for own, dtype in found]

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> Any:
        moved = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
        outs = primitive.bind(*moved, **params)
        return (list(outs), [0] * len(outs)) if many else (outs, 0)

    rules: dict[str, Any] = {"batch": batch, "lower": Library(), **fields}
    primitive = define(name, shape=shape, impl=impl, **rules)
    return primitive


def _batch_shape(name: str, avals: Sequence[ShapedArray], ranks: Sequence[int]) -> Shape:
    for aval, rank in zip(avals, ranks, strict=True):
        check(
            aval.ndim >= rank,
            lambda aval=aval, rank=rank: (
                f"[{name}] the operand must have at least {rank} dimensions; got {aval}. "
                "Fix: reshape it."
            ),
        )
    batches = [aval.shape[: aval.ndim - rank] for aval, rank in zip(avals, ranks, strict=True)]
    check(
        len(set(batches)) == 1,
        lambda: (
            f"[{name}] operands must have equal batch dimensions; got {types_text(avals)}. "
            "Fix: broadcast one operand, or use vmap."
        ),
    )
    return batches[0]


def check_square(name: str, shape: Shape) -> None:
    """Raise ValueError unless a matrix is square."""
    check(
        shape[0] == shape[1],
        lambda: (
            f"[{name}] the matrix must be square; got shape {shape}. "
            "Fix: pass an array of shape (..., n, n)."
        ),
        ValueError,
    )


def check_subset(name: str, subset: tuple[int, int] | None, size: int) -> None:
    """Raise ValueError unless ``subset`` is a range within ``size`` values."""
    check(
        subset is None or 0 <= subset[0] <= subset[1] <= size,
        lambda: (
            f"[{name}] subset_by_index must be a range within (0, {size}); got {subset}. "
            "Fix: pass (start, stop), or None for all."
        ),
        ValueError,
    )


def plain_subset(subset: Any) -> tuple[int, int] | None:
    """``subset_by_index`` as a parameter: hashable ints."""
    return None if subset is None else (int(subset[0]), int(subset[1]))


# --- libraries -----------------------------------------------------------------------------


def load_lapack() -> ModuleType:
    """SciPy's LAPACK: slow to import, so only on first use."""
    import scipy.linalg

    return scipy.linalg


def lapack(names: Sequence[str], *arrays: np.ndarray) -> Any:
    """The LAPACK functions of the dtype of ``arrays``."""
    return load_lapack().get_lapack_funcs(tuple(names), arrays)


def on_host(impl: Callable[..., Any]) -> Callable[..., Any]:
    """An impl for devices whose libraries lack the routine: computed on the host."""

    def moved(xp: Any, *arrays: Any, **params: Any) -> Any:
        if xp is np:
            return impl(np, *arrays, **params)
        outs = impl(np, *[xp.asnumpy(x) for x in arrays], **params)
        return [xp.asarray(x) for x in outs] if isinstance(outs, list) else xp.asarray(outs)

    return moved


def each_matrix(
    function: Callable[..., Sequence[Any] | None],
    operands: Sequence[np.ndarray],
    ranks: Sequence[int],
    outs: Outputs,
) -> list[np.ndarray]:
    """Call a LAPACK routine for every matrix of a batch; NumPy has no batched one.

    Args:
        function: takes matrices and gives outputs; None where it failed: they become nan.
        operands: arrays with equal leading dimensions.
        ranks: the ranks of the matrices.
        outs: shape and dtype of each output of one matrix.
    """
    batch = operands[0].shape[: operands[0].ndim - ranks[0]]
    results = [np.empty((*batch, *shape), dtype) for shape, dtype in outs]
    for place in np.ndindex(*batch):
        found = function(*[x[place] for x in operands])
        for number, result in enumerate(results):
            result[place] = np.nan if found is None else found[number]
    return results


def failing_as_nan(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], a: np.ndarray
) -> list[np.ndarray]:
    """A batched NumPy routine; matrices that hold nan or inf, or that it refuses, give nan.

    LAPACK's iterations need not end for nan, so such matrices never reach them.
    """
    finite = np.isfinite(a).all(axis=(-2, -1))
    if not finite.all():
        a = np.where(finite[..., None, None], a, np.eye(*a.shape[-2:], dtype=a.dtype))
    try:
        outs = [np.asarray(out) for out in function(a)]
    except np.linalg.LinAlgError:
        outs = _one_by_one(function, a)
    if not finite.all():
        for number, out in enumerate(outs):
            own = finite.reshape(finite.shape + (1,) * (out.ndim - finite.ndim))
            outs[number] = np.where(own, out, out.dtype.type(np.nan))
    return outs


def _one_by_one(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], a: np.ndarray
) -> list[np.ndarray]:
    shapes = [out[0] for out in function(np.broadcast_to(np.eye(*a.shape[-2:], dtype=a.dtype),
                                                         (1, *a.shape[-2:])))]  # fmt: skip
    outs = [np.full((*a.shape[:-2], *out.shape), np.nan, out.dtype) for out in shapes]
    for place in np.ndindex(*a.shape[:-2]):
        try:
            found = function(a[place])
        except np.linalg.LinAlgError:
            continue
        for out, own in zip(outs, found, strict=True):
            out[place] = own
    return outs


# --- matrix algebra of the rules -----------------------------------------------------------


def swap(x: Any) -> Any:
    """The transposed matrices."""
    rank = aval_of(x).ndim
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def adjoint(x: Any) -> Any:
    """The transposed conjugate matrices."""
    return swap(conjugate(x))


def conjugate(x: Any) -> Any:
    """The conjugate; real arrays stay real."""
    return conj(x) if dtypes.is_complex(aval_of(x).dtype) else x


def matmul(x: Any, y: Any) -> Any:
    """The products of matrices with equal batch dimensions."""
    rank = aval_of(x).ndim
    batch = tuple(range(rank - 2))
    return dot_general(x, y, (((rank - 1,), (rank - 2,)), (batch, batch)))


def triangle(x: Any, lower: bool, offset: int = 0) -> Any:
    """The elements on one side of diagonal ``offset`` with it; zeros elsewhere."""
    row, column = _places(aval_of(x).shape)
    diagonal = add(row, offset) if offset else row
    return where(ge(diagonal, column) if lower else ge(column, diagonal), x, 0)


def _places(shape: Shape) -> tuple[Any, Any]:
    """The row and the column of each element, with batch dimensions of size 1."""
    own = (*(1,) * (len(shape) - 2), *shape[-2:])
    return iota(np.int32, own, len(own) - 2), iota(np.int32, own, len(own) - 1)


def is_diagonal(shape: Shape) -> Any:
    """Where the main diagonals of matrices are: a mask with batch dimensions of size 1."""
    return eq(*_places(shape))


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


def spread(x: Any, batch: Shape, rank: int) -> Any:
    """``x`` with its last ``rank`` dimensions kept and the others broadcast to ``batch``."""
    shape = aval_of(x).shape
    own, inner = shape[: len(shape) - rank], shape[len(shape) - rank :]
    if own == batch:
        return x
    offset = len(batch) - len(own)
    kept = [d for d, size in enumerate(own) if size != 1]
    squeezed = reshape(x, (*(own[d] for d in kept), *inner))
    dims = [*(offset + d for d in kept), *range(len(batch), len(batch) + rank)]
    return broadcast_in_dim(squeezed, (*batch, *inner), dims)
