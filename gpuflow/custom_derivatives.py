"""Helpers of ``custom_jvp`` and ``custom_vjp``."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.control.custom.calls import SymbolicZero as SymbolicZero
from gpuflow.control.custom.calls import zero_from_primal as zero_from_primal
from gpuflow.control.custom.gradient import custom_gradient as custom_gradient
from gpuflow.control.custom.jvp import custom_jvp as custom_jvp
from gpuflow.control.custom.jvp import custom_jvp_p as _custom_jvp_p
from gpuflow.control.custom.linear_call import linear_call as linear_call
from gpuflow.control.custom.vjp import CustomVJPPrimal as CustomVJPPrimal
from gpuflow.control.custom.vjp import custom_vjp as custom_vjp
from gpuflow.control.custom.vjp import (
    custom_vjp_primal_tree_values as custom_vjp_primal_tree_values,
)
from gpuflow.control.custom.vjp_call import custom_vjp_p as _custom_vjp_p
from gpuflow.control.linear_transpose import closure_convert as closure_convert

custom_jvp_call_p = _custom_jvp_p
custom_vjp_call_p = _custom_vjp_p

_publish(globals(), "custom_derivatives", _public_names(globals()))
