"""Eigenvalues of tridiagonal matrices.

Tests: tests/scipy_surface/test_scipy_linalg_surface.py.
"""

from __future__ import annotations

from typing import Any

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.arguments import check_choice
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import ArrayLike
from gpuflow.ops.linalg.algebra import conjugate
from gpuflow.ops.linalg.common import MATRIX_DTYPES


@explained
def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: ArrayLike | None = None,
) -> Any:
    """Return eigenvalues and eigenvectors of a symmetric or Hermitian tridiagonal matrix.

    Args:
        d: n diagonal elements; the imaginary part is ignored.
        e: n - 1 elements above the diagonal.
        eigvals_only: whether to return only the eigenvalues.
        select: "a": all; "i": indices from ``select_range[0]`` to ``select_range[1]``, ascending.
        select_range: the first and the last index.
        tol, key: accepted; no effect: the decomposition has full precision and uses no random
            numbers.

    Returns:
        (values, vectors), or values; values ascend, and vectors are columns.

    Raises:
        TypeError: if dtypes differ or are not floats.
        ValueError: if shapes do not match, or ``select`` is unknown.
        NotImplementedError: if ``select`` is ``"v"``.

    Example:
        >>> d, e = jnp.array([2., 2.]), jnp.array([1.])
        >>> jnp.round(gf.scipy.linalg.eigh_tridiagonal(d, e, eigvals_only=True), 3)
        Array([1., 3.], dtype=float32)
    """
    del tol, key
    d, e = jnp.asarray(d), jnp.asarray(e)
    _check_diagonals(aval_of(d), aval_of(e))
    size = aval_of(d).shape[0]
    subset = _subset(select, select_range, size)
    if size < 2:
        values = jnp.real(d)
        return values if eigvals_only else (values, jnp.eye(size, dtype=aval_of(d).dtype))
    real = jnp.real(d).astype(aval_of(d).dtype)
    matrix = jnp.diag(real) + jnp.diag(e, 1) + jnp.diag(conjugate(e), -1)
    if eigvals_only:
        values = jnp.linalg.eigvalsh(matrix, symmetrize_input=False)
        return values if subset is None else values[subset[0] : subset[1]]
    vectors, values = lax.linalg.eigh(matrix, symmetrize_input=False, subset_by_index=subset)
    return values, vectors


def _check_diagonals(d: Any, e: Any) -> None:
    check(
        d.dtype == e.dtype,
        lambda: (
            f"[eigh_tridiagonal] d and e must have one dtype; got {d} and {e}. "
            "Fix: e.astype(d.dtype)."
        ),
    )
    check(
        d.dtype in MATRIX_DTYPES,
        lambda: (
            f"[eigh_tridiagonal] d and e must be float32, float64, complex64 or complex128; "
            f"got {d} and {e}. Fix: d.astype(jnp.float32)."
        ),
    )
    check(
        d.ndim == e.ndim == 1 and e.shape[0] == max(d.shape[0] - 1, 0),
        lambda: (
            f"[eigh_tridiagonal] d must be a vector and e one with an element less; got {d} "
            f"and {e}. Fix: e[:-1]."
        ),
        ValueError,
    )


def _subset(select: str, limits: Any, size: int) -> tuple[int, int] | None:
    check(
        select != "v",
        lambda: (
            "[eigh_tridiagonal] select must be 'a' or 'i'; got 'v', for which the shape would "
            "depend on values. Fix: select='i'."
        ),
        NotImplementedError,
    )
    check_choice("eigh_tridiagonal", "select", select, ("a", "i"))
    if select == "a":
        return None
    check(
        limits is not None and 0 <= limits[0] <= limits[1] < size,
        lambda: (
            "[eigh_tridiagonal] select_range must be the first and the last index, of "
            f"{size} values; got {limits}. Fix: select_range=(0, {max(size - 1, 0)})."
        ),
        ValueError,
    )
    first, last = limits
    return int(first), int(last) + 1
