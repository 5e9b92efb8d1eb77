"""``jax._src.dtypes``: facts about dtypes.

Tests: tests/test_as_jax_names.py.
"""

from typing import Any

import numpy as np

from gpuflow.dtypes import issubdtype


def supports_inf(dtype: Any) -> bool:
    """Whether a dtype has infinities: integers have none, nor have some floats of 8 bits."""
    if not issubdtype(dtype, np.inexact):
        return False
    return bool(np.isinf(np.asarray(np.inf, np.float32).astype(dtype).astype(np.complex64)))
