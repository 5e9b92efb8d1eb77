"""``jax._src.ad_util``: the names that libraries import."""

from gpuflow.as_jax.internals.interpreters.ad import Zero as Zero
from gpuflow.as_jax.internals.interpreters.ad import add_jaxvals as add_jaxvals
from gpuflow.as_jax.internals.interpreters.ad import add_jaxvals_p as add_any_p  # noqa: F401
from gpuflow.as_jax.internals.interpreters.ad import add_jaxvals_p as add_jaxvals_p
from gpuflow.as_jax.internals.interpreters.ad import zeros_like_aval as zeros_like_aval
from gpuflow.as_jax.internals.primitives import stop_gradient_p as stop_gradient_p
