"""``jax._src.checkify``, which is ``jax.experimental.checkify`` here."""

from typing import Any

from gpuflow.experimental.checkify import *  # noqa: F403

JaxException = Exception
Out = Any
