"""Custom primitives, and the objects that their rules receive.

See docs/adding_an_op.md, "From your own package".
"""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.control.custom.external_primitives import define_primitive as define_primitive
from gpuflow.core.aval import ShapedArray as ShapedArray
from gpuflow.core.rules import UndefinedPrimal as UndefinedPrimal
from gpuflow.core.rules import Zero as Zero
from gpuflow.core.rules import is_undefined as is_undefined
from gpuflow.ops.zeros import add_tangents as add_tangents
from gpuflow.ops.zeros import instantiate as instantiate

__getattr__ = _missing_name(__name__, "extend", _public_names(globals()))
