"""How the sweep calls the matrix ops.

Those whose operands must be symmetric, or come from another op, are tested in test_linalg_ops.py
with the same checks. Results are compared with float64 ones, so tolerances allow for condition
numbers of a few hundred.
"""

from __future__ import annotations

import numpy as np
from op_sweep import Sample

LOOSE = 4000.0
SHAPES = ((3, 3), (2, 3, 3))


def _triangular(a, b, *, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        a = a - np.einsum("...ii->...i", a)[..., None] * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    a = a.conj() if conjugate_a else a
    a = a.swapaxes(-1, -2) if transpose_a else a
    if left_side:
        return np.linalg.solve(a, b)
    return np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)


def _triangular_samples():
    flags = [
        (left, lower, transpose, conjugate, unit)
        for left in (True, False)
        for lower in (True, False)
        for transpose, conjugate, unit in (
            (False, False, False),
            (True, False, True),
            (True, True, False),
        )
    ]
    names = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")
    samples = [
        Sample(
            ((3, 3), (3, 2) if flag[0] else (2, 3)),
            dict(zip(names, flag)),
            domain=((1.0, 2.0), (-2.0, 2.0)),
            reference=_triangular,
            tolerance=LOOSE,
        )
        for flag in flags
    ]
    batched = dict(zip(names, flags[0]))
    return [
        *samples,
        Sample(
            ((9, 3, 3), (9, 3, 2)),
            batched,
            domain=((1.0, 2.0), (-2.0, 2.0)),
            reference=_triangular,
            tolerance=LOOSE,
        ),
        Sample(((0, 0), (0, 2)), batched),
    ]


def _tridiagonal(low, middle, high, b, perturb_singular):
    del perturb_singular
    size = middle.shape[-1]
    a = np.zeros((*middle.shape, size), middle.dtype)
    place = np.arange(size)
    a[..., place, place] = middle
    a[..., place[1:], place[:-1]] = low[..., 1:]
    a[..., place[:-1], place[1:]] = high[..., :-1]
    return np.linalg.solve(a, b)


_DIAGONALS = ((-1.0, 1.0), (3.0, 4.0), (-1.0, 1.0), (-2.0, 2.0))


def _matrices(params, shapes=SHAPES, **fields):
    return [Sample((shape,), params, tolerance=LOOSE, **fields) for shape in shapes]


def _svd(full_matrices, compute_uv):
    return {
        "full_matrices": full_matrices,
        "compute_uv": compute_uv,
        "subset_by_index": None,
    }


def _eig(left, right):
    return {
        "compute_left_eigenvectors": left,
        "compute_right_eigenvectors": right,
        "enable_eigvec_derivs": True,
    }


REAL, COMPLEX = ("float32", "float64"), ("complex64", "complex128")
# Signs of vectors are LAPACK's choice, which differs between single and double precision.
DOUBLE = ("float64", "complex128")
RECTANGLES = ((3, 3), (4, 2), (2, 4), (2, 3, 2))


def _permutations():
    pivots = np.array([[2, 2, 3], [0, 1, 2]], np.int32)
    return [Sample(((2, 3),), {"permutation_size": 4}, {0: pivots}, dtypes=("int32",))]


SAMPLES = {
    "triangular_solve": _triangular_samples(),
    "tridiagonal_solve": [
        Sample(
            ((*batch, 4),) * 3 + ((*batch, 4, 2),),
            {"perturb_singular": perturbed},
            domain=_DIAGONALS,
            reference=_tridiagonal,
            tolerance=LOOSE,
        )
        for batch in ((), (2,))
        for perturbed in (False, True)  # regular ones are left as they are
    ],
    "lu": [*_matrices({}, RECTANGLES), *_matrices({}, ((25, 3, 3),), derivative=False)],
    "lu_factors": _matrices({}, RECTANGLES, derivative=False),
    "lu_pivots_to_permutation": _permutations(),
    "row_order": _permutations(),
    "qr": [
        *_matrices({"pivoting": False, "full_matrices": False}, RECTANGLES),
        *_matrices({"pivoting": False, "full_matrices": True}, RECTANGLES),
        *_matrices({"pivoting": True, "full_matrices": False}, RECTANGLES),
        *_matrices({"pivoting": True, "full_matrices": True}, RECTANGLES),
    ],
    "geqrf": _matrices({}, RECTANGLES, derivative=False),
    "svd": [
        *_matrices(_svd(False, True), RECTANGLES, dtypes=REAL),
        # LAPACK's choice of the phase of complex vectors is not differentiable.
        *_matrices(_svd(False, True), RECTANGLES, dtypes=COMPLEX, derivative=False),
        *_matrices(_svd(True, False), RECTANGLES),
        *_matrices(_svd(True, True), RECTANGLES, derivative=False),
    ],
    "eig": [
        *_matrices(_eig(False, False), unordered=True),
        # LAPACK's choice of the sign is not continuous; test_linalg_ops.py has derivatives.
        *_matrices(_eig(False, True), dtypes=DOUBLE, derivative=False, signs=False),
        *_matrices(
            _eig(True, True), ((3, 3), (2, 3, 3)), dtypes=DOUBLE, derivative=False, signs=False
        ),
    ],
    "schur": [
        *_matrices({"compute_schur_vectors": True}, dtypes=DOUBLE, derivative=False),
        *_matrices({"compute_schur_vectors": False}, dtypes=DOUBLE, derivative=False),
    ],
    "hessenberg": _matrices({}, derivative=False),
}

TESTED_ELSEWHERE = {
    name: "tests/ops/test_linalg_ops.py"
    for name in ("cholesky", "cholesky_update", "eigh", "householder_product", "tridiagonal")
}
