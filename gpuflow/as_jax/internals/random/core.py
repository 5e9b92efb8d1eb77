"""``jax._src.random.core``, which is ``jax.random``."""

from gpuflow.random import *  # noqa: F403
