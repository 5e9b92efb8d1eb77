"""``jax.experimental.array_serialization.serialization``: classes that have no instances here.

orbax writes and reads by itself; ``gpuflow.checkpointing`` is our own.
"""

from gpuflow.as_jax.internals.absent import absent_class

_REASON = (
    "checkpoints must be written by gpuflow.checkpointing or orbax; got JAX's own manager. Fix: "
    "gpuflow.checkpointing.save and restore."
)
_MODULE = "jax.experimental.array_serialization.serialization"
AsyncManager = absent_class(f"{_MODULE}.AsyncManager", _REASON)
GlobalAsyncCheckpointManagerBase = absent_class(
    f"{_MODULE}.GlobalAsyncCheckpointManagerBase", _REASON
)
GlobalAsyncCheckpointManager = absent_class(f"{_MODULE}.GlobalAsyncCheckpointManager", _REASON)
