"""``jax.extend.backend``: the platforms, and their devices."""

from __future__ import annotations

from gpuflow.runtime.device import Client, default_backend


def get_backend(platform: str | None = None) -> Client:
    """The platform of a name, or the default one."""
    return Client(default_backend() if platform is None else platform)


def backends() -> dict[str, Client]:
    """The platforms by name: the default one, and the processor."""
    return {name: Client(name) for name in dict.fromkeys((default_backend(), "cpu"))}
