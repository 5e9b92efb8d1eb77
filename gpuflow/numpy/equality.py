"""Comparisons of whole arrays.

Tests: tests/numpy/test_argument_kinds.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.logic import equal, isclose, isnan
from gpuflow.numpy.promotion import check_arraylike
from gpuflow.numpy.reductions import all as all_elements


@composite
def allclose(
    a: ArrayLike, b: ArrayLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Array:
    """Return whether all elements are close: ``abs(a - b) <= atol + rtol * abs(b)``.

    Args:
        a, b: arrays that broadcast; equal infinities are close.
        rtol: relative tolerance, with respect to ``b``.
        atol: absolute tolerance.
        equal_nan: whether nan counts as close to nan.

    Returns:
        A bool array of rank 0.

    Raises:
        TypeError: if an argument is not array-like, or shapes do not broadcast.

    Example:
        >>> jnp.allclose(jnp.array([1., 2.]), jnp.array([1., 2.00001]))
        Array(True, dtype=bool)
        >>> jnp.allclose(jnp.array([1., 2.]), jnp.array([1., 2.1]))
        Array(False, dtype=bool)
    """
    return all_elements(isclose(a, b, rtol, atol, equal_nan))


def _sides(name: str, *values: Any) -> Sequence[Array]:
    """Operands as arrays; lists and tuples are accepted, as in NumPy and JAX."""
    are_rows = [isinstance(x, list | tuple | range) for x in values]
    arrays = [asarray(x) if is_row else x for x, is_row in zip(values, are_rows, strict=True)]
    return check_arraylike(name, *arrays)


@composite
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Return whether two arrays have the same shape and equal elements.

    Args:
        a1, a2: arrays, or lists and tuples of scalars.
        equal_nan: whether nan counts as equal to nan.

    Returns:
        A bool array of rank 0.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.array_equal(jnp.array([1, 2]), jnp.array([1., 2.]))
        Array(True, dtype=bool)
        >>> jnp.array_equal(jnp.array([1, 1]), jnp.array(1))
        Array(False, dtype=bool)
    """
    a1, a2 = _sides("array_equal", a1, a2)
    first, second = aval_of(a1), aval_of(a2)
    if first.shape != second.shape:
        return lax.convert_element_type(False, dtypes.bool_)
    same = equal(a1, a2)
    if equal_nan and dtypes.is_inexact(first.dtype) and dtypes.is_inexact(second.dtype):
        same = lax.bitwise_or(same, lax.bitwise_and(isnan(a1), isnan(a2)))
    return all_elements(same)


@composite
def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Return whether two arrays have equal elements after broadcasting.

    False if they do not broadcast, or promote, under the current settings.

    Args:
        a1, a2: arrays, or lists and tuples of numbers.

    Returns:
        A bool array of rank 0.

    Raises:
        TypeError: if an argument is not array-like.

    Example:
        >>> jnp.array_equiv(jnp.array([1, 1]), jnp.array(1))
        Array(True, dtype=bool)
        >>> jnp.array_equiv(jnp.ones(2), jnp.ones(3))
        Array(False, dtype=bool)
    """
    a1, a2 = _sides("array_equiv", a1, a2)
    try:
        same = equal(a1, a2)
    except (TypeError, ValueError):
        return lax.convert_element_type(False, dtypes.bool_)
    return all_elements(same)
