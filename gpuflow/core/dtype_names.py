"""Names of dtypes in files: NumPy's and ml_dtypes' own, ``float0``, and those of random keys.

Tests: tests/checkpointing/test_round_trips.py, tests/ops/test_exported_ops.py.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpuflow.base import dtypes
from gpuflow.core.aval import KEY_DTYPES

_FLOAT0 = "float0"  # NumPy's name for it is that of its bytes


def name_of(dtype: Any) -> str:
    """The name of a dtype."""
    return _FLOAT0 if dtype == dtypes.float0 else dtype.name


def dtype_of(name: str) -> Any:
    """The dtype of a name.

    Raises:
        TypeError: there is none.
    """
    if name == _FLOAT0:
        return dtypes.float0
    keys = {dtype.name: dtype for dtype in KEY_DTYPES.values()}
    return keys[name] if name in keys else np.dtype(getattr(ml_dtypes, name, name))
