"""jnp.linalg: matrix decompositions, solvers, norms and products.

Tests: tests/numpy/test_numpy_linalg.py.
"""

from __future__ import annotations

from gpuflow.base import arguments
from gpuflow.base.errors import check
from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike
from gpuflow.numpy import contractions as _contractions
from gpuflow.numpy import matrices as _matrices
from gpuflow.numpy.contractions import matmul as matmul
from gpuflow.numpy.contractions import tensordot as tensordot
from gpuflow.numpy.creation import astype
from gpuflow.numpy.decompositions import cholesky as cholesky
from gpuflow.numpy.decompositions import eig as eig
from gpuflow.numpy.decompositions import eigh as eigh
from gpuflow.numpy.decompositions import eigvals as eigvals
from gpuflow.numpy.decompositions import eigvalsh as eigvalsh
from gpuflow.numpy.decompositions import qr as qr
from gpuflow.numpy.decompositions import svd as svd
from gpuflow.numpy.decompositions import svdvals as svdvals
from gpuflow.numpy.determinants import det as det
from gpuflow.numpy.determinants import slogdet as slogdet
from gpuflow.numpy.least_squares import lstsq as lstsq
from gpuflow.numpy.least_squares import pinv as pinv
from gpuflow.numpy.norms import cond as cond
from gpuflow.numpy.norms import matrix_norm as matrix_norm
from gpuflow.numpy.norms import matrix_rank as matrix_rank
from gpuflow.numpy.norms import norm as norm
from gpuflow.numpy.norms import vector_norm as vector_norm
from gpuflow.numpy.promotion import check_arraylike
from gpuflow.numpy.shaping import matrix_transpose as matrix_transpose
from gpuflow.numpy.solvers import inv as inv
from gpuflow.numpy.solvers import matrix_power as matrix_power
from gpuflow.numpy.solvers import multi_dot as multi_dot
from gpuflow.numpy.solvers import solve as solve
from gpuflow.numpy.solvers import tensorinv as tensorinv
from gpuflow.numpy.solvers import tensorsolve as tensorsolve

_HELPERS = (
    "Any",
    "Array",
    "ArrayLike",
    "DTypeLike",
    "PrecisionLike",
    "astype",
    "aval_of",
    "check",
    "check_arraylike",
    "composite",
)


@composite
def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Array:
    """Return the elements ``x[..., i, i + offset]`` of matrices in the last two axes.

    Args:
        x: matrices of shape (..., m, n).
        offset: offset of the diagonal above the main diagonal; negative values are below it.

    Returns:
        An array of shape (..., k) for a diagonal of k elements.

    Raises:
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.linalg.diagonal(jnp.array([[[1, 2], [3, 4]]]))
        Array([[1, 4]], dtype=int32)
    """
    return _matrices.diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: DTypeLike | None = None) -> Array:
    """Return the sums of diagonals of matrices in the last two axes.

    Args:
        x: matrices of shape (..., m, n).
        offset: offset of the diagonal above the main diagonal; negative values are below it.
        dtype: dtype of the result; by default the dtype of ``x``, widened as for ``sum``.

    Returns:
        An array of shape (...).

    Raises:
        ValueError: if the rank is below 2.

    Example:
        >>> jnp.linalg.trace(jnp.array([[[1, 2], [3, 4]]]))
        Array([5], dtype=int32)
    """
    return _matrices.trace(x, offset, -2, -1, dtype)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Array:
    """Return the outer product of two vectors.

    Args:
        x1: vector of m elements.
        x2: vector of n elements.

    Returns:
        A matrix of shape (m, n) and of the common dtype.

    Raises:
        ValueError: if an operand is not a vector.

    Example:
        >>> jnp.linalg.outer(jnp.array([1, 2]), jnp.array([1, 10]))
        Array([[ 1, 10],
               [ 2, 20]], dtype=int32)
    """
    x1, x2 = check_arraylike("outer", x1, x2)
    check(
        aval_of(x1).ndim == aval_of(x2).ndim == 1,
        lambda: (
            f"[outer] operands must be vectors; got {aval_of(x1)} and {aval_of(x2)}. "
            "Fix: jnp.outer, which flattens."
        ),
        ValueError,
    )
    return _contractions.outer(x1, x2)


@composite
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Array:
    """Return the cross product of vectors of three elements along ``axis``.

    Args:
        x1, x2: arrays that broadcast, of size 3 along ``axis``.
        axis: the axis of the vectors in the operands and in the result.

    Returns:
        An array of the common shape and dtype.

    Raises:
        ValueError: if a vector has another size.

    Example:
        >>> jnp.linalg.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
        Array([0, 0, 1], dtype=int32)
    """
    x1, x2 = check_arraylike("cross", x1, x2)
    shapes = [aval_of(x).shape for x in (x1, x2)]
    sizes = tuple(shape[arguments.canonicalize_axis(axis, len(shape), "cross")] for shape in shapes)
    check(
        sizes == (3, 3),
        lambda: f"[cross] vectors must have three elements; got {sizes}. Fix: jnp.cross.",
        ValueError,
    )
    return _matrices.cross(x1, x2, axis=axis)


def vecdot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Return the inner product along ``axis``; the first operand is conjugated.

    Args:
        x1, x2: arrays that broadcast.
        axis: the axis of the vectors.
        precision: accepted as in JAX; a hint for devices that can trade accuracy for speed.
        preferred_element_type: dtype of the result.

    Returns:
        An array of the common shape without ``axis``.

    Raises:
        ValueError: if the vectors differ in size.

    Example:
        >>> jnp.linalg.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 10]))
        Array([21, 43], dtype=int32)
    """
    del precision
    out = _contractions.vecdot(x1, x2, axis=axis)
    return out if preferred_element_type is None else astype(out, preferred_element_type)


_publish(globals(), "jnp.linalg", [k for k in _public_names(globals()) if k not in _HELPERS])
