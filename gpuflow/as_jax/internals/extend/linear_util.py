"""``jax.extend.linear_util``: functions with their transformations."""

from gpuflow.as_jax.internals.linear_util import StoreException as StoreException
from gpuflow.as_jax.internals.linear_util import WrappedFun as WrappedFun
from gpuflow.as_jax.internals.linear_util import cache as cache
from gpuflow.as_jax.internals.linear_util import merge_linear_aux as merge_linear_aux
from gpuflow.as_jax.internals.linear_util import transformation as transformation
from gpuflow.as_jax.internals.linear_util import transformation2 as transformation2
from gpuflow.as_jax.internals.linear_util import transformation_with_aux as transformation_with_aux
from gpuflow.as_jax.internals.linear_util import (
    transformation_with_aux2 as transformation_with_aux2,
)
from gpuflow.as_jax.internals.linear_util import wrap_init as wrap_init
