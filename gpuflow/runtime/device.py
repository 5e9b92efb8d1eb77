"""Devices: where arrays live and programs run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from gpuflow.base.config import config
from gpuflow.runtime.driver import Driver


@dataclass(frozen=True)
class Device:
    """One device of a platform."""

    platform: str
    id: int
    process_index: int = 0

    @property
    def device_kind(self) -> str:
        return self.platform

    @cached_property
    def driver(self) -> Driver:
        """What does the device's work."""
        driver = _platforms[self.platform].driver(self.id)
        in_use.drivers.add(driver)
        in_use.several = len(in_use.drivers) > 1
        return driver

    def __reduce__(self) -> Any:
        return Device, (self.platform, self.id, self.process_index)

    def __repr__(self) -> str:
        kind = "".join(part.capitalize() for part in self.platform.split("_"))
        return f"{kind}Device(id={self.id})"

    __str__ = __repr__


@dataclass
class _InUse:
    """The drivers that this process has asked for; nearly always one."""

    drivers: set[Driver] = field(default_factory=set)
    several: bool = False


in_use = _InUse()


def check_one_driver(name: str, arrays: Sequence[Any]) -> None:
    """Check that all arrays are where one driver finds them.

    Raises:
        ValueError: they are not.
    """
    drivers = {array.device.driver for array in arrays}
    if len(drivers) > 1:
        places = ", ".join(f"{array.aval} on {array.device}" for array in arrays)
        raise ValueError(
            f"[{name}] arrays must be on one device; got {places}. "
            "Fix: move them with device_put(x, device)."
        )


@dataclass(frozen=True)
class Platform:
    """A kind of device.

    Attributes:
        count: the number of devices of this process; raises RuntimeError where there are none.
        driver: of the device with a number.
    """

    name: str
    count: Callable[[], int]
    driver: Callable[[int], Driver]


_platforms: dict[str, Platform] = {}


def register_platform(platform: Platform) -> None:
    """Make the devices of a platform known."""
    _platforms[platform.name] = platform


@cache
def devices(platform: str | None = None) -> tuple[Device, ...]:
    """The devices of ``platform``; of the default platform when None.

    Raises:
        RuntimeError: an unknown or absent platform.
    """
    name = platform or config.environment.platform or "cpu"
    if name not in _platforms:
        raise RuntimeError(
            f"[devices] the platform must be one of {tuple(_platforms)}; got {name!r}. "
            "Fix: set GPUFLOW_PLATFORM=cpu, or leave it unset. (The CUDA driver is not in this "
            "version: kernels are printed and linked for CUDA, but not launched.)"
        )
    return tuple(Device(name, number) for number in range(_platforms[name].count()))


def default_device() -> Device:
    """The device on which new arrays are made."""
    chosen = config.trace_context().default_device
    return chosen if chosen is not None else devices()[0]


def default_backend() -> str:
    """The name of the default platform."""
    return devices()[0].platform
