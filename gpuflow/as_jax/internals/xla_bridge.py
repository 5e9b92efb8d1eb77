"""``jax._src.xla_bridge``: the available platforms, and whether they are in use yet."""

from __future__ import annotations

from typing import Any

from gpuflow.as_jax.internals.extend.backend import backends as backends
from gpuflow.as_jax.internals.extend.backend import get_backend as get_backend
from gpuflow.runtime.device import are_in_use
from gpuflow.runtime.device import devices as devices
from gpuflow.runtime.device import local_devices as local_devices


def backends_are_initialized() -> bool:
    """Whether devices were asked for yet."""
    return are_in_use()


def __getattr__(name: str) -> Any:
    # Libraries look into this table to learn whether it is empty.
    if name == "_backends":
        return backends() if are_in_use() else {}
    raise AttributeError(f"[jax._src.xla_bridge] the name must be one that there is; got {name!r}.")
