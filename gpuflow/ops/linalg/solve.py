"""Systems with triangular matrices, linear in the right-hand side.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_device_programs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Triangular
from gpuflow.core.lowering import Library
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import neg
from gpuflow.ops.layout.axes import insert_axis, reshape, squeeze
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.ops.linalg.algebra import (
    Shape,
    conjugate,
    exact_matmul,
    swap,
    through_float32,
    triangle,
)
from gpuflow.ops.linalg.common import Outputs, check_square, load_scipy, matrix_op
from gpuflow.ops.linalg.small_matrices import (
    MAX_TRIANGULAR_ROWS,
    is_small_batch,
    small_triangular_solve,
)
from gpuflow.ops.written_out import written_out
from gpuflow.ops.zeros import add_tangents


def _triangular_result(
    a: Shape, b: Shape, dtype: Any, *, left_side: bool, **params: Any
) -> Outputs:
    del params
    check_square("triangular_solve", a)
    check(
        a[0] == b[0 if left_side else 1],
        lambda: (
            "[triangular_solve] the matrix and the right-hand side must have equal sizes; got "
            f"{a} and {b} with left_side={left_side}. Fix: transpose b, or change left_side."
        ),
        ValueError,
    )
    return [(b, dtype)]


def _triangular_impl(xp: Any, a: Any, b: Any, **params: Any) -> Any:
    if xp is np:
        out = np.empty(b.shape, b.dtype)
        _solve_into(out, a, b, **params)
        return out
    return _solve_on_device(xp, a, b, **params)


def _triangular_call(xp: Any, outs: Sequence[Any], a: Any, b: Any, **params: Any) -> None:
    if xp is np:
        _solve_into(outs[0], a, b, **params)
    else:
        outs[0][...] = _solve_on_device(xp, a, b, **params)


def _solve_on_device(
    xp: Any,
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Any:
    if not b.size:
        return xp.zeros(b.shape, b.dtype)
    a, b, lower = _on_the_left(a, b, left_side, lower, transpose_a, conjugate_a)
    out = _load_cupy_linalg().solve_triangular(
        a, b, lower=lower, unit_diagonal=unit_diagonal, check_finite=False
    )
    return out if left_side else out.swapaxes(-1, -2)


def _on_the_left(
    a: Any, b: Any, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool
) -> tuple[Any, Any, bool]:
    """Rewrite the problem as ``A X = B``, by transposition if needed."""
    if conjugate_a:
        a = a.conj()
    if transpose_a == left_side:  # op(A) X = B with transposition, or X A = B: A^T X^T = B^T
        a, lower = a.swapaxes(-1, -2), not lower
    return a, b if left_side else b.swapaxes(-1, -2), lower


def _load_cupy_linalg() -> ModuleType:
    """CuPy's counterpart of scipy.linalg."""
    import cupyx.scipy.linalg  # pyright: ignore[reportMissingImports] (optional)

    return cupyx.scipy.linalg


def _solve_into(
    out: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> None:
    """Solve for every matrix of a batch, in the memory of the row-major ``out``."""
    if not b.size:
        return
    # A row of substitution costs NumPy as much as a call of BLAS for one matrix.
    if prod(a.shape[:-2]) > a.shape[-1]:
        a, b, lower = _on_the_left(a, b, left_side, lower, transpose_a, conjugate_a)
        solution = _substitute(a, b, lower, unit_diagonal)
        out[...] = solution if left_side else solution.swapaxes(-1, -2)
        return
    (trsm,) = load_scipy().get_blas_funcs(("trsm",), (a, b))
    if conjugate_a and not transpose_a:
        a, conjugate_a = a.conj(), False
    out[...] = b
    for index in np.ndindex(*a.shape[:-2]):
        # BLAS is column-major: pass transposed views, without copies. A X = B becomes
        # X^T A^T = B^T, and A^T is a view of A. A zero on the diagonal divides.
        target = out[index].T
        solution = trsm(
            1.0,
            a[index].T,
            target,
            side=int(left_side),
            lower=not lower,
            trans_a=2 if conjugate_a else int(transpose_a),
            diag=unit_diagonal,
            overwrite_b=True,
        )
        if not np.may_share_memory(solution, target):
            target[...] = solution


def _substitute(a: np.ndarray, b: np.ndarray, lower: bool, unit_diagonal: bool) -> np.ndarray:
    """Substitute row by row, for all matrices of a batch at once."""
    size = a.shape[-1]
    out = np.empty(b.shape, b.dtype)
    for row in range(size) if lower else range(size - 1, -1, -1):
        solved = slice(0, row) if lower else slice(row + 1, size)
        value = b[..., row, :]
        if solved.start < solved.stop:
            value = value - np.matmul(a[..., row, None, solved], out[..., solved, :])[..., 0, :]
        out[..., row, :] = value if unit_diagonal else value / a[..., row, row, None]
    return out


def _triangular_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """From op(A) X = B: op(A) dX = dB - op(dA) X; likewise for X op(A) = B."""
    (a, b), (a_tangent, b_tangent) = primals, tangents
    x = triangular_solve_p.bind(a, b, **params)
    right = b_tangent
    if type(a_tangent) is not Zero:
        offset = 0 if not params["unit_diagonal"] else -1 if params["lower"] else 1
        change = triangle(a_tangent, params["lower"], offset)
        change = swap(change) if params["transpose_a"] else change
        change = conjugate(change) if params["conjugate_a"] else change
        product = exact_matmul(change, x) if params["left_side"] else exact_matmul(x, change)
        right = add_tangents(right, neg(product))
    if type(right) is Zero:
        return x, right
    return x, triangular_solve_p.bind(a, right, **params)


def _triangular_transpose(
    cotangent: Any, a: Any, b: Any, *, transpose_a: bool, **params: Any
) -> list[Any]:
    if is_undefined(a):  # not linear in it
        return [None, None]
    if type(cotangent) is Zero:
        return [None, Zero(b.aval.tangent())]
    return [None, triangular_solve_p.bind(a, cotangent, transpose_a=not transpose_a, **params)]


def _triangular_batch(
    axis: AxisData, operands: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[Any, int]:
    (a, b), (a_dim, b_dim) = operands, dims
    if a_dim is None and aval_of(a).ndim == 2:
        # One matrix for all: the mapped right-hand sides are additional columns.
        dim = 1 if params["left_side"] else 0
        assert b_dim is not None
        batched = move_axis(b, b_dim, dim)
        shape = aval_of(batched).shape
        if params["left_side"]:
            flat = reshape(batched, (shape[0], shape[1] * shape[2]))
        else:
            flat = reshape(batched, (shape[0] * shape[1], shape[2]))
        return reshape(triangular_solve_p.bind(a, flat, **params), shape), dim
    batched = [batch_to_dim(x, d, 0, axis.size) for x, d in zip(operands, dims, strict=True)]
    return triangular_solve_p.bind(*batched, **params), 0


def _triangular_flops(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> int:
    del params
    return in_avals[0].shape[-1] * out_avals[0].size


def _triangular(in_avals: Any, out_avals: Any, params: dict[str, Any]) -> Triangular:
    del out_avals
    a, b = in_avals
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    *batch, size, _ = a.shape
    sides = b.shape[-1 if params["left_side"] else -2]
    return Triangular(*[params[name] for name in names], prod(batch), size, sides, b.dtype)


def _triangular_simplify(
    eqn: Any, definition: DefinitionLookup, build: EqnBuilder
) -> list[Any] | None:
    del definition
    a, b = (atom.aval for atom in eqn.inputs)
    if not (is_small_batch(a, MAX_TRIANGULAR_ROWS) and b.size):
        return None
    return written_out(small_triangular_solve, eqn, build, **eqn.params)


triangular_solve_p = matrix_op(
    "triangular_solve",
    (2, 2),
    _triangular_result,
    _triangular_impl,
    jvp=_triangular_jvp,
    transpose=_triangular_transpose,
    batch=_triangular_batch,
    lower=Library(
        _triangular_call,
        flops=_triangular_flops,
        what=_triangular,
    ),
    simplify=_triangular_simplify,
)


@explained
@through_float32
def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Array:
    """Solve ``op(A) X = B``, or ``X op(A) = B``, for a triangular matrix.

    Args:
        a: matrices of shape (..., m, m); only one triangle is read.
        b: right-hand sides (..., m, n), or (..., n, m) with the matrix on the right; or vectors
            (..., m).
        left_side: whether ``op(A)`` is on the left of ``X``.
        lower: whether ``a`` is lower triangular.
        transpose_a: whether ``op`` transposes.
        conjugate_a: whether ``op`` conjugates.
        unit_diagonal: whether the diagonal is assumed to be ones and not read.

    Returns:
        An array like ``b``; inf and nan for singular matrices.

    Raises:
        ValueError: if sizes do not match. TypeError: if dtypes differ or are not floats.

    Example:
        >>> a, b = jnp.array([[2.0, 0.0], [1.0, 4.0]]), jnp.array([[2.0], [9.0]])
        >>> lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
        Array([[1.],
               [2.]], dtype=float32)
    """
    vector = aval_of(b).ndim == aval_of(a).ndim - 1
    axis = aval_of(b).ndim - (0 if left_side else 1)
    out = triangular_solve_p.bind(
        a,
        insert_axis(b, axis) if vector else b,
        left_side=bool(left_side),
        lower=bool(lower),
        transpose_a=bool(transpose_a),
        conjugate_a=bool(conjugate_a) and dtypes.is_complex(aval_of(a).dtype),
        unit_diagonal=bool(unit_diagonal),
    )
    return squeeze(out, (axis,)) if vector else out
