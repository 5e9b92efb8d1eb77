"""The kinds of memory, under the names of jax.memory."""

from gpuflow.base.names import publish as _publish
from gpuflow.core.aval import MemorySpace

Space = MemorySpace
_publish(globals(), "memory", ["Space"])
