"""Common code of the matrix ops: definitions, and calls of LAPACK.

Every op acts on the last two dimensions and is batched over the leading ones. Failures (a matrix
that is not positive definite, an iteration that does not converge, nan elements) give nan for that
matrix instead of an exception, so that other matrices of the batch are not affected.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_linalg_rest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import Decomposition
from gpuflow.core.lowering import Library, OnHost
from gpuflow.core.primitive import Primitive
from gpuflow.core.rules import AxisData
from gpuflow.ops.define import check_kind, check_same_dtype, define, types_text
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.linalg.algebra import Shape

Outputs = list[tuple[Shape, Any]]

MATRIX_DTYPES = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


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
        integer: whether operands are int32 instead of floats.
        fields: of Primitive.
    """
    many = fields.get("multiple_results", False)

    def shape(*avals: ShapedArray, **params: Any) -> Any:
        for aval in avals:
            if integer:
                check_kind(name, aval, dtypes.int32.__eq__, "int32")
            else:
                check_kind(
                    name,
                    aval,
                    MATRIX_DTYPES.__contains__,
                    "float32, float64, complex64 or complex128",
                )
        check_same_dtype(name, avals)
        batch = _batch_shape(name, avals, ranks)
        inner = [aval.shape[aval.ndim - rank :] for aval, rank in zip(avals, ranks, strict=True)]
        shapes = result(*inner, avals[0].dtype, **params)
        weak_type = all(aval.weak_type for aval in avals)
        outs = [ShapedArray((*batch, *dims), dtype, weak_type) for dims, dtype in shapes]
        return outs if many else outs[0]

    def batch(
        axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
    ) -> Any:
        batched = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
        outs = primitive.bind(*batched, **params)
        return (list(outs), [0] * len(outs)) if many else (outs, 0)

    rules: dict[str, Any] = {"batch": batch, "lower": Library(), **fields}
    primitive = define(name, shape=shape, impl=impl, **rules)
    return primitive


D = TypeVar("D", bound=Decomposition)


def decomposition(kind: type[D], ins: Sequence[Any], params: dict[str, Any]) -> D:
    """Return the block of a matrix decomposition, for providers of targets."""
    *batch, rows, columns = ins[0].shape
    return kind(prod(batch), rows, columns, ins[0].dtype, params)


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


def load_scipy() -> ModuleType:
    """SciPy's matrix routines: slow to import, so only on first use."""
    import scipy.linalg

    return scipy.linalg


def lapack(names: Sequence[str], *arrays: np.ndarray) -> Any:
    """The LAPACK functions of the dtype of ``arrays``."""
    return load_scipy().get_lapack_funcs(tuple(names), arrays)


# SciPy's LAPACK is up to twice as fast as NumPy's on large matrices; NumPy loops over a batch in C.
_LARGE = 64


def is_large(a: np.ndarray) -> bool:
    """Whether SciPy's routines are faster than NumPy's for such matrices."""
    return min(a.shape[-2:]) >= _LARGE


NO_ROUTINE = "no routine of the device's library is called for it"


def on_host(impl: Callable[..., Any]) -> Callable[..., Any]:
    """An impl for the host only, because no routine of a device's library is called."""

    def only_there(xp: Any, *arrays: Any, **params: Any) -> Any:
        if xp is not np:
            raise OnHost("", NO_ROUTINE)
        return impl(np, *arrays, **params)

    return only_there


def each_matrix(
    function: Callable[..., Sequence[Any] | None],
    operands: Sequence[np.ndarray],
    ranks: Sequence[int],
    outs: Outputs,
) -> list[np.ndarray]:
    """Call a LAPACK routine for every matrix of a batch; NumPy has no batched one.

    Args:
        function: takes matrices and returns outputs; None for a failure: they become nan.
        operands: arrays with equal leading dimensions.
        ranks: the ranks of the matrices.
        outs: shape and dtype of each output of one matrix.
    """
    batch = operands[0].shape[: operands[0].ndim - ranks[0]]
    results = [np.empty((*batch, *shape), dtype) for shape, dtype in outs]
    for index in np.ndindex(*batch):
        outputs = function(*[x[index] for x in operands])
        for k, result in enumerate(results):
            result[index] = np.nan if outputs is None else outputs[k]
    return results


def failing_as_nan(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], a: np.ndarray
) -> list[np.ndarray]:
    """Call a batched NumPy routine; matrices with nan or inf, or that it refuses, give nan.

    LAPACK's iterations may not end for nan, so such matrices are not passed to them.
    """
    # A sum that is finite has finite terms, and is the fastest test.
    if np.isfinite(a.sum()):
        return _all_or_each(function, a)
    return not_finite_as_nan(np, partial(_all_or_each, function), a)


def not_finite_as_nan(xp: Any, function: Callable[[Any], Sequence[Any]], a: Any) -> list[Any]:
    """Call a batched routine of an array module; matrices with nan or inf give nan."""
    finite = xp.asarray(xp.isfinite(a).all(axis=(-2, -1)))
    harmless = xp.where(finite[..., None, None], a, xp.eye(*a.shape[-2:], dtype=a.dtype))
    return [
        xp.where(finite.reshape(finite.shape + (1,) * (out.ndim - finite.ndim)), out, np.nan)
        for out in function(harmless)
    ]


def _all_or_each(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], a: np.ndarray
) -> list[np.ndarray]:
    try:
        return [np.asarray(out) for out in function(a)]
    except np.linalg.LinAlgError:
        return _one_by_one(function, a)


def _one_by_one(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], a: np.ndarray
) -> list[np.ndarray]:
    shapes = [
        out[0]
        for out in function(
            np.broadcast_to(np.eye(*a.shape[-2:], dtype=a.dtype), (1, *a.shape[-2:]))
        )
    ]
    outs = [np.full((*a.shape[:-2], *out.shape), np.nan, out.dtype) for out in shapes]
    for index in np.ndindex(*a.shape[:-2]):
        try:
            outputs = function(a[index])
        except np.linalg.LinAlgError:
            continue
        for out, output in zip(outs, outputs, strict=True):
            out[index] = output
    return outs
