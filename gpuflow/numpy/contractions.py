"""Products of matrices and tensors, all by dot_general.

Tests: tests/numpy/test_numpy_linalg.py, tests/numpy/test_operand_kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items, canonicalize_axis, known_index
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike, PrecisionLike, ShardingLike
from gpuflow.numpy.elementary import conj
from gpuflow.numpy.promotion import check_arraylike, convert, no_out, promote_dtypes, user_dtype
from gpuflow.numpy.shaping import moveaxis, ravel
from gpuflow.numpy.ufuncs import multiply
from gpuflow.ops.effects.device_put import in_sharding

Labels = tuple[Any, ...]


def contract(
    a: Any,
    a_labels: Labels,
    b: Any,
    b_labels: Labels,
    out_labels: Labels,
    precision: Any = None,
    preferred_element_type: Any = None,
    dot_general: Callable[..., Any] = lax.dot_general,
) -> Any:
    """Multiply two arrays whose axes are labeled, and sum over labels that the result lacks.

    A label of both operands and of the result is a batch axis, one of both operands only is
    summed over; every other label must be in the result.
    """
    shared = [label for label in a_labels if label in b_labels]
    batch = [label for label in out_labels if label in shared]
    summed = [label for label in shared if label not in out_labels]
    numbers = (
        ([a_labels.index(k) for k in summed], [b_labels.index(k) for k in summed]),
        ([a_labels.index(k) for k in batch], [b_labels.index(k) for k in batch]),
    )
    out = dot_general(
        a, b, numbers, precision=precision, preferred_element_type=preferred_element_type
    )
    product_labels = (
        *batch,
        *[label for label in a_labels if label not in shared],
        *[label for label in b_labels if label not in shared],
    )
    return lax.transpose(out, [product_labels.index(label) for label in out_labels])


def squeeze_ones(x: Any, labels: Labels, sizes: dict[Any, int]) -> tuple[Any, Labels]:
    """Drop axes of size 1 whose label has another size elsewhere: they broadcast."""
    shape = aval_of(x).shape
    dims = tuple(d for d, label in enumerate(labels) if shape[d] == 1 and sizes[label] != 1)
    return lax.squeeze(x, dims), tuple(k for d, k in enumerate(labels) if d not in dims)


def label_sizes(name: str, operands: Sequence[Any], labels: Sequence[Labels]) -> dict[Any, int]:
    """The size of each label; sizes of 1 broadcast.

    Raises:
        ValueError: two sizes for one label.
    """
    sizes: dict[Any, int] = {}
    for x, operand_labels in zip(operands, labels, strict=True):
        for size, label in zip(aval_of(x).shape, operand_labels, strict=True):
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                shapes = ", ".join(str(aval_of(v)) for v in operands)
                raise ValueError(
                    f"[{name}] axes that go together must have one size; got {known} and {size} "
                    f"for {shapes}. Fix: transpose or reshape an operand."
                )
    return sizes


@composite
def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Return the matrix product over the last two axes; leading axes broadcast.

    Args:
        a: array of shape (..., n, k), or a vector of k elements.
        b: array of shape (..., k, m), or a vector of k elements.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array of shape (..., n, m), without the axis of a vector.

    Raises:
        ValueError: if an operand is a scalar, or leading axes do not broadcast.
        TypeError: if inner sizes differ.

    Example:
        >>> jnp.matmul(jnp.array([[1, 2], [3, 4]]), jnp.array([10, 1]))
        Array([12, 34], dtype=int32)
        >>> jnp.matmul(jnp.ones((5, 2, 3)), jnp.ones((3, 4))).shape
        (5, 2, 4)
    """
    a, b = check_arraylike("matmul", a, b)
    avals = [aval_of(x) for x in (a, b)]
    check(
        all(aval.ndim > 0 for aval in avals),
        lambda: (
            f"[matmul] operands must have at least one axis; got {avals[0]} and {avals[1]}. "
            "Fix: use * for scalars."
        ),
        ValueError,
    )
    inner = avals[1].shape[0 if avals[1].ndim == 1 else -2]
    check(
        avals[0].shape[-1] == inner,
        lambda: (
            "[matmul] the last axis of the first operand must have the size of the second's "
            f"second-to-last; got {avals[0].shape[-1]} and {inner} for {avals[0]} and {avals[1]}. "
            "Fix: transpose an operand, for example x @ w.T."
        ),
    )
    a, b = _numbers("matmul", a, b, preferred_element_type)
    a_labels = _batch_labels(avals[0].ndim) + (("row",) if avals[0].ndim > 1 else ()) + ("k",)
    b_labels = _batch_labels(avals[1].ndim) + ("k",) + (("column",) if avals[1].ndim > 1 else ())
    batch = max(_batch_labels(avals[0].ndim), _batch_labels(avals[1].ndim), key=len)
    out = batch + tuple(k for k in (*a_labels, *b_labels) if k in ("row", "column"))
    sizes = label_sizes("matmul", (a, b), (a_labels, b_labels))
    a, a_labels = _squeeze_batch(a, a_labels, sizes)
    b, b_labels = _squeeze_batch(b, b_labels, sizes)
    out = contract(a, a_labels, b, b_labels, out, precision, preferred_element_type)
    return in_sharding("matmul", out, out_sharding)


def _batch_labels(rank: int) -> Labels:
    return tuple(range(2 - rank, 0)) if rank > 2 else ()


def _squeeze_batch(x: Any, labels: Labels, sizes: dict[Any, int]) -> tuple[Any, Labels]:
    """Only batch axes broadcast; rows and columns keep their size."""
    axis_sizes = dict(zip(labels, aval_of(x).shape, strict=True))
    fixed = {k: axis_sizes[k] if isinstance(k, str) else sizes[k] for k in labels}
    return squeeze_ones(x, labels, fixed)


@composite
def dot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Sum over the last axis of ``a`` and the second-to-last (or only) axis of ``b``.

    Args:
        a: array of shape (..., k), or a scalar.
        b: array of shape (..., k, m), a vector of k elements, or a scalar; with a scalar the
            product is elementwise.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array with the other axes of ``a``, then those of ``b``: leading axes do not broadcast.

    Raises:
        TypeError: if sizes differ.

    Example:
        >>> jnp.dot(jnp.array([1, 2, 3]), jnp.array([1, 0, 2]))
        Array(7, dtype=int32)
        >>> jnp.dot(jnp.ones((5, 2, 3)), jnp.ones((6, 3, 4))).shape
        (5, 2, 6, 4)
    """
    if out_sharding is not None:
        out = dot(a, b, precision=precision, preferred_element_type=preferred_element_type)
        return in_sharding("dot", out, out_sharding)
    a, b = _numbers("dot", a, b, preferred_element_type)
    a_rank, b_rank = aval_of(a).ndim, aval_of(b).ndim
    if a_rank == 0 or b_rank == 0:
        return _scaled("dot", a, b, preferred_element_type)
    axis = 0 if b_rank == 1 else b_rank - 2
    return tensordot(
        a,
        b,
        ((a_rank - 1,), (axis,)),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def _numbers(name: str, a: Any, b: Any, preferred: Any = None) -> Sequence[Any]:
    """Operands in their common dtype; unchanged if the dtype of the product is given.

    The product itself takes mixtures, also those without an implicit common dtype.
    """
    operands = check_arraylike(name, a, b)
    return promote_dtypes(*operands) if preferred is None else operands


def _scaled(name: str, a: Any, b: Any, preferred: Any) -> Any:
    """A product with a scalar operand."""
    if preferred is None:
        return multiply(a, b)
    out_dtype = user_dtype(preferred, name)
    return multiply(*[lax.convert_element_type(x, out_dtype) for x in (a, b)])


@composite
def tensordot(
    a: ArrayLike,
    b: ArrayLike,
    axes: Any = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: ShardingLike = None,
) -> Array:
    """Sum over pairs of axes.

    Args:
        a, b: arrays.
        axes: number of axes to contract, the last of ``a`` with the first of ``b``; or a pair of
            axes or of lists of axes.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.
        out_sharding: the sharding of the result; None infers it.

    Returns:
        An array with the other axes of ``a``, then those of ``b``.

    Raises:
        TypeError: if there are too many axes, axes do not come in pairs, or sizes differ.
        ValueError: if the axis does not exist.

    Example:
        >>> a, b = jnp.ones((2, 3, 4)), jnp.ones((3, 4, 5))
        >>> jnp.tensordot(a, b).shape
        (2, 5)
        >>> jnp.tensordot(a, b, axes=([1], [0])).shape
        (2, 4, 4, 5)
    """
    a, b = _numbers("tensordot", a, b, preferred_element_type)
    a_rank, b_rank = aval_of(a).ndim, aval_of(b).ndim
    count = known_index(axes)
    if isinstance(count, int):
        check(
            0 <= count <= min(a_rank, b_rank),
            lambda: (
                f"[tensordot] the number of axes must not exceed the ranks; got {axes} for "
                f"{aval_of(a)} and {aval_of(b)}. Fix: sum over fewer axes."
            ),
            TypeError,
        )
        left, right = range(a_rank - count, a_rank), range(count)
    else:
        pair = as_items("tensordot", "axes", axes)
        check(
            len(pair) == 2,
            lambda: f"[tensordot] axes must be an int or a pair; got {brief(axes)}. Fix: axes=1.",
            ValueError,
        )
        left, right = (v if isinstance(v, (tuple, list)) else (v,) for v in pair)
    left = [canonicalize_axis(d, a_rank, "tensordot") for d in left]
    right = [canonicalize_axis(d, b_rank, "tensordot") for d in right]
    check(
        len(left) == len(right),
        lambda: f"[tensordot] axes must come in pairs; got {axes}. Fix: equally long lists.",
        TypeError,
    )
    out = lax.dot_general(a, b, ((left, right), ((), ())), precision, preferred_element_type)
    return in_sharding("tensordot", out, out_sharding)


@composite
def vdot(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Return the inner product of all elements; the first operand is conjugated.

    Args:
        a, b: arrays with the same number of elements; they are flattened.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.

    Returns:
        An array of rank 0.

    Raises:
        TypeError: if the numbers of elements differ.

    Example:
        >>> jnp.vdot(jnp.array([1, 1j]), jnp.array([1, 1j]))
        Array(2.+0.j, dtype=complex64)
    """
    a, b = _numbers("vdot", a, b, preferred_element_type)
    return dot(
        ravel(conj(a)),
        ravel(b),
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


@composite
def inner(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Sum the products over the last axes of both arrays.

    Args:
        a, b: arrays with the same last size; with a scalar the product is elementwise.
        precision: precision of float32 products on GPUs, see ``lax.Precision``; None uses the
            setting ``default_matmul_precision``.
        preferred_element_type: dtype of the result; None uses the common dtype.

    Returns:
        An array with the other axes of ``a``, then those of ``b``.

    Raises:
        TypeError: if sizes differ.

    Example:
        >>> jnp.inner(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 0], [0, 1], [1, 1]]))
        Array([[1, 2, 3],
               [3, 4, 7]], dtype=int32)
    """
    a, b = _numbers("inner", a, b, preferred_element_type)
    if aval_of(a).ndim == 0 or aval_of(b).ndim == 0:
        return _scaled("inner", a, b, preferred_element_type)
    return tensordot(
        a, b, ((-1,), (-1,)), precision=precision, preferred_element_type=preferred_element_type
    )


@composite
def outer(a: ArrayLike, b: ArrayLike, out: None = None) -> Array:
    """Return the outer product, the matrix of all products ``a[i] * b[j]``.

    Args:
        a, b: arrays of m and n elements; they are flattened.
        out: must be None.

    Returns:
        An array of shape (m, n), in the common dtype.

    Raises:
        NotImplementedError: if ``out`` is given.

    Example:
        >>> jnp.outer(jnp.array([1, 2]), jnp.array([1, 10, 100]))
        Array([[  1,  10, 100],
               [  2,  20, 200]], dtype=int32)
    """
    no_out("outer", out)
    a, b = promote_dtypes(*[ravel(x) for x in _numbers("outer", a, b)])
    (m,), (n,) = aval_of(a).shape, aval_of(b).shape
    return multiply(lax.broadcast_in_dim(a, (m, 1), (0,)), lax.broadcast_in_dim(b, (1, n), (1,)))


@composite
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
        preferred_element_type: dtype of the products, of their sum and of the result; None uses the
            common dtype.

    Returns:
        An array of the common shape without ``axis``.

    Raises:
        ValueError: if the vectors differ in size.

    Example:
        >>> jnp.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 10]))
        Array([21, 43], dtype=int32)
    """
    del precision
    x1, x2 = _numbers("vecdot", x1, x2)
    # The vectors come last before the other axes broadcast: operands may differ in rank.
    x1, x2 = (moveaxis(x, axis, -1) for x in (x1, x2))
    sizes = [aval_of(x).shape[-1] for x in (x1, x2)]
    check(
        sizes[0] == sizes[1],
        lambda: (
            f"[vecdot] vectors must have one size; got {sizes[0]} and {sizes[1]} for "
            f"{aval_of(x1)} and {aval_of(x2)}. Fix: slice one of them."
        ),
        ValueError,
    )
    if preferred_element_type is not None:
        out_dtype = user_dtype(preferred_element_type, "vecdot")
        x1, x2 = convert(x1, out_dtype), convert(x2, out_dtype)
    product = multiply(conj(x1), x2)
    # The product of bools is an ``or`` of ``and``.
    total = lax.reduce_or if dtypes.is_bool(aval_of(product).dtype) else lax.reduce_sum
    return total(product, (aval_of(product).ndim - 1,))
