"""Features under the names of jax.experimental."""

from typing import TYPE_CHECKING

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.callbacks import io_callback as io_callback
from gpuflow.experimental.type_state import cur_qdd as cur_qdd

if TYPE_CHECKING:
    from gpuflow.experimental import checkify as checkify
    from gpuflow.experimental import compilation_cache as compilation_cache
    from gpuflow.experimental import custom_partitioning as custom_partitioning
    from gpuflow.experimental import ensemble as ensemble
    from gpuflow.experimental import jet as jet
    from gpuflow.experimental import key_reuse as key_reuse
    from gpuflow.experimental import layout as layout
    from gpuflow.experimental import mesh_utils as mesh_utils
    from gpuflow.experimental import multihost_utils as multihost_utils
    from gpuflow.experimental import ode as ode
    from gpuflow.experimental import pjit as pjit
    from gpuflow.experimental import rnn as rnn
    from gpuflow.experimental import shard_map as shard_map
    from gpuflow.experimental import sparse as sparse

# Submodules, each imported when it is first asked for.
_MODULES = (
    "checkify",
    "compilation_cache",
    "custom_partitioning",
    "ensemble",
    "jet",
    "key_reuse",
    "layout",
    "mesh_utils",
    "multihost_utils",
    "ode",
    "pjit",
    "rnn",
    "shard_map",
    "sparse",
)
_publish(globals(), "experimental", _public_names(globals()), _MODULES)
