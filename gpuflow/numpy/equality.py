"""Comparisons of whole arrays."""

from __future__ import annotations

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike
from gpuflow.numpy.logic import equal, isclose, isnan
from gpuflow.numpy.promotion import check_arraylike
from gpuflow.numpy.reductions import all as all_elements


@composite
def allclose(
    a: ArrayLike, b: ArrayLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Array:
    """Whether all elements are close, see ``isclose``."""
    return all_elements(isclose(a, b, rtol, atol, equal_nan))


@composite
def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Array:
    """Whether two arrays have one shape and equal elements."""
    a1, a2 = check_arraylike("array_equal", a1, a2)
    first, second = aval_of(a1), aval_of(a2)
    if first.shape != second.shape:
        return lax.convert_element_type(False, dtypes.bool_)
    same = equal(a1, a2)
    if equal_nan and dtypes.is_inexact(first.dtype) and dtypes.is_inexact(second.dtype):
        same = lax.bitwise_or(same, lax.bitwise_and(isnan(a1), isnan(a2)))
    return all_elements(same)


@composite
def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Array:
    """Whether two arrays have equal elements after broadcasting.

    False if they do not broadcast, or promote, under the settings of now.
    """
    a1, a2 = check_arraylike("array_equiv", a1, a2)
    try:
        same = equal(a1, a2)
    except (TypeError, ValueError):
        return lax.convert_element_type(False, dtypes.bool_)
    return all_elements(same)
