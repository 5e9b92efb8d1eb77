"""``jax.extend.core``: programs as data."""

from gpuflow.as_jax.internals.core import ClosedJaxpr as ClosedJaxpr
from gpuflow.as_jax.internals.core import DropVar as DropVar
from gpuflow.as_jax.internals.core import Jaxpr as Jaxpr
from gpuflow.as_jax.internals.core import JaxprEqn as JaxprEqn
from gpuflow.as_jax.internals.core import JaxprTypeError as JaxprTypeError
from gpuflow.as_jax.internals.core import Literal as Literal
from gpuflow.as_jax.internals.core import Primitive as Primitive
from gpuflow.as_jax.internals.core import Var as Var
from gpuflow.as_jax.internals.core import check_jaxpr as check_jaxpr
from gpuflow.as_jax.internals.core import get_opaque_trace_state as get_opaque_trace_state
from gpuflow.core import effects
from gpuflow.core.jaxpr import subjaxprs as subjaxprs


class Effect(effects.Effect):
    """An effect of one's own: its class is its name."""

    def __init__(self) -> None:
        super().__init__(type(self).__name__)


def jaxpr_as_fun(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """A function that evaluates a closed jaxpr: it is one itself."""
    return jaxpr
