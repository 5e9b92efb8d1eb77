"""Grids and positions: coordinates of all points, of diagonals and of triangles.

Tests: tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal, overload

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items, check_choice
from gpuflow.base.errors import OutOfMemoryError, check
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, DTypeLike
from gpuflow.numpy.arguments import as_array, as_arrays, known, static_int
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.joining import stack
from gpuflow.numpy.logic import clip, where
from gpuflow.numpy.positions import nonzero
from gpuflow.numpy.promotion import convert, promote_dtypes, user_dtype
from gpuflow.numpy.ufuncs import divmod as divide_with_remainder
from gpuflow.numpy.ufuncs import remainder


@explained
def meshgrid(
    *xi: ArrayLike, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Array]:
    """Return the coordinates of all points of a grid, one array for each vector.

    Args:
        xi: vectors of coordinates, of n, m, ... elements.
        copy: must be True.
        sparse: whether each array has size 1 along the axes of the other arrays.
        indexing: ``"xy"`` swaps the first two axes; ``"ij"`` keeps the order of the vectors.

    Returns:
        A list of arrays of shape (n, m, ...) for ``"ij"`` and (m, n, ...) for ``"xy"``, each of the
        dtype of its vector.

    Raises:
        ValueError: if an array is not a vector, or options are invalid.

    Example:
        >>> x, y = jnp.meshgrid(jnp.array([1, 2, 3]), jnp.array([10, 20]))
        >>> x
        Array([[1, 2, 3],
               [1, 2, 3]], dtype=int32)
        >>> y
        Array([[10, 10, 10],
               [20, 20, 20]], dtype=int32)
    """
    vectors = as_arrays("meshgrid", *xi)
    check(
        copy,
        lambda: "[meshgrid] copy must be True: arrays are immutable; got False. Fix: sparse=True.",
        ValueError,
    )
    check_choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    check(
        all(aval_of(x).ndim == 1 for x in vectors),
        lambda: (
            "[meshgrid] coordinates must be vectors; got "
            f"{', '.join(str(aval_of(x)) for x in vectors)}. Fix: jnp.ravel(x)."
        ),
        ValueError,
    )
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) >= 2:
        axes[0], axes[1] = 1, 0
    sizes = [0] * len(vectors)
    for x, d in zip(vectors, axes, strict=True):
        sizes[d] = aval_of(x).shape[0]
    out = []
    for x, d in zip(vectors, axes, strict=True):
        grid_shape = [n if k == d or not sparse else 1 for k, n in enumerate(sizes)]
        out.append(lax.broadcast_in_dim(x, grid_shape, (d,)))
    return out


@overload
def indices(
    dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: Literal[False] = False
) -> Array: ...
@overload
def indices(
    dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: bool = False
) -> tuple[Array, ...]: ...
@composite
def indices(dimensions: Sequence[int], dtype: DTypeLike | None = None, sparse: bool = False) -> Any:
    """Return the indices of all elements of a shape.

    Args:
        dimensions: the shape, of length r.
        dtype: dtype of the result; the default integer dtype by default.
        sparse: whether to return a tuple of arrays that broadcast instead of one array.

    Returns:
        An array of shape (r, *dimensions); with ``sparse`` a tuple of r arrays.

    Raises:
        TypeError: if sizes are not ints.

    Example:
        >>> rows, columns = jnp.indices((2, 3))
        >>> rows
        Array([[0, 0, 0],
               [1, 1, 1]], dtype=int32)
        >>> columns
        Array([[0, 1, 2],
               [0, 1, 2]], dtype=int32)
    """
    out_dtype = user_dtype(int if dtype is None else dtype, "indices")
    sizes = [static_int("indices", "dimensions", n) for n in dimensions]
    out = [
        lax.iota(out_dtype, [n if k == d or not sparse else 1 for k, n in enumerate(sizes)], d)
        for d in range(len(sizes))
    ]
    if sparse:
        return tuple(out)
    return stack(out, 0) if out else lax.full((0,), 0, out_dtype)


@explained
def ix_(*args: ArrayLike) -> tuple[Array, ...]:
    """Reshape index vectors so that they select all combinations.

    Args:
        args: vectors of integers.

    Returns:
        A tuple of arrays that broadcast, each with its vector along a separate axis.

    Raises:
        ValueError: if an array is not a vector.
        NotImplementedError: if an argument is boolean.

    Example:
        >>> x = jnp.arange(12).reshape(3, 4)
        >>> x[jnp.ix_(jnp.array([0, 2]), jnp.array([1, 3]))]
        Array([[ 1,  3],
               [ 9, 11]], dtype=int32)
    """
    vectors = as_arrays("ix_", *args)
    for x in vectors:
        check(
            aval_of(x).ndim == 1,
            lambda x=x: f"[ix_] indices must be vectors; got {aval_of(x)}. Fix: jnp.ravel(i).",
            ValueError,
        )
        check(
            not dtypes.is_bool(aval_of(x).dtype),
            lambda x=x: (
                f"[ix_] indices must be integers; got {aval_of(x)}. Fix: jnp.nonzero(x)[0]."
            ),
            NotImplementedError,
        )
    out = []
    for d, x in enumerate(vectors):
        if not aval_of(x).size:
            x = lax.full((0,), 0, dtypes.default_int())
        out.append(lax.expand_dims(x, [k for k in range(len(vectors)) if k != d]))
    return tuple(out)


# --- diagonals and triangles ---------------------------------------------------------------


@explained
def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of an array of ``ndim`` axes of size ``n``.

    Args:
        n: the size, an int.
        ndim: number of axes.

    Returns:
        A tuple of ``ndim`` vectors of ``n`` integers.

    Raises:
        ValueError: if a number is negative.
        TypeError: if an argument is not an int.

    Example:
        >>> jnp.zeros((2, 2)).at[jnp.diag_indices(2)].set(5)
        Array([[5., 0.],
               [0., 5.]], dtype=float32)
    """
    count, rank = static_int("diag_indices", "n", n), static_int("diag_indices", "ndim", ndim)
    check(
        count >= 0 and rank >= 0,
        lambda: f"[diag_indices] n and ndim must not be negative; got {count} and {rank}. Fix: 2.",
        ValueError,
    )
    return (lax.iota(dtypes.default_int(), (count,)),) * rank


@explained
def diag_indices_from(arr: ArrayLike) -> tuple[Array, ...]:
    """Return the indices of the main diagonal of an array with axes of equal size.

    Args:
        arr: array of shape (n, n, ...).

    Returns:
        A tuple of vectors of n integers, one for each axis.

    Raises:
        ValueError: if there are fewer than two axes, or sizes differ.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> x[jnp.diag_indices_from(x)]
        Array([1, 4], dtype=int32)
    """
    shape: Any = aval_of(as_array("diag_indices_from", arr)).shape
    check(
        len(shape) >= 2 and len(set(shape)) == 1,
        lambda: (
            f"[diag_indices_from] the array must have two axes or more, of one size; got shape "
            f"{shape}. Fix: jnp.diag_indices(n)."
        ),
        ValueError,
    )
    return diag_indices(shape[0], len(shape))


def _triangle(name: str, n: Any, k: Any, m: Any, upper: bool) -> tuple[Any, Any]:
    rows, offset = static_int(name, "n", n), static_int(name, "k", k)
    columns = rows if m is None else static_int(name, "m", m)
    pick = np.triu_indices if upper else np.tril_indices
    try:
        indices = pick(rows, offset, columns)
    except (MemoryError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(
            f"[{name}] the matrix must fit into memory; got {rows} by {columns} elements. "
            "Fix: a smaller n."
        ) from error
    return tuple(asarray(index.astype(dtypes.default_int())) for index in indices)


@explained
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices on and above diagonal ``k`` of an n by m matrix.

    Args:
        n: number of rows, an int.
        k: the diagonal: 0 is the main diagonal, positive numbers are above it.
        m: number of columns; None uses ``n``.

    Returns:
        (rows, columns), two vectors of integers.

    Raises:
        TypeError: if an argument is not an int.

    Example:
        >>> jnp.triu_indices(2)
        (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return _triangle("triu_indices", n, k, m, True)


@explained
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Return the indices on and below diagonal ``k`` of an n by m matrix.

    Args:
        n: number of rows, an int.
        k: the diagonal: 0 is the main diagonal, positive numbers are above it.
        m: number of columns; None uses ``n``.

    Returns:
        (rows, columns), two vectors of integers.

    Raises:
        TypeError: if an argument is not an int.

    Example:
        >>> jnp.tril_indices(3, k=-1)
        (Array([1, 2, 2], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    return _triangle("tril_indices", n, k, m, False)


def _matrix_shape(name: str, arr: Any) -> tuple[int, int]:
    shape: Any = getattr(arr, "shape", None)
    if not isinstance(shape, tuple):
        shape = aval_of(as_array(name, arr)).shape
    check(
        len(shape) == 2,
        lambda: f"[{name}] the array must be a matrix; got shape {tuple(shape)}. Fix: index it.",
        ValueError,
    )
    return shape


@explained
def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices on and above diagonal ``k`` of a matrix.

    Args:
        arr: array of shape (n, m), or an object with such a shape.
        k: the diagonal: 0 is the main diagonal, positive numbers are above it.

    Returns:
        (rows, columns), two vectors of integers.

    Raises:
        ValueError: if the argument is not a matrix.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> x[jnp.triu_indices_from(x)]
        Array([1, 2, 4], dtype=int32)
    """
    rows, columns = _matrix_shape("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


@explained
def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """Return the indices on and below diagonal ``k`` of a matrix.

    Args:
        arr: array of shape (n, m), or an object with such a shape.
        k: the diagonal: 0 is the main diagonal, positive numbers are above it.

    Returns:
        (rows, columns), two vectors of integers.

    Raises:
        ValueError: if the argument is not a matrix.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> x[jnp.tril_indices_from(x)]
        Array([1, 3, 4], dtype=int32)
    """
    rows, columns = _matrix_shape("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


@explained
def mask_indices(
    n: int, mask_func: Callable[..., Any], k: int = 0, *, size: int | None = None
) -> tuple[Array, Array]:
    """Return the indices in an n by n matrix that ``mask_func(matrix, k)`` does not set to 0.

    Args:
        n: the size, an int.
        mask_func: function of a matrix of ones and ``k``, such as ``jnp.triu``.
        k: argument of ``mask_func``.
        size: static number of indices, for use under jit; None returns all.

    Returns:
        (rows, columns), two vectors of integers.

    Raises:
        TypeError: if an argument is not an int.

    Example:
        >>> jnp.mask_indices(3, jnp.triu, 1)
        (Array([0, 0, 1], dtype=int32), Array([1, 2, 2], dtype=int32))
    """
    count = static_int("mask_indices", "n", n)
    ones = lax.full((count, count), 1, dtypes.default_float())
    return nonzero(mask_func(ones, k), size=size)


# --- positions in the raveled array --------------------------------------------------------


@composite
def unravel_index(indices: ArrayLike, shape: Any) -> tuple[Array, ...]:
    """Convert flat indices to index arrays for ``shape``.

    Out-of-bounds indices are clamped; negative ones count from the end.

    Args:
        indices: array of integers.
        shape: an int or a sequence of ints.

    Returns:
        A tuple of arrays like ``indices``, one for each axis.

    Raises:
        ValueError: if the shape is invalid.

    Example:
        >>> jnp.unravel_index(jnp.array([5, -1]), (3, 4))
        (Array([1, 2], dtype=int32), Array([1, 3], dtype=int32))
    """
    quotient = as_array("unravel_index", indices)
    sizes = list(shape) if isinstance(shape, (tuple, list)) or np.ndim(shape) else [shape]
    check(
        all(np.ndim(n) == 0 for n in sizes),
        lambda: (
            f"[unravel_index] shape must be an int or a sequence of ints; got {shape!r}. "
            "Fix: (3, 4)."
        ),
        ValueError,
    )
    out = []
    for size in reversed(sizes):
        quotient, index = divide_with_remainder(quotient, size)
        out.append((index, size))
    above = quotient > 0
    below = quotient < -1 if aval_of(quotient).dtype.kind == "i" else None
    result = []
    for index, size in reversed(out):
        index = index if below is None else where(below, 0, index)
        result.append(where(above, size - 1, index))
    return tuple(result)


_RAVEL_MODES = ("raise", "wrap", "clip", "ignore")


@composite
def ravel_multi_index(
    multi_index: ArraysLike,
    dims: Sequence[int],
    mode: str = "raise",
    order: str = "C",
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """Convert index arrays to flat indices.

    Args:
        multi_index: one integer array for each axis.
        dims: the shape.
        mode: handling of out-of-bounds indices: ``"raise"`` (requires static indices), ``"wrap"``,
            ``"clip"`` or ``"ignore"``.
        order: ``"C"``: row-major; ``"F"``: column-major.
        dtype: dtype of the result; by default the common dtype of the indices and the default
            integer dtype.

    Returns:
        An array of integers, of the shape to which the indices broadcast.

    Raises:
        ValueError: if an index is out of range, the dtype is too small for the result, or options
            are invalid.
        TypeError: if the indices are not integers.
        ConcretizationTypeError: if indices are traced and ``mode`` is ``"raise"``.

    Example:
        >>> jnp.ravel_multi_index((jnp.array([1, 2]), jnp.array([1, 3])), (3, 4))
        Array([ 5, 11], dtype=int32)
    """
    check_choice("ravel_multi_index", "mode", mode, _RAVEL_MODES)
    check_choice("ravel_multi_index", "order", order, ("C", "F"))
    name = "ravel_multi_index"
    sizes = [static_int(name, "dims", n) for n in as_items(name, "dims", dims)]
    index_arrays = as_arrays(name, *as_items(name, "multi_index", multi_index))
    check(
        len(index_arrays) == len(sizes),
        lambda: (
            f"[ravel_multi_index] there must be one array for each of {len(sizes)} axes; got "
            f"{len(index_arrays)}. Fix: tuple(positions)."
        ),
        ValueError,
    )
    check(
        all(dtypes.is_integer(aval_of(p).dtype) for p in index_arrays),
        lambda: (
            f"[ravel_multi_index] positions must be integers; got "
            f"{[str(aval_of(p)) for p in index_arrays]}. Fix: i.astype(int)."
        ),
    )
    if dtype is None:
        out_dtype = aval_of(promote_dtypes(*index_arrays, 0)[0]).dtype
    else:
        out_dtype = user_dtype(dtype, "ravel_multi_index")
    check(
        dtypes.is_integer(out_dtype) and prod(sizes) - 1 <= np.iinfo(out_dtype).max,
        lambda: (
            f"[ravel_multi_index] dtype must be an integer dtype that holds {prod(sizes) - 1}; "
            f"got {out_dtype}. Fix: dtype=jnp.int64 with x64 enabled."
        ),
        ValueError,
    )
    order_of_axes = list(range(len(sizes))) if order == "C" else list(range(len(sizes)))[::-1]
    total = convert(0, out_dtype)
    for d in order_of_axes:
        index = _in_bounds(index_arrays[d], sizes[d], mode)
        total = total * convert(sizes[d], out_dtype) + lax.convert_element_type(index, out_dtype)
    return asarray(total)


def _in_bounds(index: Any, size: int, mode: str) -> Any:
    if mode == "clip":
        return clip(index, 0, size - 1)
    if mode == "wrap":
        return remainder(index, size)
    if mode == "raise":
        fix = "mode='clip' or mode='wrap'."
        host = known("ravel_multi_index", "positions", index, fix)
        check(
            bool(((host >= 0) & (host < size)).all()),
            lambda: (
                f"[ravel_multi_index] indices must be in [0, {size}); got some outside. Fix: "
                "mode='clip'."
            ),
            ValueError,
        )
    return index
