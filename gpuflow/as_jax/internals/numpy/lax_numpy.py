"""``jax._src.numpy.lax_numpy``: jax.numpy."""

from gpuflow.numpy import *  # noqa: F403
