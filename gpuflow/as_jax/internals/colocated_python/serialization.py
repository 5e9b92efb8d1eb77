"""``jax.experimental.colocated_python.serialization``: devices by number."""

from __future__ import annotations

from gpuflow.as_jax.internals import xla_bridge as xb
from gpuflow.as_jax.internals.absent import absent_class
from gpuflow.runtime.device import Device

DeviceList = absent_class(
    "jax.experimental.colocated_python.serialization.DeviceList",
    "devices must be those of jax.devices(); got a list of them. Fix: a tuple of devices.",
)


def _get_cpu_device_map() -> dict[int, Device]:
    """The CPU devices by number."""
    return {device.id: device for device in xb.get_backend("cpu").devices()}
