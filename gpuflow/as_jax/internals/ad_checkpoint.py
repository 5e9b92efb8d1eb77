"""``jax._src.ad_checkpoint``: checkpoints, with their primitive."""

from gpuflow.ad_checkpoint import *  # noqa: F403
from gpuflow.lax import remat_p as remat_p  # type: ignore[attr-defined]
