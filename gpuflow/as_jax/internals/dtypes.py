"""``jax._src.dtypes``: jax.dtypes, and internal names that libraries import."""

from typing import Any

import numpy as np

from gpuflow.base.dtypes import ExtendedDType as ExtendedDType
from gpuflow.dtypes import *  # noqa: F403
from gpuflow.dtypes import issubdtype

DType = Any


def supports_inf(dtype: Any) -> bool:
    """Whether a dtype has infinities: integers have none, nor have some floats of 8 bits."""
    if not issubdtype(dtype, np.inexact):
        return False
    return bool(np.isinf(np.asarray(np.inf, np.float32).astype(dtype).astype(np.complex64)))
