"""Partial sorting: the smallest or largest elements, and sorting of complex numbers.

Tests: tests/numpy/test_operand_kinds.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.base.errors import check
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.arguments import as_array, static_int
from gpuflow.numpy.promotion import check_numbers, inexact_dtype
from gpuflow.numpy.sorting import argsort, sort


def _prepare(name: str, a: Any, kth: Any, axis: int) -> tuple[Any, int]:
    x = as_array(name, a)
    check(
        not dtypes.is_complex(aval_of(x).dtype),
        lambda: f"[{name}] the array must be real; got {aval_of(x)}. Fix: jnp.sort(x).",
        NotImplementedError,
    )
    check_numbers(name, x)
    dim = canonicalize_axis(axis, aval_of(x).ndim, name)
    canonicalize_axis(static_int(name, "kth", kth), aval_of(x).shape[dim], name)
    return x, dim


@composite
def partition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Partially sort: the ``kth`` element is at its sorted position, after all smaller ones.

    Args:
        a: array of real numbers.
        kth: an index.
        axis: the axis along which to sort.

    Returns:
        An array of the shape and dtype of ``a``.

    Raises:
        NotImplementedError: if an argument is complex.
        TypeError: if an argument is boolean.
        ValueError: if an index or axis is out of range.

    Cost: a full sort, which is the fastest way on every device here.

    Example:
        >>> jnp.partition(jnp.array([3, 1, 2, 0]), 1)[:2]
        Array([0, 1], dtype=int32)
    """
    x, dim = _prepare("partition", a, kth, axis)
    return sort(x, dim)


@composite
def argpartition(a: ArrayLike, kth: int, axis: int = -1) -> Array:
    """Return the indices that partially sort: the ``kth`` element is at its sorted position.

    Args:
        a: array of real numbers.
        kth: an index; the indices of smaller elements come before it.
        axis: the axis along which to sort.

    Returns:
        Indices along ``axis``, an integer array of the shape of ``a``.

    Raises:
        NotImplementedError: if an argument is complex.
        TypeError: if an argument is boolean.
        ValueError: if an index or axis is out of range.

    Cost: a full sort, which is the fastest way on every device here.

    Example:
        >>> jnp.argpartition(jnp.array([30, 10, 20]), 0)[0]
        Array(1, dtype=int32)
    """
    x, dim = _prepare("argpartition", a, kth, axis)
    return argsort(x, dim).astype(dtypes.index_dtype(aval_of(x).shape[dim]))


@composite
def top_k(x: Any, k: int, *, axis: int = -1) -> list[Array]:
    """Return the ``k`` largest elements along an axis in descending order, and their indices.

    Args:
        x: array of real numbers or bools.
        k: number of elements.
        axis: the axis to search.

    Returns:
        Two arrays of size ``k`` along ``axis``: elements, and their integer indices.

    Raises:
        ValueError: if an argument is complex, ``k`` is too large for the axis, or the axis does not
            exist.

    Example:
        >>> jnp.top_k(jnp.array([3, 1, 2]), 2)
        [Array([3, 2], dtype=int32), Array([0, 2], dtype=int32)]
    """
    return lax.top_k(as_array("top_k", x), static_int("top_k", "k", k), axis=axis)


@composite
def sort_complex(a: ArrayLike) -> Array:
    """Sort along the last axis, and return complex numbers.

    Args:
        a: array of numbers; complex ones are compared by real part, then by imaginary part.

    Returns:
        An array of complex numbers of the shape of ``a``.

    Example:
        >>> jnp.sort_complex(jnp.array([2 + 1j, 2 - 1j, 1]))
        Array([1.+0.j, 2.-1.j, 2.+1.j], dtype=complex64)
    """
    out = sort(as_array("sort_complex", a))
    dtype = inexact_dtype(aval_of(out).dtype)
    return lax.convert_element_type(out, np.result_type(dtype, np.complex64))
