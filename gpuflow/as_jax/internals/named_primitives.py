"""``jax.extend.core.primitives``: gpuflow's primitives under their names in JAX.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

from gpuflow.as_jax.internals.primitives import call_p as call_p
from gpuflow.as_jax.internals.primitives import closed_call_p as closed_call_p
from gpuflow.as_jax.internals.primitives import stop_gradient_p as stop_gradient_p
from gpuflow.core.primitive import Primitive, registry
from gpuflow.lax.section_primitives import split_p as split_p
from gpuflow.lax.section_primitives import stack_p as stack_p
from gpuflow.lax.section_primitives import tile_p as tile_p
from gpuflow.lax.section_primitives import unstack_p as unstack_p

_OTHER_NAMES = {"add_jaxvals": "add_any", "linear_solve": "custom_linear_solve"}


def __getattr__(name: str) -> Primitive:
    requested = name.removesuffix("_p")
    found = registry().get(_OTHER_NAMES.get(requested, requested))
    if found is None or requested == name:
        raise AttributeError(name)  # missing.explain replaces it
    return found


def __dir__() -> list[str]:
    names = (name for name in globals() if name.endswith("_p"))
    return sorted({*names, *(f"{name}_p" for name in (*registry(), *_OTHER_NAMES))})
