"""``jax.experimental.array_serialization``: what checkpointing libraries ask the type of."""

from gpuflow.as_jax.internals.array_serialization import serialization as serialization
