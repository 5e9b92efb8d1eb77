"""Arrays of other libraries in batches, without importing those libraries.

Tests: tests/test_data.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray
from gpuflow.numpy import exports
from gpuflow.parallel.placement import put
from gpuflow.runtime import host_exchange
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import default_device

_NUMERIC = (bool, int, float, complex, np.ndarray, np.generic)
_TEXTS = ("O", "S", "U")  # kinds of dtypes


def imported(leaf: Any) -> Any:
    """A leaf as an array of ours or NumPy's, without a copy if possible.

    Values that are not arrays are returned unchanged.
    """
    if isinstance(leaf, (Array, *_NUMERIC)):
        return leaf
    if host_exchange.is_on_gpu(leaf):
        return exports.from_dlpack(leaf)
    if hasattr(leaf, "__dlpack__") and hasattr(leaf, "__dlpack_device__"):
        return host_exchange.imported(leaf)
    return np.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def to_device(leaf: Any, where: Any, is_own: bool) -> Any:
    """A leaf as an array of ours on a device or with a sharding, with memory of its own.

    Values that are not numeric arrays, such as strings, are returned unchanged.

    Args:
        leaf: of a batch.
        where: a Device or Sharding, or None: the default device.
        is_own: whether the array may use the memory of the leaf.
    """
    value = imported(leaf)
    is_numeric = isinstance(value, (Array, *_NUMERIC))
    if not is_numeric or getattr(getattr(value, "dtype", None), "kind", "") in _TEXTS:
        return value
    may_alias = is_own and where is None
    if may_alias and type(value) is np.ndarray and value.dtype == dtypes.canonicalize(value.dtype):
        device = default_device()
        aval = ShapedArray(value.shape, value.dtype)
        return Array(device.driver.from_host(value), aval, device)
    if isinstance(value, Array) and where is None:
        # Another library may write to its own array.
        return value if value is leaf else exports.from_dlpack(leaf, copy=True)
    return put(value, where)
