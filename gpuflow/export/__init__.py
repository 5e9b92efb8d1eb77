"""Export of jitted functions to files: a program and kernels that run without the source.

See docs/export.md. The names are those of ``jax.export``.
"""

from __future__ import annotations

from gpuflow.base.errors import ExportError as ExportError
from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.export.exported import DisabledSafetyCheck as DisabledSafetyCheck
from gpuflow.export.exported import Exported as Exported
from gpuflow.export.exported import default_export_platform as default_export_platform
from gpuflow.export.exported import deserialize as deserialize
from gpuflow.export.exported import (
    maximum_supported_calling_convention_version as maximum_supported_calling_convention_version,
)
from gpuflow.export.exported import (
    minimum_supported_calling_convention_version as minimum_supported_calling_convention_version,
)
from gpuflow.export.shape_inference import eval_symbolic_shape as _eval_symbolic_shape  # noqa: F401
from gpuflow.export.shapes import is_symbolic_dim as is_symbolic_dim
from gpuflow.export.shapes import symbolic_args_specs as symbolic_args_specs
from gpuflow.export.shapes import symbolic_shape as symbolic_shape
from gpuflow.export.texts import SymbolicScope as SymbolicScope
from gpuflow.export.tracing import export as export
from gpuflow.export.trees import (
    register_namedtuple_serialization as register_namedtuple_serialization,
)
from gpuflow.export.trees import (
    register_pytree_node_serialization as register_pytree_node_serialization,
)

_publish(globals(), "export", _public_names(globals()))
