"""Systems of linear equations and inverses; products and powers of matrices.

Tests: tests/numpy/test_numpy_linalg.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index as as_index
from string import ascii_letters
from typing import Any

from gpuflow import lax
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, PrecisionLike
from gpuflow.lax import linalg as lax_linalg
from gpuflow.numpy.contractions import matmul
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.decompositions import matrices
from gpuflow.numpy.einsum import einsum
from gpuflow.numpy.exact_products import exact_matmul
from gpuflow.numpy.promotion import check_arraylike, promote_dtypes_inexact
from gpuflow.numpy.shaping import broadcast_shapes, expand_dims, moveaxis, ravel, reshape
from gpuflow.ops.linalg.algebra import identity_like, through_float32, with_batch
from gpuflow.ops.linalg.lu import lu_solve


def check_square(name: str, a: Any) -> None:
    shape = aval_of(a).shape
    check(
        len(shape) >= 2 and shape[-1] == shape[-2],
        lambda: (
            f"[{name}] matrices must have shape (..., n, n); got {aval_of(a)}. "
            "Fix: check the shape."
        ),
        ValueError,
    )


# --- systems -------------------------------------------------------------------------------


@custom_jvp
def _solve_batched(a: Any, b: Any) -> Any:
    factors, _, permutation = lax_linalg.lu(a)
    return _solve_with(factors, permutation, b)


@_solve_batched.defjvp
def _solve_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Derivative of A X = B: A dX = dB - dA X, with the same factors."""
    (a, b), (d_a, d_b) = primals, tangents
    factors, _, permutation = lax_linalg.lu(a)
    x = _solve_with(factors, permutation, b)
    return x, _solve_with(factors, permutation, lax.sub(d_b, exact_matmul(d_a, x)))


solve_batched = through_float32(_solve_batched)


def _solve_with(factors: Any, permutation: Any, b: Any) -> Any:
    """Solve with one decomposition for all right-hand sides of a matrix."""
    matrix_batch, rhs_batch = aval_of(factors).shape[:-2], aval_of(b).shape[:-2]
    if not matrix_batch and rhs_batch:
        size, count = aval_of(b).shape[-2:]
        flat = reshape(moveaxis(b, -2, 0), (size, prod(rhs_batch) * count))
        solutions = reshape(lu_solve(factors, permutation, flat), (size, *rhs_batch, count))
        return moveaxis(solutions, 0, -2)
    batch = broadcast_shapes(matrix_batch, rhs_batch)
    factors, permutation = with_batch(factors, batch, 2), with_batch(permutation, batch, 1)
    return lu_solve(factors, permutation, with_batch(b, batch, 2))


@composite
def solve(a: ArrayLike, b: ArrayLike) -> Array:
    """Solve ``a @ x == b``.

    Args:
        a: square matrices of shape (..., n, n).
        b: a vector of n elements, or matrices of shape (..., n, k); batches broadcast.

    Returns:
        An array like ``b``; inf or nan for singular matrices.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> jnp.linalg.solve(jnp.array([[2.0, 0.0], [1.0, 1.0]]), jnp.array([4.0, 5.0]))
        Array([2., 3.], dtype=float32)
    """
    a, b = check_arraylike("solve", a, b)
    a, b = (asarray(x) for x in promote_dtypes_inexact(a, b))
    check_square("solve", a)
    shape = aval_of(b).shape
    vector = len(shape) == 1
    check(
        len(shape) >= 1 and shape[-1 if vector else -2] == aval_of(a).shape[-1],
        lambda: (
            f"[solve] b must be a vector, or matrices with as many rows as a; got {aval_of(a)} "
            f"and {aval_of(b)}. Fix: solve(a, b[..., None])[..., 0] for batches of vectors."
        ),
        ValueError,
    )
    if not vector:
        return solve_batched(a, b)
    return lax.squeeze(solve_batched(a, expand_dims(b, 1)), (aval_of(a).ndim - 1,))


@composite
def inv(a: ArrayLike) -> Array:
    """Return the inverses of square matrices of shape (..., n, n).

    Args:
        a: matrices of shape (..., n, n); integers are converted to floats.

    Returns:
        An array of the shape of ``a``; inf or nan for singular matrices.

    Raises:
        ValueError: if the matrices are not square.

    Example:
        >>> jnp.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
        Array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float32)
    """
    (a,) = matrices("inv", a)
    check_square("inv", a)
    return solve_batched(a, with_batch(identity_like(a), aval_of(a).shape[:-2], 2))


@composite
def tensorsolve(a: ArrayLike, b: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Solve ``tensordot(a, x, x.ndim) == b``.

    Args:
        a: array of shape (*b.shape, *x.shape), with as many equations as unknowns.
        b: array.
        axes: axes of ``a`` to move to the end first.

    Returns:
        An array with the shape of the axes of ``a`` after the first ``b.ndim`` ones.

    Raises:
        ValueError: if shapes do not match.

    Example:
        >>> a = 2 * jnp.eye(4).reshape(2, 2, 4)
        >>> jnp.linalg.tensorsolve(a, jnp.array([[2.0, 4.0], [6.0, 8.0]]))
        Array([1., 2., 3., 4.], dtype=float32)
    """
    a, b = check_arraylike("tensorsolve", a, b)
    if axes is not None:
        rank = aval_of(a).ndim
        a = moveaxis(a, tuple(axes), tuple(range(rank - len(axes), rank)))
    left, right = aval_of(a).shape, aval_of(b).shape
    unknown = left[len(right) :]
    check(
        left[: len(right)] == right and prod(right) == prod(unknown),
        lambda: (
            f"[tensorsolve] a must have the shape of b and then as many unknowns; got "
            f"{aval_of(a)} and {aval_of(b)}. Fix: reorder the axes of a."
        ),
        ValueError,
    )
    count = prod(right)
    return reshape(solve(reshape(a, (count, count)), ravel(b)), unknown)


@composite
def tensorinv(a: ArrayLike, ind: int = 2) -> Array:
    """Return the inverse of ``a`` as a linear map from its last axes to its first ``ind`` axes.

    Args:
        a: array with as many elements along its first ``ind`` axes as along the others.
        ind: number of leading axes.

    Returns:
        An array with the shape of the last axes of ``a``, followed by its first ones.

    Raises:
        ValueError: if the map is not square, or ``ind`` is below 1.

    Example:
        >>> jnp.linalg.tensorinv(jnp.eye(4).reshape(4, 2, 2), ind=1).shape
        (2, 2, 4)
    """
    (a,) = check_arraylike("tensorinv", a)
    count, shape = as_index(ind), aval_of(a).shape
    first, tail = shape[:count], shape[count:]
    check(
        count > 0 and prod(first) == prod(tail),
        lambda: (
            f"[tensorinv] the first ind axes must hold as many elements as the others; got "
            f"{aval_of(a)} and ind={ind}. Fix: another ind."
        ),
        ValueError,
    )
    size = prod(first)
    return reshape(inv(reshape(a, (size, size))), (*tail, *first))


# --- powers and chains ---------------------------------------------------------------------


@composite
def matrix_power(a: ArrayLike, n: int) -> Array:
    """Return the ``n``-th power of square matrices; negative powers are those of the inverse.

    Args:
        a: matrices of shape (..., m, m).
        n: a static integer; for 0 the result is the identity.

    Returns:
        An array of the shape of ``a``; of floats for negative ``n``.

    Raises:
        TypeError: if the matrices are not square, or ``n`` is not an integer.

    Example:
        >>> jnp.linalg.matrix_power(jnp.array([[1, 1], [0, 1]]), 3)
        Array([[1, 3],
               [0, 1]], dtype=int32)
    """
    (a,) = check_arraylike("matrix_power", a)
    a, shape = asarray(a), aval_of(a).shape
    check(
        len(shape) >= 2 and shape[-1] == shape[-2],
        lambda: f"[matrix_power] matrices must be square; got {aval_of(a)}. Fix: a[..., :n, :n].",
    )
    check(
        hasattr(n, "__index__"),
        lambda: f"[matrix_power] n must be an integer; got {n!r}. Fix: pass a Python int.",
    )
    count = as_index(n)
    if count == 0:
        return with_batch(identity_like(a), shape[:-2], 2)
    base = inv(a) if count < 0 else a
    power, count = None, abs(count)
    while True:
        if count % 2:
            power = base if power is None else matmul(power, base)
        count //= 2
        if not count:
            return power
        base = matmul(base, base)


@composite
def multi_dot(arrays: Sequence[ArrayLike], *, precision: PrecisionLike = None) -> Array:
    """Return the product of two or more matrices, in the cheapest order.

    Args:
        arrays: matrices; the first and the last may be vectors.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.

    Returns:
        A matrix; a vector or a scalar if the first or the last operand is a vector.

    Raises:
        ValueError: if there are fewer than two arrays, or shapes do not match.

    Example:
        >>> a, b = jnp.ones((2, 3)), jnp.ones((3, 2))
        >>> jnp.linalg.multi_dot([a, b, jnp.array([1.0, 2.0])])
        Array([9., 9.], dtype=float32)
    """
    arrays = list(arrays)
    arrays = check_arraylike("multi_dot", *arrays)
    shapes = [aval_of(x).shape for x in arrays]
    ends_ok = len(shapes) >= 2 and all(len(shape) in (1, 2) for shape in (shapes[0], shapes[-1]))
    check(
        ends_ok
        and all(len(shape) == 2 for shape in shapes[1:-1])
        and all(left[-1] == right[0] for left, right in pairwise(shapes)),
        lambda: (
            f"[multi_dot] there must be two or more matrices of which inner sizes agree; got "
            f"shapes {shapes}. Fix: transpose an operand."
        ),
        ValueError,
    )
    letters = [ascii_letters[k : k + 2] for k in range(len(shapes))]
    letters[0] = letters[0][2 - len(shapes[0]) :]
    letters[-1] = letters[-1][: len(shapes[-1])]
    out = letters[0][:-1] + letters[-1][1:]
    return einsum(f"{','.join(letters)}->{out}", *arrays, precision=precision)
