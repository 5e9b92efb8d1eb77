"""Interpolation of arrays.

Tests: tests/scipy_surface/test_scipy_signal_surface.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import and_, mul
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array


def _mirrored(index: Any, size: int) -> Any:
    """Back and forth between 0 and ``size - 1``."""
    last = size - 1
    return jnp.abs((index + last) % max(2 * last, 1) - last)


def _reflected(index: Any, size: int) -> Any:
    """Back and forth with each end twice: between half an element before and after."""
    return (_mirrored(2 * index + 1, 2 * size + 1) - 1) // 2


# Map out-of-bounds indices of an axis of some size into its bounds.
_MODES: dict[str, Callable[[Any, int], Any]] = {
    "constant": lambda index, size: jnp.clip(index, 0, size - 1),
    "nearest": lambda index, size: jnp.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirrored,
    "reflect": _reflected,
}


@explained
def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike],
    order: int,
    mode: str = "constant",
    cval: ArrayLike = 0.0,
) -> Array:
    """Interpolate an array at fractional indices.

    Args:
        input: array.
        coordinates: an array of coordinates for each axis of ``input``; they broadcast.
        order: 0: the nearest element; 1: linear between neighbors.
        mode: values out of bounds: "constant": ``cval``; "nearest": the last element; "wrap":
            periodic; "mirror", "reflect": mirrored, without or with the last element.
        cval: a number.

    Returns:
        An array of the shape of the coordinates, with the dtype of ``input``.

    Raises:
        ValueError: if the number of coordinates does not match.
        NotImplementedError: if the order or mode is not supported.

    Example:
        >>> x = jnp.array([[0.0, 1.0], [2.0, 3.0]])
        >>> gf.scipy.ndimage.map_coordinates(x, [jnp.array([0.5, 1.0]), jnp.array([0.5, 0.25])], 1)
        Array([1.5 , 2.25], dtype=float32)
    """
    x = as_array("map_coordinates", jnp.asarray(input))
    shape, dtype = aval_of(x).shape, aval_of(x).dtype
    check(
        len(coordinates) == len(shape),
        lambda: (
            f"[map_coordinates] there must be coordinates for each axis; got "
            f"{len(coordinates)} for {aval_of(x)}. Fix: coordinates=[rows, columns]."
        ),
        ValueError,
    )
    check(
        mode in _MODES,
        lambda: (
            f"[map_coordinates] mode must be one of {', '.join(map(repr, _MODES))}; got "
            f"{mode!r}. Fix: mode='nearest'."
        ),
        NotImplementedError,
    )
    check(
        order in (0, 1),
        lambda: f"[map_coordinates] order must be 0 or 1; got {order!r}. Fix: order=1.",
        NotImplementedError,
    )
    fill = jnp.asarray(cval, dtype)
    nodes = [
        [
            (_MODES[mode](index, size), _in_bounds(index, size, mode), weight)
            for index, weight in _neighbors(jnp.asarray(indices), order)
        ]
        for indices, size in zip(coordinates, shape, strict=True)
    ]
    total: Any = None
    for corner in product(*nodes):
        indices, in_bounds, weights = zip(*corner, strict=True) if corner else ((), (), ())
        value = x[tuple(indices)]
        if mode == "constant" and in_bounds:
            value = jnp.where(reduce(and_, in_bounds), value, fill)
        term = reduce(mul, weights, value)
        total = term if total is None else total + term
    if dtypes.is_integer(dtype):
        total = _rounded(total)
    return total.astype(dtype)


def _in_bounds(index: Any, size: int, mode: str) -> Any:
    return (index >= 0) & (index < size) if mode == "constant" else None


def _neighbors(coordinates: Any, order: int) -> list[tuple[Any, Any]]:
    """The neighboring indices of each coordinate, and their weights."""
    if order == 0:
        return [(_rounded(coordinates).astype(np.int32), 1)]
    lower = jnp.floor(coordinates)
    after = coordinates - lower
    index = lower.astype(np.int32)
    return [(index, 1 - after), (index + 1, after)]


def _rounded(x: Any) -> Any:
    """To the nearest integer, halves away from zero."""
    return x if dtypes.is_integer(aval_of(x).dtype) else lax.round(x)


publish(globals(), "scipy.ndimage", public_names(globals(), __name__))
