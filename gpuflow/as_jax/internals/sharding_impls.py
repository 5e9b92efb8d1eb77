"""``jax._src.sharding_impls``: the mark of a sharding that is not given.

Tests: tests/test_as_jax_table.py.
"""

from typing import Any

from gpuflow.base.config import config
from gpuflow.core.sharding import NamedSharding, in_force


class UnspecifiedValue:
    """Placeholder in params for a sharding that is not given."""

    def __repr__(self) -> str:
        return "UnspecifiedValue"


UNSPECIFIED = UnspecifiedValue()


def canonicalize_sharding(
    sharding: Any, api_name: str, check_mesh_consistency: bool = True
) -> NamedSharding | None:
    """A sharding on the mesh in force; None for that of a type, which requests no devices."""
    del api_name, check_mesh_consistency
    sharding = in_force(sharding, config.mesh)
    return None if sharding is None or sharding.is_of_types else sharding
