"""``jax.experimental.colocated_python``: names that libraries import.

It runs Python on the hosts of devices that another process drives. Here each process drives its
own devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from gpuflow.runtime.device import Device


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"[{name}] devices must be driven by their own process; got a function for another host. "
        "Fix: call it in each process."
    )


def colocated_python(fun: Callable[..., Any]) -> Any:
    """Refused."""
    del fun
    _refuse("colocated_python")


def colocated_python_class(cls: type) -> Any:
    """Refused."""
    del cls
    _refuse("colocated_python_class")


def colocated_cpu_devices(devices: Sequence[Device]) -> Any:
    """Refused."""
    del devices
    _refuse("colocated_cpu_devices")
