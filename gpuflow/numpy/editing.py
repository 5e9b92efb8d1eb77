"""Replacement of values: the functions that modify their argument in NumPy.

They return new arrays, and require ``inplace=False``.

Tests: tests/test_stored_values.py, tests/numpy/test_operand_kinds.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import (
    as_arrays,
    check_not_inplace,
    tiled_to,
)
from gpuflow.numpy.logic import clip, where
from gpuflow.numpy.promotion import check_strict, convert
from gpuflow.numpy.shaping import broadcast_to, ravel, reshape
from gpuflow.numpy.ufuncs import remainder


@explained
def put(
    a: ArrayLike, ind: ArrayLike, v: ArrayLike, mode: str | None = None, *, inplace: bool = True
) -> Array:
    """Return the array with ``v`` at indices of the flattened array.

    Args:
        a: array.
        ind: integer indices; negative ones count from the end.
        v: values; they are repeated if there are fewer than indices.
        mode: handling of out-of-bounds indices: None skips them; ``"clip"`` clamps them; ``"wrap"``
            takes them modulo the size.
        inplace: must be False.

    Returns:
        A new array of the shape and dtype of ``a``.

    Raises:
        ValueError: if ``inplace`` is True, or the mode is unknown.
        NotImplementedError: if ``mode`` is ``"raise"``.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4]])
        >>> jnp.put(x, jnp.array([0, 3]), 0, inplace=False)
        Array([[0, 2],
               [3, 0]], dtype=int32)
    """
    check_not_inplace("put", inplace)
    x, indices, values = as_arrays("put", a, ind, v)
    check(
        mode != "raise",
        lambda: "[put] mode 'raise' needs known positions; got 'raise'. Fix: mode='clip'.",
        NotImplementedError,
    )
    check(
        mode in (None, "clip", "wrap"),
        lambda: f"[put] mode must be None, 'clip' or 'wrap'; got {mode!r}. Fix: mode='clip'.",
        ValueError,
    )
    indices, values = ravel(indices), ravel(values)
    size = aval_of(x).size
    if not size or not aval_of(indices).size or not aval_of(values).size:
        return x
    if mode == "clip":
        indices = clip(indices, 0, size - 1)
    elif mode == "wrap":
        indices = remainder(indices, size)
    flat = ravel(x).at[indices].set(tiled_to("put", values, aval_of(indices).size), mode="drop")
    return reshape(flat, aval_of(x).shape)


@explained
def place(arr: ArrayLike, mask: ArrayLike, vals: ArrayLike, *, inplace: bool = True) -> Array:
    """Return the array with the next of ``vals`` wherever ``mask`` is True; they repeat.

    Args:
        arr: array.
        mask: array with as many elements as ``arr``.
        vals: values.
        inplace: must be False.

    Returns:
        A new array of the shape and dtype of ``arr``.

    Raises:
        ValueError: if ``inplace`` is True, sizes differ, or there are no values.

    Example:
        >>> x = jnp.array([5, 1, 7, 2, 9])
        >>> jnp.place(x, x > 4, jnp.array([10, 20]), inplace=False)
        Array([10,  1, 20,  2, 10], dtype=int32)
    """
    check_not_inplace("place", inplace)
    x, mask, values = as_arrays("place", arr, mask, vals)
    check(
        aval_of(x).size == aval_of(mask).size,
        lambda: (
            f"[place] the mask must have as many elements as the array; got {aval_of(mask)} "
            f"for {aval_of(x)}. Fix: jnp.broadcast_to(mask, x.shape)."
        ),
        ValueError,
    )
    check(
        aval_of(values).size > 0,
        lambda: f"[place] values must not be empty; got {aval_of(values)}. Fix: pass a number.",
        ValueError,
    )
    if not aval_of(x).size:
        return x
    mask = ravel(mask).astype(bool)
    rank = lax.sub(lax.cumsum(mask.astype(int), 0), convert(1, dtypes.default_int()))
    check_strict(x, values)
    values = lax.convert_element_type(ravel(values), aval_of(x).dtype)
    replacements = values[remainder(rank, aval_of(values).size)]
    return reshape(where(mask, replacements, ravel(x)), aval_of(x).shape)


@composite
def put_along_axis(
    arr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int | None,
    inplace: bool = True,
    *,
    mode: str | None = None,
) -> Array:
    """Return the array with values at one index for each element of ``indices``, along ``axis``.

    Args:
        arr: array.
        indices: integer array of the same rank; other axes broadcast.
        values: an array that broadcasts to the shape of ``indices``.
        axis: the axis to index; None flattens the array first.
        inplace: must be False.
        mode: handling of out-of-bounds indices, as for ``x.at``.

    Returns:
        A new array of the shape and dtype of ``arr``.

    Raises:
        ValueError: if ``inplace`` is True, or shapes do not match.

    Example:
        >>> x = jnp.array([[3, 1, 2], [0, 5, 4]])
        >>> jnp.put_along_axis(x, jnp.argmax(x, 1, keepdims=True), 9, axis=1, inplace=False)
        Array([[9, 1, 2],
               [0, 9, 4]], dtype=int32)
    """
    check_not_inplace("put_along_axis", inplace)
    x, indices, values = as_arrays("put_along_axis", arr, indices, values)
    shape = aval_of(x).shape
    if axis is None:
        x, axis = ravel(x), 0
    rank = aval_of(x).ndim
    check(
        rank == aval_of(indices).ndim,
        lambda: (
            f"[put_along_axis] indices must have the array's rank; got {aval_of(indices)} for "
            f"rank {rank}. Fix: jnp.expand_dims(indices, axis)."
        ),
        ValueError,
    )
    here = canonicalize_axis(axis, rank, "put_along_axis")
    values = broadcast_to(values, aval_of(indices).shape)
    index = [
        indices if d == here else _along(n, d, rank, aval_of(indices).shape[d])
        for d, n in enumerate(aval_of(x).shape)
    ]
    return reshape(x.at[tuple(index)].set(values, mode=mode), shape)


def _along(size: int, d: int, rank: int, index_size: int) -> Any:
    """Indices 0, 1, ... along axis ``d``, over its full size if the indices broadcast."""
    count = size if index_size == 1 else index_size
    return lax.iota(np.int32, [count if k == d else 1 for k in range(rank)], d)


@explained
def fill_diagonal(
    a: ArrayLike, val: ArrayLike, wrap: bool = False, *, inplace: bool = True
) -> Array:
    """Return the array with ``val`` on its main diagonal.

    Args:
        a: array of rank 2, or of higher rank with equal sizes.
        val: a scalar, or values that repeat.
        wrap: must be False.
        inplace: must be False.

    Returns:
        A new array of the shape and dtype of ``a``.

    Raises:
        NotImplementedError: if ``inplace`` or ``wrap`` is True.
        ValueError: if the shape does not match.

    Example:
        >>> jnp.fill_diagonal(jnp.zeros((2, 3), int), jnp.array([5, 7]), inplace=False)
        Array([[5, 0, 0],
               [0, 7, 0]], dtype=int32)
    """
    check_not_inplace("fill_diagonal", inplace, NotImplementedError)
    check(
        not wrap,
        lambda: "[fill_diagonal] wrap must be False; got True. Fix: fill the blocks separately.",
        NotImplementedError,
    )
    x, values = as_arrays("fill_diagonal", a, val)
    shape: Any = aval_of(x).shape
    check(
        len(shape) == 2 or (len(shape) > 2 and len(set(shape)) == 1),
        lambda: (
            f"[fill_diagonal] the array must be a matrix, or have axes of one size; got "
            f"{aval_of(x)}. Fix: gpuflow.vmap for batches of matrices."
        ),
        ValueError,
    )
    rows: list[Any] = [lax.iota(np.int32, shape, d) for d in range(len(shape))]
    on_diagonal = rows[0] == rows[1]
    for row in rows[2:]:
        on_diagonal = on_diagonal & (rows[0] == row)
    check_strict(x, values)
    values = lax.convert_element_type(values, aval_of(x).dtype)
    if aval_of(values).ndim:
        count = min(shape)
        diagonal = tiled_to("fill_diagonal", ravel(values), count)
        diagonal = lax.pad(diagonal, convert(0, aval_of(x).dtype), [(0, shape[0] - count, 0)])
        values = lax.broadcast_in_dim(diagonal, shape, (0,))
    return where(on_diagonal, values, x)
