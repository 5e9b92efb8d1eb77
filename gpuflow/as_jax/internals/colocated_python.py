"""``jax.experimental.colocated_python``: Python on the hosts of devices.

Each process drives its own devices here, so that their host is this process: functions run in it,
when they are called. Devices of other processes are refused.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.as_jax.internals import xla_bridge
from gpuflow.base import tree
from gpuflow.core.mesh import Mesh
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import Device, devices, process


def _check_ours(op: str, found: Sequence[Device]) -> None:
    others = [device for device in found if device.process_index != process.index]
    if others:
        raise NotImplementedError(
            f"[{op}] devices must be driven by this process; got {others[0]} of process "
            f"{others[0].process_index}. Fix: call the function in each process."
        )


def colocated_cpu_devices(devices_or_mesh: Sequence[Device] | Mesh) -> Any:
    """The CPU devices of the hosts of devices: CPU devices themselves, for others the first ones.

    Args:
        devices_or_mesh: a sequence of Devices, or a Mesh.

    Returns:
        A tuple of as many CPU devices, or a Mesh of them.

    Raises:
        NotImplementedError: if a device is driven by another process.
        ValueError: if there are fewer CPU devices.
    """
    if isinstance(devices_or_mesh, Mesh):
        mesh = devices_or_mesh
        hosts = np.empty(mesh.devices.size, object)
        hosts[:] = colocated_cpu_devices(list(mesh.devices.flat))
        return Mesh(hosts.reshape(mesh.devices.shape), mesh.axis_names, mesh.axis_types)
    given = tuple(devices_or_mesh)
    _check_ours("colocated_cpu_devices", given)
    if all(device.platform == "cpu" for device in given):
        return given
    cpus = devices("cpu")
    if len(cpus) < len(given):
        raise ValueError(
            f"[colocated_cpu_devices] there must be a CPU device for each device; got {len(cpus)} "
            f"for {len(given)}. Fix: export GPUFLOW_CPU_DEVICES={len(given)}."
        )
    return tuple(cpus[: len(given)])


class ColocatedFunction:
    """A function that runs in this process with the arrays that it is called with.

    Args:
        fun: takes and returns trees of arrays.
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun

    def specialize(
        self,
        in_specs: Any = None,
        out_specs_fn: Callable[..., Any] | None = None,
        devices: Sequence[Device] | None = None,
    ) -> ColocatedFunction:
        """The function for arguments of given types and devices; it runs as before.

        Args:
            in_specs, out_specs_fn: types of arguments and of results; without effect.
            devices: where it runs.

        Raises:
            NotImplementedError: if a device is driven by another process.
        """
        del in_specs, out_specs_fn
        _check_ours("colocated_python", devices or ())
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for leaf in tree.leaves((args, kwargs)):
            if isinstance(leaf, Array):
                _check_ours("colocated_python", list(leaf.sharding.device_set))
        return self._fun(*args, **kwargs)


def colocated_python(fun: Callable[..., Any]) -> ColocatedFunction:
    """A function that runs on the hosts of the devices of its arguments: in this process."""
    return ColocatedFunction(fun)


def colocated_python_class(cls: type) -> type:
    """A class whose instances live on the hosts of devices: in this process."""
    return cls


def _get_cpu_device_map() -> dict[int, Device]:
    """The CPU devices by number."""
    return {device.id: device for device in xla_bridge.get_backend("cpu").devices()}
