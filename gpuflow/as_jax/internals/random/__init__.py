"""``jax._src.random``, which is ``jax.random``."""

from gpuflow.random import *  # noqa: F403
