"""``jax.interpreters``: the names that libraries import."""

from gpuflow.as_jax.internals.interpreters import ad as ad
from gpuflow.as_jax.internals.interpreters import batching as batching
from gpuflow.as_jax.internals.interpreters import mlir as mlir
from gpuflow.as_jax.internals.interpreters import partial_eval as partial_eval
from gpuflow.as_jax.internals.interpreters import pxla as pxla
from gpuflow.as_jax.internals.interpreters import xla as xla
