"""What JAX keeps under jax.experimental."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.callbacks import io_callback as io_callback

# Submodules, each imported when it is first asked for.
_MODULES = ("checkify", "ensemble", "mesh_utils", "multihost_utils", "ode", "shard_map")
__getattr__ = _missing_name(__name__, "experimental", _public_names(globals()), _MODULES)
