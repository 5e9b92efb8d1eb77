"""shard_map under its older name and with its older arguments.

Tests: tests/parallel/test_shard_map.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow.core.mesh import Mesh
from gpuflow.parallel.mapping.shard_map_api import shard_map as _shard_map


def shard_map(
    f: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any, check_rep: bool = True
) -> Any:
    """Call ``gpuflow.shard_map(f, mesh=..., check_vma=check_rep)``."""
    return _shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_rep)
