"""``jax._src.dtypes``: jax.dtypes, and what libraries take from behind it."""

from typing import Any

from gpuflow.base.dtypes import ExtendedDType as ExtendedDType
from gpuflow.dtypes import *  # noqa: F403

DType = Any
