"""A stream beside a GPU's compute stream, for work that may run while kernels do.

What it is given and what kernels are given meet by events only; the host waits for nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from gpuflow.runtime.device import Device


class SideStream:
    """A stream of a device, made when it is first used.

    Args:
        device: whose driver has an api and a compute stream.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    @cached_property
    def _driver(self) -> Any:
        return self._device.driver  # from here on the device counts as used

    @cached_property
    def address(self) -> int:
        """By which CUDA knows the stream."""
        self._driver.api.activate()
        return self._driver.api.stream()

    def follow(self) -> None:
        """Let what this stream is given later begin behind what the compute stream has by now."""
        driver = self._driver
        driver.api.wait_event(self.address, driver.api.event(driver.compute))

    def mark(self) -> Any:
        """An event behind what this stream has by now."""
        return self._driver.api.event(self.address)

    def join(self, mark: Any) -> None:
        """Let what the compute stream is given later begin behind a mark of this stream."""
        self._driver.api.wait_event(self._driver.compute, mark)

    def synchronize(self) -> None:
        """Return when this stream has done all that it was given."""
        self._driver.api.synchronize(self.address)
