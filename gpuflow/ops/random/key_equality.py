"""Equality of arrays of any dtype: numbers by value, random keys by their key data.

Tests: tests/random/test_rbg_keys.py, tests/random/test_key_reuse.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuflow.base import dtypes
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.ops.elementwise import comparison
from gpuflow.ops.elementwise.comparison import bitwise_and, bitwise_or
from gpuflow.ops.elementwise.nary import match_scalars
from gpuflow.ops.layout.axes import reshape, squeeze
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.random.keys import random_unwrap


def eq(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x == y``; False for nan.

    Args:
        x: array of numbers, bools or keys.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.eq(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([1.0, 3.0, jnp.nan]))
        Array([ True, False, False], dtype=bool)
    """
    x, y = match_scalars(x, y)
    if dtypes.is_extended(aval_of(x).dtype):
        return _of_keys(comparison.eq_p, bitwise_and, x, y)
    return comparison.eq_p.bind(x, y)


def ne(x: ArrayLike, y: ArrayLike) -> Array:
    """Elementwise ``x != y``; True for nan.

    Args:
        x: array of numbers, bools or keys.
        y: array of the same dtype; dimensions of size 1 and scalars broadcast.

    Returns:
        A bool array of the common shape.

    Raises:
        TypeError: if dtypes differ or are not supported, or shapes do not match.

    Example:
        >>> lax.ne(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([1.0, 3.0, jnp.nan]))
        Array([False,  True,  True], dtype=bool)
    """
    x, y = match_scalars(x, y)
    if dtypes.is_extended(aval_of(x).dtype):
        return _of_keys(comparison.ne_p, bitwise_or, x, y)
    return comparison.ne_p.bind(x, y)


def _of_keys(compare: Any, join: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Keys may be stored as nan, which is not equal to itself."""
    compare.shape(aval_of(x), aval_of(y))
    rank = max(aval_of(x).ndim, aval_of(y).ndim)
    equal = compare.bind(_key_data(x, rank), _key_data(y, rank))
    last = aval_of(equal).ndim - 1
    components = [
        squeeze(slice_in_dim(equal, k, k + 1, axis=last), (last,))
        for k in range(aval_of(equal).shape[last])
    ]
    return functools.reduce(join, components)


def _key_data(keys: Any, rank: int) -> Any:
    data, ndim = random_unwrap(keys), aval_of(keys).ndim
    return reshape(data, (1,) * (rank - ndim) + aval_of(data).shape)
