"""``jax.interpreters.xla``: one primitive at a time, and tables of types."""

from gpuflow.as_jax.internals.dispatch import apply_primitive as apply_primitive
from gpuflow.as_jax.internals.type_tables import (
    canonicalize_dtype_handlers as canonicalize_dtype_handlers,
)
from gpuflow.as_jax.internals.type_tables import pytype_aval_mappings as pytype_aval_mappings
