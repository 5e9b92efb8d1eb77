"""``jax._src.typing``, which is ``jax.typing``."""

from gpuflow.typing import *  # noqa: F403
