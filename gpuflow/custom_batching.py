"""Functions with their own rules for vmap."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.control.custom.vmap import custom_vmap as custom_vmap
from gpuflow.control.custom.vmap import sequential_vmap as sequential_vmap

__getattr__ = _missing_name(__name__, "custom_batching", _public_names(globals()))
