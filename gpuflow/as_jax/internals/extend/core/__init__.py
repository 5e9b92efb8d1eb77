"""``jax.extend.core``: programs as data."""

from gpuflow.as_jax.internals.core import CallPrimitive as CallPrimitive
from gpuflow.as_jax.internals.core import ClosedJaxpr as ClosedJaxpr
from gpuflow.as_jax.internals.core import DebugInfo as DebugInfo
from gpuflow.as_jax.internals.core import DropVar as DropVar
from gpuflow.as_jax.internals.core import Effect as Effect
from gpuflow.as_jax.internals.core import Effects as Effects
from gpuflow.as_jax.internals.core import (
    InconclusiveDimensionOperation as InconclusiveDimensionOperation,
)
from gpuflow.as_jax.internals.core import Jaxpr as Jaxpr
from gpuflow.as_jax.internals.core import JaxprEqn as JaxprEqn
from gpuflow.as_jax.internals.core import JaxprTypeError as JaxprTypeError
from gpuflow.as_jax.internals.core import Literal as Literal
from gpuflow.as_jax.internals.core import Primitive as Primitive
from gpuflow.as_jax.internals.core import TraceTag as TraceTag
from gpuflow.as_jax.internals.core import Var as Var
from gpuflow.as_jax.internals.core import call_impl as call_impl
from gpuflow.as_jax.internals.core import check_jaxpr as check_jaxpr
from gpuflow.as_jax.internals.core import concrete_or_error as concrete_or_error
from gpuflow.as_jax.internals.core import find_top_trace as find_top_trace
from gpuflow.as_jax.internals.core import gensym as gensym
from gpuflow.as_jax.internals.core import get_opaque_trace_state as get_opaque_trace_state
from gpuflow.as_jax.internals.core import jaxpr_as_fun as jaxpr_as_fun
from gpuflow.as_jax.internals.core import jaxprs_in_params as jaxprs_in_params
from gpuflow.as_jax.internals.core import mapped_aval as mapped_aval
from gpuflow.as_jax.internals.core import new_jaxpr_eqn as new_jaxpr_eqn
from gpuflow.as_jax.internals.core import no_effects as no_effects
from gpuflow.as_jax.internals.core import (
    primal_dtype_to_tangent_dtype as primal_dtype_to_tangent_dtype,
)
from gpuflow.as_jax.internals.core import set_current_trace as set_current_trace
from gpuflow.as_jax.internals.core import subjaxprs as subjaxprs
from gpuflow.as_jax.internals.core import take_current_trace as take_current_trace
from gpuflow.as_jax.internals.core import unmapped_aval as unmapped_aval
from gpuflow.as_jax.internals.core import (
    unsafe_get_axis_names_DO_NOT_USE as unsafe_get_axis_names_DO_NOT_USE,
)
from gpuflow.as_jax.internals.core import valid_jaxtype as valid_jaxtype
from gpuflow.as_jax.internals.extend.core import primitives as primitives
