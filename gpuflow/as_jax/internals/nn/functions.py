"""``jax._src.nn.functions``, which is ``jax.nn``."""

from gpuflow.nn import *  # noqa: F403
