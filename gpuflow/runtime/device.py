"""Devices: where arrays live and programs run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpuflow.base.config import config


@dataclass(frozen=True)
class Device:
    """One device of a platform."""

    platform: str
    id: int
    process_index: int = 0

    @property
    def device_kind(self) -> str:
        return self.platform

    def __repr__(self) -> str:
        return f"{self.platform.capitalize()}Device(id={self.id})"

    __str__ = __repr__


PLATFORMS = ("cpu",)


@cache
def devices(platform: str | None = None) -> tuple[Device, ...]:
    """The devices of ``platform``; of the default platform when None.

    Raises:
        RuntimeError: an unknown or absent platform.
    """
    name = platform or config.environment.platform or "cpu"
    if name not in PLATFORMS:
        raise RuntimeError(
            f"[devices] the platform must be one of {PLATFORMS}; got {name!r}. "
            "Fix: set GPUFLOW_PLATFORM=cpu, or leave it unset. (The CUDA driver is not in this "
            "version: kernels are printed and linked for CUDA, but not launched.)"
        )
    return tuple(Device(name, number) for number in range(config.environment.cpu_devices))


def default_device() -> Device:
    """The device on which new arrays are made."""
    chosen = config.trace_context().default_device
    return chosen if chosen is not None else devices()[0]


def default_backend() -> str:
    """The name of the default platform."""
    return devices()[0].platform
