"""``jax._src.xla_bridge``: the available platforms, and whether they are in use yet.

Tests: tests/test_as_jax_names.py, tests/test_as_jax.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.runtime.device import Client, are_in_use, default_backend
from gpuflow.runtime.device import devices as devices
from gpuflow.runtime.device import local_devices as local_devices


def get_backend(platform: str | None = None) -> Client:
    """The platform of a name, or the default one."""
    return Client(default_backend() if platform is None else platform)


def backends() -> dict[str, Client]:
    """The platforms by name: the default one, and the processor."""
    return {name: Client(name) for name in dict.fromkeys((default_backend(), "cpu"))}


def backends_are_initialized() -> bool:
    """Whether devices were asked for yet."""
    return are_in_use()


def __getattr__(name: str) -> Any:
    # Libraries look into this table to learn whether it is empty.
    if name == "_backends":
        return backends() if are_in_use() else {}
    raise AttributeError(name)  # missing.explain replaces it
