"""Concatenation and splitting of arrays.

Tests: tests/test_stored_values.py, tests/numpy/test_numpy_functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base.arguments import MAX_DIMENSIONS, as_count, as_integers, canonicalize_axis
from gpuflow.base.errors import OutOfMemoryError, check
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike, DTypeLike
from gpuflow.numpy.promotion import (
    check_arraylike,
    convert,
    no_out,
    promote_dtypes,
    user_dtype,
)
from gpuflow.numpy.ranks import atleast_1d, atleast_2d, atleast_3d
from gpuflow.numpy.shaping import (
    expand_dims,
    ndim,
    ravel,
    shape,
)

# --- joining -------------------------------------------------------------------------------


def _operands(name: str, arrays: Any, dtype: Any, axis: Any = None) -> list[Any]:
    """Operands of a concatenation, in one dtype."""
    check(
        not (_is_several(dtype) or _is_several(axis)),
        lambda: (
            f"[{name}] the arrays must be one list or tuple; got them as separate arguments. "
            f"Fix: jnp.{name}([x, y])."
        ),
    )
    is_several = isinstance(arrays, tuple | list | range)
    arrays = list(arrays) if is_several else _rows(name, arrays)
    check(
        len(arrays) > 0,
        lambda: f"[{name}] at least one array is needed; got none. Fix: pass a list of arrays.",
        ValueError,
    )
    arrays = check_arraylike(name, *arrays)
    if dtype is not None:
        out_dtype = user_dtype(dtype, name)
        # The second conversion makes a weak array of this dtype strong.
        return [lax.convert_element_type(convert(x, out_dtype), out_dtype) for x in arrays]
    return promote_dtypes(*arrays)


def _is_several(value: Any) -> bool:
    """Whether a value is an array with axes, which is neither an axis nor a dtype."""
    return (hasattr(value, "aval") or isinstance(value, np.ndarray)) and value.ndim > 0


def _rows(name: str, stacked: Any) -> list[Any]:
    """The rows of an array that was passed instead of a list."""
    sizes = shape(stacked)
    check(
        len(sizes) > 0,
        lambda: f"[{name}] a sequence of arrays is needed; got a scalar. Fix: jnp.{name}([x]).",
    )
    return [lax.row_gather(stacked, np.int32(k), "clip") for k in range(sizes[0])]


@composite
def concatenate(arrays: ArraysLike, axis: int | None = 0, dtype: DTypeLike | None = None) -> Array:
    """Concatenate arrays along an existing axis; with None they are flattened first.

    Args:
        arrays: list or tuple of arrays, or an array, which is a sequence of its rows; sizes are
            equal except along ``axis``.
        axis: the axis along which to concatenate.
        dtype: dtype of the result; the common dtype by default.

    Returns:
        An array of the rank of the operands, or a vector if ``axis`` is None.

    Raises:
        ValueError: if there are no arrays, an array has rank 0, or the axis does not exist.
        TypeError: if a scalar is given instead of a sequence, or shapes differ in another axis.

    Example:
        >>> jnp.concatenate([jnp.array([1, 2]), jnp.array([3.5])])
        Array([1. , 2. , 3.5], dtype=float32)
        >>> jnp.concatenate([jnp.zeros((2, 2)), jnp.ones((2, 1))], axis=1)
        Array([[0., 0., 1.],
               [0., 0., 1.]], dtype=float32)
    """
    operands = _operands("concatenate", arrays, dtype, axis)
    if axis is None:
        return lax.concatenate([ravel(x) for x in operands], 0)
    rank = aval_of(operands[0]).ndim
    check(
        rank > 0,
        lambda: "[concatenate] scalars have no axis to join; got a scalar. Fix: jnp.stack.",
        ValueError,
    )
    return lax.concatenate(operands, canonicalize_axis(axis, rank, "concatenate"))


@composite
def concat(arrays: ArraysLike, /, *, axis: int | None = 0) -> Array:
    """Concatenate arrays along an existing axis; with None they are flattened first.

    Args:
        arrays: list or tuple of arrays, or an array, which is a sequence of its rows; sizes are
            equal except along ``axis``.
        axis: the axis along which to concatenate.

    Returns:
        An array of the common dtype and of the rank of the operands, or a vector if ``axis`` is
        None.

    Raises:
        ValueError: if there are no arrays, an array has rank 0, or the axis does not exist.
        TypeError: if a scalar is given instead of a sequence, or shapes differ in another axis.

    Example:
        >>> jnp.concat([jnp.array([1, 2]), jnp.array([3])])
        Array([1, 2, 3], dtype=int32)
    """
    return concatenate(arrays, axis)


@composite
def stack(
    arrays: ArraysLike,
    axis: int = 0,
    out: None = None,
    dtype: DTypeLike | None = None,
) -> Array:
    """Stack arrays of one shape along a new axis.

    Args:
        arrays: list or tuple of arrays, or an array, which is a sequence of its rows.
        axis: position of the new axis in the result.
        dtype: dtype of the result; the common dtype by default.

    Returns:
        An array with an additional axis.

    Raises:
        ValueError: if there are no arrays, shapes differ, or the axis does not exist.

    Example:
        >>> a, b = jnp.array([1, 2]), jnp.array([3, 4])
        >>> jnp.stack([a, b])
        Array([[1, 2],
               [3, 4]], dtype=int32)
        >>> jnp.stack([a, b], axis=1)
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    no_out("stack", out)
    operands = _operands("stack", arrays, dtype, axis)
    shapes = [aval_of(x).shape for x in operands]
    check(
        len(set(shapes)) == 1,
        lambda: (
            f"[stack] arrays must have one shape; got {', '.join(map(str, shapes))}. "
            "Fix: pad or broadcast them, or use jnp.concatenate."
        ),
        ValueError,
    )
    dim = canonicalize_axis(axis, len(shapes[0]) + 1, "stack")
    return lax.concatenate([expand_dims(x, dim) for x in operands], dim)


@composite
def vstack(tup: ArraysLike, dtype: DTypeLike | None = None) -> Array:
    """Stack arrays as rows; vectors become rows first.

    Args:
        tup: list or tuple of arrays, or an array, which is a sequence of its rows.
        dtype: dtype of the result; the common dtype by default.

    Returns:
        An array of rank 2 or more, concatenated along the first axis.

    Raises:
        ValueError: if no arrays are given.
        TypeError: if shapes differ in another axis.

    Example:
        >>> jnp.vstack([jnp.array([1, 2]), jnp.array([[3, 4], [5, 6]])])
        Array([[1, 2],
               [3, 4],
               [5, 6]], dtype=int32)
    """
    return concatenate([atleast_2d(x) for x in _operands("vstack", tup, dtype)], 0)


@composite
def hstack(tup: ArraysLike, dtype: DTypeLike | None = None) -> Array:
    """Concatenate along the second axis; vectors along their only axis.

    Args:
        tup: list or tuple of arrays, or an array, which is a sequence of its rows; scalars become
            vectors.
        dtype: dtype of the result; the common dtype by default.

    Returns:
        An array of the rank of the operands, at least 1.

    Raises:
        ValueError: if no arrays are given.
        TypeError: if shapes differ in another axis.

    Example:
        >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
        Array([1, 2, 3], dtype=int32)
        >>> jnp.hstack([jnp.array([[1], [2]]), jnp.array([[3], [4]])])
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    operands = [atleast_1d(x) for x in _operands("hstack", tup, dtype)]
    return concatenate(operands, 0 if ndim(operands[0]) == 1 else 1)


@composite
def column_stack(tup: ArraysLike) -> Array:
    """Stack vectors as columns, and concatenate matrices along the second axis.

    Args:
        tup: list or tuple of arrays, or an array, which is a sequence of its rows.

    Returns:
        An array of rank 2 or more and of the common dtype, concatenated along the second axis.

    Raises:
        ValueError: if no arrays are given.
        TypeError: if shapes differ in another axis.

    Example:
        >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[1, 3],
               [2, 4]], dtype=int32)
    """
    operands = [atleast_1d(x) for x in _operands("column_stack", tup, None)]
    return concatenate([expand_dims(x, 1) if ndim(x) == 1 else x for x in operands], 1)


@composite
def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Array:
    """Append ``values`` to ``arr`` along ``axis``; with None both are flattened first.

    Args:
        arr: array.
        values: array of the rank of ``arr``, or of any shape if ``axis`` is None.
        axis: the axis along which to concatenate.

    Returns:
        An array of the common dtype.

    Raises:
        ValueError: if the axis does not exist.
        TypeError: if shapes differ in another axis.

    Example:
        >>> jnp.append(jnp.array([1, 2]), 3)
        Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)


# --- splitting -----------------------------------------------------------------------------

_MAX_FUSED_SECTIONS = 64  # of a split that runs as one program outside of jit


def _cut(x: Any, axis: int, bounds: Sequence[int]) -> list[Any]:
    # A program of many results takes longer to build than to run op by op.
    cut = _cut_in_one_program if len(bounds) <= _MAX_FUSED_SECTIONS else _slices_between
    return cut(x, axis, bounds)


def _slices_between(x: Any, axis: int, bounds: Sequence[int]) -> list[Any]:
    sizes = aval_of(x).shape
    sections = []
    for start, stop in pairwise(bounds):
        first, last = [0] * len(sizes), list(sizes)
        first[axis], last[axis] = start, max(start, stop)
        sections.append(lax.slice(x, first, last))
    return sections


_cut_in_one_program = composite(_slices_between)


def _bounds(size: int, cuts: Sequence[int]) -> list[int]:
    clipped = [max(0, min(size, cut + size if cut < 0 else cut)) for cut in cuts]
    return [0, *clipped, size]


_MAX_SECTIONS = 1 << 24  # an array object takes more than 100 bytes


def _is_count(indices_or_sections: Any) -> bool:
    """Whether it is a number of sections: arrays have ``__index__`` too."""
    is_scalar = any(hasattr(indices_or_sections, name) for name in ("__index__", "__float__"))
    return is_scalar and getattr(indices_or_sections, "ndim", 0) == 0


@explained
def array_split(
    ary: ArrayLike, indices_or_sections: ArrayLike | Sequence[int], axis: int = 0
) -> list[Array]:
    """Split into sections with sizes that differ by at most one, or at the given indices.

    Args:
        ary: array.
        indices_or_sections: number of sections, the longer ones first; or static indices at which
            to split, where negative ones count from the end.
        axis: the axis to split.

    Returns:
        A list of arrays; empty ones between indices that do not ascend.

    Raises:
        ValueError: if the number of sections is not positive, or the axis does not exist.
        ConcretizationTypeError: if the argument is traced.

    Example:
        >>> jnp.array_split(jnp.arange(5), 2)
        [Array([0, 1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    (ary,) = check_arraylike("array_split", ary)
    sizes = shape(ary)
    dim = canonicalize_axis(axis, len(sizes), "array_split")
    size = sizes[dim]
    check(
        not isinstance(indices_or_sections, str),
        lambda: (
            f"[array_split] indices_or_sections must be integers; got {indices_or_sections!r}. "
            "Fix: 2."
        ),
        ValueError,
    )
    if not _is_count(indices_or_sections):
        cuts = as_integers("array_split", "indices_or_sections", indices_or_sections)
        return _cut(ary, dim, _bounds(size, cuts))
    count = as_count("array_split", "indices_or_sections", indices_or_sections)
    check(
        count > 0,
        lambda: f"[array_split] the number of sections must be positive; got {count}. Fix: 1.",
        ValueError,
    )
    check(
        count <= _MAX_SECTIONS,
        lambda: (
            f"[array_split] the list of arrays must fit into memory; got {count} sections. "
            "Fix: jnp.reshape."
        ),
        OutOfMemoryError,
    )
    each, extra = divmod(size, count)
    starts = [k * each + min(k, extra) for k in range(count + 1)]
    return _cut(ary, dim, starts)


@explained
def split(
    ary: ArrayLike, indices_or_sections: ArrayLike | Sequence[int], axis: int = 0
) -> list[Array]:
    """Split into equal sections, or at the given indices.

    Args:
        ary: array.
        indices_or_sections: number of sections; or static indices at which to split, where negative
            ones count from the end.
        axis: the axis to split.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the axis does not exist, or the number of sections does not divide it.
        ConcretizationTypeError: if the argument is traced.

    Example:
        >>> jnp.split(jnp.arange(4), 2)
        [Array([0, 1], dtype=int32), Array([2, 3], dtype=int32)]
        >>> jnp.split(jnp.arange(4), [1, 3])
        [Array([0], dtype=int32), Array([1, 2], dtype=int32), Array([3], dtype=int32)]
    """
    if _is_count(indices_or_sections):
        sizes = shape(ary)
        size = sizes[canonicalize_axis(axis, len(sizes), "split")]
        count = as_count("array_split", "indices_or_sections", indices_or_sections)
        check(
            count > 0 and size % count == 0,
            lambda: (
                f"[split] the sections must divide the axis evenly; got {count} sections of "
                f"size {size}. Fix: jnp.array_split, or indices to cut at."
            ),
            ValueError,
        )
    return array_split(ary, indices_or_sections, axis)


@explained
def vsplit(ary: ArrayLike, indices_or_sections: ArrayLike | Sequence[int]) -> list[Array]:
    """Split along the first axis.

    Args:
        ary: array of rank 1 or more.
        indices_or_sections: a number of equal sections, or the indices at which to split.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the axis does not exist, or the number of sections does not divide it.

    Example:
        >>> jnp.vsplit(jnp.array([[1, 2], [3, 4]]), 2)
        [Array([[1, 2]], dtype=int32), Array([[3, 4]], dtype=int32)]
    """
    return split(ary, indices_or_sections, 0)


@explained
def hsplit(ary: ArrayLike, indices_or_sections: ArrayLike | Sequence[int]) -> list[Array]:
    """Split along the second axis, or vectors along their only axis.

    Args:
        ary: array of rank 1 or more.
        indices_or_sections: a number of equal sections, or the indices at which to split.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the axis does not exist, or the number of sections does not divide it.

    Example:
        >>> jnp.hsplit(jnp.array([[1, 2, 3], [4, 5, 6]]), [1])
        [Array([[1],
               [4]], dtype=int32), Array([[2, 3],
               [5, 6]], dtype=int32)]
    """
    return split(ary, indices_or_sections, 0 if ndim(ary) == 1 else 1)


@explained
def dsplit(ary: ArrayLike, indices_or_sections: ArrayLike | Sequence[int]) -> list[Array]:
    """Split along the third axis.

    Args:
        ary: array of rank 3 or more.
        indices_or_sections: a number of equal sections, or the indices at which to split.

    Returns:
        A list of arrays.

    Raises:
        ValueError: if the axis does not exist, or the number of sections does not divide it.

    Example:
        >>> [part.shape for part in jnp.dsplit(jnp.ones((2, 2, 4)), 2)]
        [(2, 2, 2), (2, 2, 2)]
    """
    return split(ary, indices_or_sections, 2)


@explained
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices along an axis, without the axis.

    Args:
        x: array of rank 1 or more.
        axis: the axis.

    Returns:
        A tuple with one array for each index of the axis.

    Raises:
        ValueError: if the rank is 0, or the axis does not exist.

    Example:
        >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]), axis=1)
        (Array([1, 3], dtype=int32), Array([2, 4], dtype=int32))
    """
    (x,) = check_arraylike("unstack", x)
    check(
        aval_of(x).ndim > 0,
        lambda: f"[unstack] the array must have an axis; got {aval_of(x)}. Fix: jnp.atleast_1d(x).",
        ValueError,
    )
    dim = canonicalize_axis(axis, aval_of(x).ndim, "unstack")
    return tuple(lax.unstack(x, dim))


# --- joining deeper ------------------------------------------------------------------------


@composite
def dstack(tup: ArraysLike, dtype: DTypeLike | None = None) -> Array:
    """Concatenate along the third axis; vectors become (1, n, 1), matrices (m, n, 1).

    Args:
        tup: list or tuple of arrays, or an array, which is a sequence of its rows.
        dtype: dtype of the result; the common dtype by default.

    Returns:
        An array of rank 3 or more.

    Raises:
        ValueError: if no arrays are given.
        TypeError: if shapes differ in another axis.

    Example:
        >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])])
        Array([[[1, 3],
                [2, 4]]], dtype=int32)
    """
    return concatenate([atleast_3d(x) for x in _operands("dstack", tup, dtype)], 2)


@composite
def block(arrays: ArraysLike) -> Array:
    """Concatenate nested lists of arrays: the innermost lists along the last axis, and so on.

    Args:
        arrays: an array, or nested lists of uniform depth.

    Returns:
        An array of the common dtype; its rank is the nesting depth, or the largest rank.

    Raises:
        ValueError: if there are tuples, empty lists, or lists of different depths.
        TypeError: if shapes differ in another axis.

    Example:
        >>> ones, zeros = jnp.ones((2, 2)), jnp.zeros((2, 1))
        >>> jnp.block([[ones, zeros], [jnp.zeros((1, 2)), jnp.array([[5.0]])]])
        Array([[1., 1., 0.],
               [1., 1., 0.],
               [0., 0., 5.]], dtype=float32)
    """
    out = _block(arrays)[0]
    return out if isinstance(arrays, list) else lax.asarray(out)


def _block(arrays: Any, level: int = 0) -> tuple[Any, int]:
    """The concatenated array, and its nesting depth."""
    check(
        not isinstance(arrays, tuple),
        lambda: f"[block] lists are needed, not tuples; got {arrays!r}. Fix: list(arrays).",
        ValueError,
    )
    if not isinstance(arrays, list):
        (arrays,) = check_arraylike("block", arrays)
        return arrays, 0
    check(
        len(arrays) > 0,
        lambda: "[block] lists must not be empty; got one that is. Fix: leave it out.",
        ValueError,
    )
    check(
        level < MAX_DIMENSIONS,
        lambda: (
            f"[block] lists must be nested at most {MAX_DIMENSIONS} deep; got deeper ones. "
            "Fix: drop brackets."
        ),
        ValueError,
    )
    blocks, depths = zip(*[_block(item, level + 1) for item in arrays], strict=True)
    check(
        len(set(depths)) == 1,
        lambda: f"[block] lists must have one depth; got depths {depths}. Fix: add brackets.",
        ValueError,
    )
    rank = max(depths[0] + 1, *[aval_of(x).ndim for x in blocks])
    blocks = [expand_dims(x, tuple(range(rank - aval_of(x).ndim))) for x in blocks]
    return concatenate(blocks, rank - 1 - depths[0]), depths[0] + 1
