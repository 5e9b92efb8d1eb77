"""``jax._src.pjit``: the primitive of jitted programs, and other names that libraries import."""

from gpuflow.api.programs import jit as jit
from gpuflow.as_jax.internals import mesh as mesh_lib  # noqa: F401
from gpuflow.as_jax.internals.api_util import debug_info as debug_info
from gpuflow.as_jax.internals.sharding_impls import UNSPECIFIED as UNSPECIFIED
from gpuflow.as_jax.internals.sharding_impls import UnspecifiedValue as UnspecifiedValue
from gpuflow.lax import jit_p as jit_p  # type: ignore[attr-defined]
from gpuflow.sharding import auto_axes as auto_axes
