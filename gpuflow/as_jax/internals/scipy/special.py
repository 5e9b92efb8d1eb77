"""``jax._src.scipy.special``, which is ``jax.scipy.special``."""

from gpuflow.scipy.special import *  # noqa: F403
