"""``jax._src.scipy.special``, which is ``jax.scipy.special``."""

from gpuflow.scipy.special import *  # noqa: F403
from gpuflow.scipy.special import gammaln as gammaln
from gpuflow.scipy.special import logsumexp as logsumexp
