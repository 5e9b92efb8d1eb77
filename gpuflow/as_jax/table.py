"""JAX modules whose names differ from ours; every other ``jax.X`` is ``gpuflow.X``."""

from __future__ import annotations

_INTERNALS = "gpuflow.as_jax.internals"

# Names of jax itself that JAX has removed, and their replacements.
REMOVED = {
    "device_put_replicated": "jax.device_put(x, sharding)",
    "device_put_sharded": "jax.device_put(x, sharding)",
    "tree_flatten": "jax.tree.flatten",
    "tree_leaves": "jax.tree.leaves",
    "tree_map": "jax.tree.map",
    "tree_structure": "jax.tree.structure",
    "tree_transpose": "jax.tree.transpose",
    "tree_unflatten": "jax.tree.unflatten",
}
# gpuflow.core is the inner core of this framework; jax.core is a surface of a few names.
MODULES = {
    "jax.core": f"{_INTERNALS}.core",
    "jax._src": _INTERNALS,
    "jax.extend": f"{_INTERNALS}.extend",
    "jax.interpreters": f"{_INTERNALS}.interpreters",
    "jax.api_util": f"{_INTERNALS}.api_util",
    "jax.experimental.array_serialization": f"{_INTERNALS}.array_serialization",
    "jax.experimental.colocated_python": f"{_INTERNALS}.colocated_python",
    "jax.experimental.hijax": f"{_INTERNALS}.hijax",
    "jax.experimental.pallas": f"{_INTERNALS}.pallas",
    "jax.lib": f"{_INTERNALS}.lib",
    "jax._src.lib.xla_client": f"{_INTERNALS}.jaxlib.xla_client",
    "jax.version": "gpuflow.as_jax.versions",
    "jaxlib": f"{_INTERNALS}.jaxlib",
}
