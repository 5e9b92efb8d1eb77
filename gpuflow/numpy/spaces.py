"""Samples evenly spaced on a logarithmic scale.

Tests: tests/numpy/test_numpy_gradients.py, tests/test_stored_values.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.arguments import canonicalize_axis
from gpuflow.control.composite import composite
from gpuflow.core.aval import aval_of
from gpuflow.core.types import Array, ArrayLike, DTypeLike
from gpuflow.numpy.arguments import as_array, as_arrays
from gpuflow.numpy.elementary import log10
from gpuflow.numpy.promotion import inexact_dtype, promote_dtypes, user_dtype
from gpuflow.numpy.ranges import linspace
from gpuflow.numpy.shaping import moveaxis
from gpuflow.numpy.ufuncs import power, sign


def _bounds(name: str, start: Any, stop: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """Both ends in the dtype to compute in, and the dtype of the result."""
    ends = promote_dtypes(*as_arrays(name, start, stop))
    common_dtype = inexact_dtype(aval_of(ends[0]).dtype)
    out_dtype = common_dtype if dtype is None else user_dtype(dtype, name)
    work = inexact_dtype(out_dtype)
    first, last = (lax.convert_element_type(end, work) for end in ends)
    return first, last, out_dtype


@composite
def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Return ``num`` powers of ``base``, from ``base**start`` to ``base**stop``.

    Args:
        start, stop: exponents, scalars or arrays.
        num: number of samples.
        endpoint: whether ``stop`` is the last sample.
        base: base of the logarithm, a number.
        dtype: dtype of the result; the float dtype of the exponents by default.
        axis: position of the new axis if start or stop are arrays.

    Returns:
        An array of ``num`` numbers, or of size ``num`` along ``axis``.

    Raises:
        ValueError: if ``num`` is negative.

    Example:
        >>> jnp.logspace(0, 3, 4, base=2.0).round(3)
        Array([1., 2., 4., 8.], dtype=float32)
    """
    first, last, out_dtype = _bounds("logspace", start, stop, dtype)
    exponents = linspace(first, last, num, endpoint=endpoint, axis=axis)
    return lax.convert_element_type(power(as_array("logspace", base), exponents), out_dtype)


@composite
def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Return ``num`` numbers from ``start`` to ``stop`` with a constant ratio.

    Args:
        start, stop: nonzero scalars or arrays with the same sign.
        num: number of samples.
        endpoint: whether ``stop`` is the last sample.
        dtype: dtype of the result; the float dtype of ``start`` and ``stop`` by default.
        axis: position of the new axis if start or stop are arrays.

    Returns:
        An array of ``num`` numbers, or of size ``num`` along ``axis``.

    Raises:
        ValueError: if ``num`` is negative, or the axis does not exist.

    Example:
        >>> jnp.geomspace(1, 100, 3).round(3)
        Array([  1.,  10., 100.], dtype=float32)
    """
    first, last, out_dtype = _bounds("geomspace", start, stop, dtype)
    if dtypes.is_integer(out_dtype):
        # Integers are truncated, and rounded logarithms may fall below; the ratio is safe.
        steps = linspace(lax.full_like(first, 0), lax.full_like(last, 1), num, endpoint=endpoint)
        out = first * power(last / first, steps)
    else:
        direction = sign(first)
        exponents = log10(first / direction), log10(last / direction)
        out = direction * logspace(*exponents, num, endpoint)
    dim = canonicalize_axis(axis, aval_of(out).ndim, "geomspace")
    return lax.convert_element_type(moveaxis(out, 0, dim), out_dtype)
