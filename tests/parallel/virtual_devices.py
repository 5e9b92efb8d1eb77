"""Eight virtual CPU devices in a process that was started with one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpuflow.base.config import config
from gpuflow.runtime.device import devices


@pytest.fixture(autouse=True)
def eight_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "environment", replace(config.environment, cpu_devices=8))
    devices.cache_clear()
    yield
    monkeypatch.undo()
    devices.cache_clear()
