"""``jax._src.array``: the class of arrays with values."""

from gpuflow.runtime.array import Array as ArrayImpl  # noqa: F401
