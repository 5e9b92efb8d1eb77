"""The platforms that there are. What most processes never use is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.runtime.device import Platform, register_platform
from gpuflow.runtime.driver import Driver
from gpuflow.runtime.driver_cpu import cpu_driver

if TYPE_CHECKING:
    from gpuflow.runtime import driver_sim
else:
    driver_sim = LazyModule("gpuflow.runtime.driver_sim")


def _cpu(number: int) -> Driver:
    del number  # virtual devices share everything
    return cpu_driver()


def _cuda_sim(number: int) -> Driver:
    return driver_sim.sim_driver(number)


def register_platforms() -> None:
    """Make the devices of all platforms known."""
    register_platform(Platform("cpu", lambda: config.environment.cpu_devices, _cpu))
    register_platform(Platform("cuda_sim", lambda: 1, _cuda_sim))
