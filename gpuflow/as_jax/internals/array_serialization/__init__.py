"""``jax.experimental.array_serialization``: arrays in files, by tensorstore."""

from gpuflow.as_jax.internals.array_serialization import serialization as serialization
from gpuflow.as_jax.internals.array_serialization import tensorstore_impl as tensorstore_impl
