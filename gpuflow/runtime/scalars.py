"""Python scalars as arrays, with a cache of recent ones.

Tests: tests/numpy/test_scalar_operands.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.recent import Recent
from gpuflow.core.aval import aval_of
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import default_device

SCALAR_TYPES = frozenset({bool, int, float, complex})
_cache: Recent[Any, Array] = Recent(4096)


def array_of(scalar: Any) -> Array:
    """A Python scalar as a weakly typed Array of rank 0 on the default device.

    The array is cached and shared: it must not be donated.

    Args:
        scalar: a bool, int, float or complex.

    Raises:
        OverflowError: if an int does not fit its dtype.
    """
    kind = type(scalar)
    # 0.0 and -0.0 are equal, also as components of complex values; their reprs differ.
    value = scalar if scalar and kind is not complex else repr(scalar)
    return _cached(scalar, kind, value)


def array_of_scalar(value: Any) -> Array | None:
    """A Python or NumPy scalar, or a NumPy array of rank 0, as a cached Array.

    Returns:
        None for other values.
    """
    if type(value) in SCALAR_TYPES:
        return array_of(value)
    if not isinstance(value, np.generic) and (type(value) is not np.ndarray or value.ndim):
        return None
    if value.dtype.hasobject:
        return None
    # A scalar is immutable, unlike the memory of an array of rank 0.
    return _cached(value[()], value.dtype, value.tobytes())


def _cached(scalar: Any, kind: Any, value: Any) -> Array:
    """The array of a scalar, cached by its kind and value."""
    # Settings determine the dtype.
    key, device = (config.trace_context(), kind, value), default_device()
    array = _cache.get(key)
    if array is None or array.device is not device:
        aval = aval_of(scalar)
        array = Array(device.driver.from_host(as_numpy(scalar, aval)), aval, device)
        _cache.put(key, array)
    return array
