"""``jax._src.nn.initializers``, which is ``jax.nn.initializers``."""

from gpuflow.nn.initializers import *  # noqa: F403
