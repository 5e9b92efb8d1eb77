"""Checkpoints of pytrees on disk: safetensors files and a JSON tree. See docs/checkpoints.md.

``gpuflow.checkpoint`` is something else: it recomputes values in a backward pass.
"""

from gpuflow.base.errors import CheckpointError as CheckpointError
from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.checkpointing.manager import Manager as Manager
from gpuflow.checkpointing.restoring import restore as restore
from gpuflow.checkpointing.saving import Saving as Saving
from gpuflow.checkpointing.saving import save as save
from gpuflow.checkpointing.saving import save_async as save_async

__getattr__ = _missing_name(__name__, "checkpointing", _public_names(globals()))
