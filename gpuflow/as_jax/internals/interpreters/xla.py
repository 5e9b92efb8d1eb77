"""``jax.interpreters.xla``: tables that libraries enter types into."""

from gpuflow.as_jax.internals.type_tables import (
    canonicalize_dtype_handlers as canonicalize_dtype_handlers,
)
from gpuflow.as_jax.internals.type_tables import pytype_aval_mappings as pytype_aval_mappings
