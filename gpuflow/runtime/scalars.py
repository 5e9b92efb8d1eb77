"""Numbers as arrays: those that were used last are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.recent import Recent
from gpuflow.core.aval import aval_of
from gpuflow.runtime.array import Array, as_numpy
from gpuflow.runtime.device import default_device

NUMBERS = frozenset({bool, int, float, complex})
_known: Recent[Any, Array] = Recent(4096)


def array_of(number: Any) -> Array:
    """A number as a weakly typed Array of rank 0 on the default device.

    The array is everybody's: it must not be donated.

    Args:
        number: a bool, int, float or complex.

    Raises:
        OverflowError: an int that does not fit.
    """
    kind = type(number)
    # 0.0 and -0.0 are equal, also as parts of complex numbers.
    value = number if number and kind is not complex else repr(number)
    return _kept(number, kind, value)


def array_of_scalar(value: Any) -> Array | None:
    """A number of Python or NumPy, or a NumPy array of rank 0, as ``array_of`` gives it.

    Returns:
        None: it is something else.
    """
    if type(value) in NUMBERS:
        return array_of(value)
    if not isinstance(value, np.generic) and (type(value) is not np.ndarray or value.ndim):
        return None
    if value.dtype.hasobject:
        return None
    # Elements do not change, as the memory of an array may.
    return _kept(value[()], value.dtype, value.tobytes())


def _kept(number: Any, kind: Any, value: Any) -> Array:
    """The array of a number, cached by its kind and value."""
    key, device = (config.trace_context(), kind, value), default_device()  # settings choose types
    array = _known.get(key)
    if array is None or array.device is not device:
        aval = aval_of(number)
        array = Array(device.driver.from_host(as_numpy(number, aval)), aval, device)
        _known.put(key, array)
    return array
