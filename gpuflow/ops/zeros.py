"""Creation and addition of tangents: symbolic zeros become arrays only if needed.

Tests: tests/control/test_symbolic_zeros.py, tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.rules import Zero
from gpuflow.ops.elementwise.convert import convert_element_type, convert_element_type_p
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import broadcast_in_dim


def full(shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    """An array of ``shape`` filled with a number, broadcast from a scalar."""
    canonical = dtypes.canonicalize(dtype)
    filled = broadcast_in_dim(np.asarray(value).astype(canonical)[()], shape, ())
    if canonical == dtype:
        return filled
    # An array made under enable_x64 is used without it.
    return convert_element_type_p.bind(filled, new_dtype=dtype, weak_type=False)


def zeros_of(aval: ShapedArray) -> Any:
    """An array of zeros; float0 zeros are a NumPy array that holds nothing."""
    if aval.dtype == dtypes.float0:
        return np.zeros(aval.shape, dtypes.float0)
    return _typed_full(aval, 0)


def ones_of(aval: ShapedArray) -> Any:
    """An array of ones."""
    return _typed_full(aval, 1)


def _typed_full(aval: ShapedArray, value: Any) -> Any:
    filled = full(aval.shape, value, aval.dtype)
    return convert_element_type(filled, aval.dtype, True) if aval.weak_type else filled


def instantiate(tangent: Any) -> Any:
    """``tangent`` as an array."""
    return zeros_of(tangent.aval) if type(tangent) is Zero else tangent


def add_tangents(first: Any, second: Any) -> Any:
    """The sum of two tangents or cotangents of one value."""
    if type(first) is Zero:
        return second
    if type(second) is Zero:
        return first
    if aval_of(first).dtype == dtypes.float0:
        return first
    return add_any_p.bind(first, second)
