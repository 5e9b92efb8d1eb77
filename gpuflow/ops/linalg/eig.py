"""Eigenvalues and eigenvectors of general matrices.

Tests: tests/ops/test_linalg_ops.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Eig
from gpuflow.core.lowering import Library, OnHost
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.arithmetic import add, div, mul, neg, sub
from gpuflow.ops.elementwise.comparison import eq
from gpuflow.ops.elementwise.complex_numbers import abs as absolute
from gpuflow.ops.elementwise.complex_numbers import complex as complex_number
from gpuflow.ops.elementwise.complex_numbers import conj, imag, real
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import reduce_sum
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.linalg.algebra import (
    Shape,
    adjoint,
    as_column,
    as_row,
    complex_dtype,
    diagonal_of,
    exact_matmul,
    is_diagonal,
    swap,
    through_float32,
    to_dtype,
)
from gpuflow.ops.linalg.algorithms import (
    EIG_IMPLEMENTATIONS,
    EigImplementation,
    check_algorithm,
    check_no_magma,
)
from gpuflow.ops.linalg.common import (
    NO_ROUTINE,
    Outputs,
    check_square,
    decomposition,
    is_large,
    load_scipy,
    matrix_op,
)
from gpuflow.ops.linalg.eigh import library
from gpuflow.ops.linalg.lu import solve_matrices
from gpuflow.ops.linalg.small_matrices import has_closed_eigenvalues, small_eigenvalues
from gpuflow.ops.reductions.argmax import argmax
from gpuflow.ops.written_out import written_out


def _eig_result(
    shape: Shape,
    dtype: Any,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    **params: Any,
) -> Outputs:
    del params
    check_square("eig", shape)
    wide = complex_dtype(dtype)
    count = compute_left_eigenvectors + compute_right_eigenvectors
    return [((shape[0],), wide), *[(shape, wide)] * count]


# NumPy's loop over a batch in C. np.linalg.eigvals also converts float32 to float64 and scans all
# elements three times, which for 3x3 matrices takes a sixth of the time. It is a private name, so
# it may be missing.
_LOOP = getattr(getattr(np.linalg, "_umath_linalg", None), "eigvals", None)
_LOOP_TYPES = {"f": "f->F", "d": "d->D", "F": "D->D", "D": "D->D"}


def _eigenvalues(a: np.ndarray) -> np.ndarray:
    """Only the eigenvalues; nan if the iteration does not converge."""
    if _LOOP is None:
        return np.linalg.eigvals(a)
    return _LOOP(a, signature=_LOOP_TYPES[a.dtype.char])


def _eig_impl(
    xp: Any,
    a: Any,
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    enable_eigvec_derivs: bool,
) -> list[Any]:
    del enable_eigvec_derivs
    wide = complex_dtype(a.dtype)
    count = 1 + compute_left_eigenvectors + compute_right_eigenvectors
    if not a.size:
        shapes = [a.shape[:-1], a.shape, a.shape][:count]
        return [xp.zeros(shape, wide) for shape in shapes]
    left, right = compute_left_eigenvectors, compute_right_eigenvectors
    if xp is not np and left:
        raise OnHost("with left eigenvectors", NO_ROUTINE)
    by_scipy = xp is np and (left or is_large(a))

    def decompose(x: Any) -> Any:
        if by_scipy:
            results = load_scipy().eig(x, left=left, right=right, check_finite=False)
        elif right:
            results = xp.linalg.eig(x)
        else:
            results = _eigenvalues(x) if xp is np else xp.linalg.eigvals(x)
        return results if left or right else [results]

    # NumPy returns real results if all values of the batch are real.
    return [out.astype(wide, copy=False) for out in library(xp, decompose, a)]


def _eig_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    compute_left_eigenvectors: bool,
    compute_right_eigenvectors: bool,
    enable_eigvec_derivs: bool,
) -> tuple[list[Any], list[Any]]:
    """First-order perturbation of a matrix with distinct eigenvalues.

    Source: Giles (2008), 3.1: the tangent of the values is the diagonal of V^-1 dA V.
    """
    (a,), (tangent,) = primals, tangents
    check(
        enable_eigvec_derivs or not (compute_left_eigenvectors or compute_right_eigenvectors),
        lambda: (
            "[eig] derivatives of eigenvectors hold only for distinct eigenvalues and vectors with "
            f"one largest component, so they must be asked for; got {aval_of(a)}. "
            "Fix: lax.linalg.eig(x, enable_eigvec_derivs=True), or eigvals for values alone."
        ),
        NotImplementedError,
    )
    # The tangent of the values does not depend on the lengths of vectors, so it can be
    # differentiated again whatever was requested.
    values, *vectors = eig_p.bind(
        a,
        compute_left_eigenvectors=compute_left_eigenvectors,
        compute_right_eigenvectors=True,
        enable_eigvec_derivs=True,
    )
    right = vectors[-1]
    tangent = to_dtype(tangent, aval_of(right).dtype)
    if not (compute_left_eigenvectors or compute_right_eigenvectors):
        solved = solve_matrices(right, tangent)
        return [values], [reduce_sum(mul(solved, swap(right)), (aval_of(right).ndim - 1,))]
    d_values, d_right = _vector_tangents(values, right, tangent)
    outs, out_tangents = [values], [d_values]
    if compute_left_eigenvectors:
        outs.append(vectors[0])
        out_tangents.append(_vector_tangents(conj(values), vectors[0], adjoint(tangent))[1])
    if compute_right_eigenvectors:
        outs.append(right)
        out_tangents.append(d_right)
    return outs, out_tangents


def _vector_tangents(values: Any, vectors: Any, tangent: Any) -> tuple[Any, Any]:
    """Tangents of eigenvalues, and of eigenvectors with LAPACK's normalization.

    Perturbation gives each vector's tangent u up to a multiple of the vector v. The multiple
    keeps the length at 1 and the largest component real:

        c = -Re(v^H u) - i Im(u_k) / v_k,  k the index of the largest component of v.
    """
    diagonal = is_diagonal(aval_of(vectors).shape)
    gaps = where(diagonal, 1, sub(as_row(values), as_column(values)))
    inner = exact_matmul(solve_matrices(vectors, tangent), vectors)
    perturbed = exact_matmul(vectors, where(diagonal, 0, div(inner, gaps)))
    aval = aval_of(vectors)
    rows = aval.ndim - 2
    row_indices = iota(np.int32, aval.shape, rows)
    is_largest = eq(row_indices, as_row(argmax(absolute(vectors), rows, np.int32)))

    def largest(x: Any) -> Any:
        return reduce_sum(where(is_largest, x, 0), (rows,))

    radial = real(reduce_sum(mul(conj(vectors), perturbed), (rows,)))
    rotation = div(imag(largest(perturbed)), real(largest(vectors)))
    multiple = complex_number(neg(radial), neg(rotation))
    return diagonal_of(inner), add(perturbed, mul(vectors, as_row(multiple)))


def _eig_simplify(eqn: Any, definition: DefinitionLookup, build: EqnBuilder) -> list[Any] | None:
    del definition
    if len(eqn.outputs) > 1 or not has_closed_eigenvalues(eqn.inputs[0].aval):
        return None
    return written_out(small_eigenvalues, eqn, build)


def _what(ins: Sequence[Any], outs: Sequence[Any], params: dict[str, Any]) -> Eig:
    del outs
    return decomposition(Eig, ins, params)


eig_p = matrix_op(
    "eig",
    (2,),
    _eig_result,
    _eig_impl,
    jvp=_eig_jvp,
    multiple_results=True,
    lower=Library(
        flops=lambda ins, outs, params: 25 * ins[0].size * ins[0].shape[-1],
        what=_what,
    ),
    simplify=_eig_simplify,
)


@explained
@through_float32
def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Array]:
    """Return eigenvalues and eigenvectors of general matrices.

    Args:
        x: matrices of shape (..., n, n).
        compute_left_eigenvectors: whether to return u with ``u^H A = w u^H``.
        compute_right_eigenvectors: whether to return v with ``A v = w v``.
        enable_eigvec_derivs: whether eigenvectors may be differentiated; derivatives are correct
            only if all eigenvalues are distinct and no vector has two components of largest
            magnitude.
        implementation: an ``EigImplementation`` of the CPU.
        use_magma: must not be True: MAGMA is not supported.

    Returns:
        The complex eigenvalues (..., n) in no particular order, then left and right eigenvectors
        (..., n, n) in columns, of norm 1 and with a real largest component.

    Raises:
        ValueError: if the matrices are not square, or the implementation is unknown.
        NotImplementedError: if eigenvectors are differentiated without ``enable_eigvec_derivs``.

    Example:
        >>> a = jnp.array([[1.0, 2.0], [0.0, 3.0]])
        >>> values, right = lax.linalg.eig(a, compute_left_eigenvectors=False)
        >>> bool(jnp.allclose(a @ right, values * right, atol=1e-5))
        True
    """
    check_algorithm("eig", "implementation", implementation, EIG_IMPLEMENTATIONS, ValueError)
    check_no_magma("eig", use_magma)
    return list(
        eig_p.bind(
            x,
            compute_left_eigenvectors=bool(compute_left_eigenvectors),
            compute_right_eigenvectors=bool(compute_right_eigenvectors),
            enable_eigvec_derivs=bool(enable_eigvec_derivs),
        )
    )
