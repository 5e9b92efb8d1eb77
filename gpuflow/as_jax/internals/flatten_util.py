"""``jax._src.flatten_util``, which is ``jax.flatten_util``."""

from gpuflow.flatten_util import ravel_pytree as ravel_pytree
