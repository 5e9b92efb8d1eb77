"""Functions with custom rules for vmap."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.control.custom.vmap import custom_vmap as custom_vmap
from gpuflow.control.custom.vmap import sequential_vmap as sequential_vmap

_publish(globals(), "custom_batching", _public_names(globals()))
