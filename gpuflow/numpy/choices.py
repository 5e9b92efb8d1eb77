"""Selection of arrays and elements by conditions and indices.

Tests: tests/numpy/test_numpy_errors.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import as_items, check_choice
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, ArraysLike
from gpuflow.numpy.arguments import as_array, as_arrays, known, static_int
from gpuflow.numpy.logic import as_bool, clip, where
from gpuflow.numpy.positions import nonzero
from gpuflow.numpy.promotion import check_strict, no_out, promote_dtypes, to_rank
from gpuflow.numpy.shaping import broadcast_arrays, moveaxis, ravel
from gpuflow.numpy.ufuncs import remainder


@composite
def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: ArrayLike = 0
) -> Array:
    """Select elements from the array of the first condition that is True.

    Args:
        condlist: sequence of arrays of conditions.
        choicelist: one array for each condition; all of them broadcast.
        default: value if no condition is True, a scalar or an array.

    Returns:
        An array of the common shape, in the common dtype of choices and ``default``.

    Raises:
        ValueError: if there are no conditions, or the number of arrays does not match.

    Example:
        >>> x = jnp.arange(6)
        >>> jnp.select([x < 2, x < 4], [x, 10 * x], default=-1)
        Array([ 0,  1, 20, 30, -1, -1], dtype=int32)
    """
    check(
        0 < len(condlist) == len(choicelist),
        lambda: (
            "[select] there must be as many choices as conditions, and at least one; got "
            f"{len(choicelist)} and {len(condlist)}. Fix: default=... for the rest."
        ),
        ValueError,
    )
    conditions = as_arrays("select", *condlist)
    check_strict(np.True_, *conditions)
    conditions = [as_bool(c) for c in conditions]
    operands = [*conditions, *promote_dtypes(*as_arrays("select", default, *choicelist))]
    rank = max(aval_of(x).ndim for x in operands)
    operands = [to_rank(x, rank) if aval_of(x).ndim else x for x in operands]
    conditions, (out, *choices) = operands[: len(conditions)], operands[len(conditions) :]
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        out = where(condition, choice, out)
    return out


@composite
def choose(a: ArrayLike, choices: ArraysLike, out: None = None, mode: str = "raise") -> Array:
    """Select elements from the array with the index in ``a``.

    Args:
        a: integer array.
        choices: sequence of arrays, or an array with the choices along its first axis; all
            broadcast.
        out: must be None.
        mode: handling of out-of-bounds indices: ``"raise"`` (requires static indices), ``"wrap"``
            or ``"clip"``.

    Returns:
        An array of the common shape, in the common dtype of the choices.

    Raises:
        ValueError: if elements are not integers, the number of choices does not match, or the mode
            is unknown.
        ConcretizationTypeError: if indices are traced and ``mode`` is ``"raise"``.
        NotImplementedError: if ``out`` is given.

    Example:
        >>> jnp.choose(jnp.array([1, 0, 1]), jnp.array([[0, 1, 2], [10, 11, 12]]))
        Array([10,  1, 12], dtype=int32)
    """
    no_out("choose", out)
    check_choice("choose", "mode", mode, ("raise", "wrap", "clip"))
    which, *arrays = as_arrays("choose", a, *as_items("choose", "choices", choices))
    check(
        dtypes.is_integer(aval_of(which).dtype),
        lambda: f"[choose] a must hold integers; got {aval_of(which)}. Fix: a.astype(int).",
        ValueError,
    )
    count = len(arrays)
    if mode == "raise":
        host = known("choose", "a", which, "mode='clip' or mode='wrap'.")
        check(
            bool(((host >= 0) & (host < count)).all()),
            lambda: (
                f"[choose] indices must be in [0, {count}); got some outside. Fix: mode='clip'."
            ),
            ValueError,
        )
    elif mode == "clip":
        which = clip(which, 0, count - 1)
    else:
        which = remainder(which, count)
    arrays = promote_dtypes(*arrays)
    arrays = [lax.convert_element_type(x, aval_of(x).dtype) for x in arrays]
    which, *arrays = broadcast_arrays(which, *arrays)
    result = arrays[0]
    for k in range(1, count):
        result = where(which == k, arrays[k], result)
    return result


def compress(
    condition: ArrayLike,
    a: ArrayLike,
    axis: int | None = None,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
    out: None = None,
) -> Array:
    """Return the slices along an axis at True conditions.

    Args:
        condition: vector of conditions; missing ones are False.
        a: array.
        axis: the axis to slice; None flattens the array first.
        size: static number of slices, for use under jit; None returns one for each True condition.
        fill_value: the value of padding elements if fewer conditions than ``size`` are True.
        out: must be None.

    Returns:
        An array of the dtype of ``a``, with the selected slices along ``axis``.

    Raises:
        ValueError: if the condition is not a vector or is True beyond the end, or the size does not
            match.
        ConcretizationTypeError: if conditions are traced and ``size`` is not given.
        NotImplementedError: if ``out`` is given.

    Example:
        >>> x = jnp.array([[1, 2], [3, 4], [5, 6]])
        >>> jnp.compress(jnp.array([True, False, True]), x, axis=0)
        Array([[1, 2],
               [5, 6]], dtype=int32)
        >>> jnp.compress(x.ravel() > 4, x, size=3, fill_value=-1)
        Array([ 5,  6, -1], dtype=int32)
    """
    no_out("compress", out)
    return _compress("compress", condition, a, axis, size, fill_value)


def _compress(
    name: str, condition: Any, a: Any, axis: int | None, size: int | None, fill_value: Any
) -> Any:
    mask, x, fill = as_arrays(name, condition, a, fill_value)
    mask = as_bool(mask)
    check(
        aval_of(mask).ndim == 1,
        lambda: f"[{name}] condition must be a vector; got {aval_of(mask)}. Fix: jnp.ravel(c).",
        ValueError,
    )
    x, dim = (ravel(x), 0) if axis is None else (moveaxis(x, axis, 0), axis)
    length = aval_of(x).shape[0]
    mask, extra = mask[:length], mask[length:]
    x = x[: aval_of(mask).shape[0]]
    if size is None:
        fix = f"jnp.{name}(..., size=...)."
        check(
            not aval_of(extra).size or not known(name, "the condition", extra, fix).any(),
            lambda: (
                f"[{name}] conditions beyond {length} elements must not hold; got one. "
                "Fix: cut them off."
            ),
            ValueError,
        )
        return moveaxis(x[known(name, "the condition", mask, fix)], 0, dim)
    count = static_int(name, "size", size)
    check(
        0 <= count <= length,
        lambda: f"[{name}] size must be in [0, {length}]; got {count}. Fix: size={length}.",
        ValueError,
    )
    total = aval_of(mask).shape[0]
    rows = nonzero(mask, size=min(count, total), fill_value=total)[0]
    real = lax.expand_dims(rows < total, range(1, aval_of(x).ndim))
    selected = where(real, x[rows], lax.convert_element_type(fill, aval_of(x).dtype))
    return moveaxis(selected, 0, dim)


def extract(
    condition: ArrayLike, arr: ArrayLike, *, size: int | None = None, fill_value: ArrayLike = 0
) -> Array:
    """Return the elements at True conditions, as a vector.

    Args:
        condition: array of conditions, with as many elements as ``arr``.
        arr: array.
        size: static number of elements, for use under jit; None returns one for each True
            condition.
        fill_value: the value of padding elements if fewer conditions than ``size`` are True.

    Returns:
        A vector of the dtype of ``arr``.

    Raises:
        ValueError: if the condition is True beyond the end, or the size does not match.
        ConcretizationTypeError: if conditions are traced and ``size`` is not given.

    Example:
        >>> x = jnp.array([[1, 5], [7, 2]])
        >>> jnp.extract(x > 4, x)
        Array([5, 7], dtype=int32)
    """
    mask, x = ravel(as_array("extract", condition)), ravel(as_array("extract", arr))
    return _compress("extract", mask, x, None, size, fill_value)
