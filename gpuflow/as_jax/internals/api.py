"""``jax._src.api``: the transformations of ``jax``."""

from gpuflow.api.derivatives import jvp as _jvp  # noqa: F401
from gpuflow.dtypes import result_type as _dtype  # noqa: F401
