"""``jax._src.lax.lax``: jax.lax, with its primitives."""

from typing import Any

import gpuflow.lax
from gpuflow.lax import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(gpuflow.lax, name)
