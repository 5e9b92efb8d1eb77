"""ormqr: products with the implicit Q of a QR decomposition.

Tests: tests/ops/test_linalg_rest.py, tests/ops/test_device_lapack.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.lowering import Library
from gpuflow.core.rules import Zero, is_undefined, zero_tangent
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise.complex_numbers import conj
from gpuflow.ops.linalg import device_lapack
from gpuflow.ops.linalg.algebra import Shape, through_float32
from gpuflow.ops.linalg.common import Outputs, each_matrix, lapack, matrix_op


def _result(a: Shape, taus: Shape, c: Shape, dtype: Any, *, left: bool, transpose: bool) -> Outputs:
    del transpose
    check(
        c[0 if left else 1] == a[0],
        lambda: (
            f"[ormqr] c must have as many {'rows' if left else 'columns'} as the reflectors have "
            f"rows; got {a} and c of shape {c} with left={left}. Fix: transpose c, or left."
        ),
        ValueError,
    )
    check(
        taus[0] <= min(a),
        lambda: (
            f"[ormqr] there must not be more factors than reflectors; got {taus[0]} for {a}. "
            "Fix: drop factors."
        ),
        ValueError,
    )
    return [(c, dtype)]


def _impl(xp: Any, a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    if not c.size or not taus.shape[-1]:
        return c.copy()
    if xp is not np:
        return device_lapack.ormqr(xp, a, taus, c, left, transpose)
    is_complex = a.dtype.kind == "c"
    (ormqr,) = lapack(["unmqr" if is_complex else "ormqr"], a)
    side, flag = "L" if left else "R", ("C" if is_complex else "T") if transpose else "N"
    # LAPACK uses blocks of at most 64 columns.
    work_size = 64 * max(c.shape[-2:])

    def product(reflectors: np.ndarray, tau: np.ndarray, other: np.ndarray) -> Sequence[Any] | None:
        out, _, info = ormqr(side, flag, reflectors[:, : len(tau)], tau, other, work_size)
        return [out] if info == 0 else None

    return each_matrix(product, [a, taus, c], [2, 1, 2], [(c.shape[-2:], c.dtype)])[0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = ormqr_p.bind(*primals, **params)
    check(
        type(tangents[0]) is Zero and type(tangents[1]) is Zero,
        lambda: (
            "[ormqr] reflectors and factors are a packed form without a derivative; got "
            "tangents for them. Fix: Q of lax.linalg.qr, which has one."
        ),
        NotImplementedError,
    )
    if type(tangents[2]) is Zero:
        return out, zero_tangent(out)
    return out, ormqr_p.bind(primals[0], primals[1], tangents[2], **params)


def _transpose(ct: Any, a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> list[Any]:
    """The transposed Q is the conjugate of its adjoint."""
    if not is_undefined(c):
        return [None, None, None]
    if type(ct) is Zero:
        return [None, None, Zero(c.aval.tangent())]
    product = ormqr_p.bind(a, taus, _conj(ct), left=left, transpose=not transpose)
    return [None, None, _conj(product)]


def _conj(x: Any) -> Any:
    return conj(x) if dtypes.is_complex(aval_of(x).dtype) else x


ormqr_p = matrix_op(
    "ormqr",
    (2, 1, 2),
    _result,
    _impl,
    jvp=_jvp,
    transpose=_transpose,
    lower=Library(flops=lambda ins, outs, params: 4 * ins[2].size * ins[1].shape[-1]),
)


@explained
@through_float32
def ormqr(
    a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False
) -> Array:
    """Multiply a matrix by the Q of ``geqrf``.

    Args:
        a, taus: reflectors (..., m, n) and their factors (..., k), of ``geqrf``.
        c: matrices (..., rows, columns); m rows with ``left``, else m columns.
        left: whether to multiply by Q from the left instead of the right.
        transpose: whether to use the adjoint of Q.

    Returns:
        An array like ``c``, differentiable with respect to ``c``.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> a = jnp.array([[3.0, 1.0], [4.0, 2.0]])
        >>> reflectors, factors = lax.linalg.geqrf(a)
        >>> r = jnp.triu(reflectors)
        >>> bool(jnp.allclose(lax.linalg.ormqr(reflectors, factors, r), a, atol=1e-5))
        True
    """
    return ormqr_p.bind(a, taus, c, left=bool(left), transpose=bool(transpose))
