"""Dtypes and functions of dtypes, under the names of jax.dtypes.

Tests: tests/test_surface_modules.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes as base_dtypes
from gpuflow.base.dtypes import float0 as float0
from gpuflow.base.errors import TypePromotionError as TypePromotionError
from gpuflow.base.errors import check
from gpuflow.base.names import publish
from gpuflow.core.argument_kinds import explained
from gpuflow.core.types import DTypeLike
from gpuflow.numpy import scalar_types
from gpuflow.numpy.scalar_types import extended as extended
from gpuflow.numpy.scalar_types import finfo as finfo
from gpuflow.numpy.scalar_types import iinfo as iinfo
from gpuflow.numpy.scalar_types import prng_key as prng_key

bfloat16 = ml_dtypes.bfloat16

_SCALAR_TYPES = {"b": bool, "c": complex}


@explained
def issubdtype(a: Any, b: Any) -> bool:
    """Return whether a dtype is of a category, such as ``jnp.floating``; bfloat16 is floating."""
    return scalar_types.issubdtype(a, b)


@explained
def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """Return the dtype of arrays of ``dtype``: 64 bits become 32 unless x64 is enabled.

    Args:
        dtype: a dtype, or the name of one.
        allow_extended_dtype: whether dtypes of random keys are allowed.

    Raises:
        TypeError: if the dtype is invalid.
        ValueError: if it is the dtype of keys and ``allow_extended_dtype`` is not set.
    """
    check(
        allow_extended_dtype or not base_dtypes.is_extended(dtype),
        lambda: (
            f"[canonicalize_dtype] the dtype must be one of numbers; got {dtype}. "
            "Fix: allow_extended_dtype=True."
        ),
        ValueError,
    )
    return base_dtypes.canonicalize(dtype)


def result_type(*args: Any, return_weak_type_flag: bool = False) -> Any:
    """Return the dtype of the result of an operation on these arrays, scalars and dtypes.

    Args:
        args: arrays, scalars and dtypes.
        return_weak_type_flag: whether to return a pair of the dtype and whether it is weak.
    """
    dtype, weak_type = scalar_types.result_type_and_weakness(*args)
    return (dtype, weak_type) if return_weak_type_flag else dtype


@explained
def scalar_type_of(x: Any) -> type:
    """Return the Python scalar type that corresponds to ``x``: bool, int, float or complex.

    Raises:
        TypeError: if the dtype is not numeric.
    """
    dtype = scalar_types.result_type(x)
    if base_dtypes.is_floating(dtype):
        return float
    if base_dtypes.is_integer(dtype):
        return int
    check(
        dtype.kind in _SCALAR_TYPES,
        lambda: f"[scalar_type_of] the dtype must be one of numbers; got {dtype}. Fix: pass 1.0.",
    )
    return _SCALAR_TYPES[dtype.kind]


@explained
def itemsize_bits(dtype: DTypeLike) -> int:
    """Return the number of bits of an element; int4 has 4."""
    return base_dtypes.bits_of(dtype if base_dtypes.is_extended(dtype) else np.dtype(dtype))


publish(
    globals(),
    "dtypes",
    [
        "bfloat16",
        "canonicalize_dtype",
        "extended",
        "finfo",
        "float0",
        "iinfo",
        "issubdtype",
        "itemsize_bits",
        "prng_key",
        "result_type",
        "scalar_type_of",
        "TypePromotionError",
    ],
)
