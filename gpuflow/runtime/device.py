"""Devices and platforms: which exist, which one is the default, and their drivers.

Tests: tests/parallel/test_sharded_arrays.py, tests/runtime/test_devices.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar

from gpuflow.base.cached import cached_property
from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.base.variables import MAX_DEVICES
from gpuflow.compiler.target import Target
from gpuflow.runtime.driver import Driver


@record(frozen=False)
class _Process:
    """This process in a group of processes.

    Attributes:
        index: the rank of this process.
        count: the number of processes.
        devices: for each process, from platform name to its number of devices.
    """

    index: int = 0
    count: int = 1
    devices: tuple[Mapping[str, int], ...] = ({},)


process = _Process()


@record
class Client:
    """One platform with its devices: JAX's client interface.

    Attributes:
        platform: name of the platform, such as ``"cpu"``.
        runtime_type: name of the runtime.
    """

    platform: str
    runtime_type: ClassVar[str] = "gpuflow"

    def devices(self) -> list[Device]:
        """Return the devices of all processes."""
        return list(devices(self.platform))

    def local_devices(self) -> list[Device]:
        """This process's devices."""
        return list(local_devices(self.platform))

    def device_count(self) -> int:
        """Return the number of devices."""
        return len(devices(self.platform))

    def local_device_count(self) -> int:
        """Return the number of this process's devices."""
        return len(local_devices(self.platform))

    def process_index(self) -> int:
        """The index of this process."""
        return process.index


@record
class Memory:
    """The memory of a device; each device has one.

    Attributes:
        device: the device.
        kind: always ``"device"``.
    """

    device: Device
    kind: str = "device"


@record
class Device:
    """One device of a platform.

    Attributes:
        platform: name of the platform.
        id: index among the devices of all processes.
        process_index: the process that the device belongs to.
        local_hardware_id: index in its process; -1 means ``id``.
        is_committed: whether arrays with this device were explicitly placed there.
    """

    platform: str
    id: int
    process_index: int = 0
    local_hardware_id: int = field(default=-1, compare=False)
    # Committed arrays stay on their device; uncommitted operands are moved to them. A result takes
    # the device of an operand, including this flag.
    is_committed: bool = field(default=False, compare=False, repr=False)

    @property
    def device_kind(self) -> str:
        return self.platform

    @property
    def client(self) -> Client:
        """The device's platform."""
        return Client(self.platform)

    def addressable_memories(self) -> list[Memory]:
        """Return the memories that the device can access: its own."""
        return [self.default_memory()]

    def default_memory(self) -> Memory:
        """Return the memory of new arrays."""
        return Memory(self)

    @property
    def is_local(self) -> bool:
        """Whether the device belongs to this process."""
        return self.process_index == process.index

    @property
    def memory(self) -> Hashable:
        """Identifier of the memory, equal for devices that share it, across processes."""
        ordinal = None if _platforms[self.platform].shares_memory else self.id
        return self.platform, self.process_index, ordinal

    @cached_property
    def driver(self) -> Driver:
        """The driver of the device."""
        if not self.is_local:
            raise ValueError(
                f"[device] the device must belong to this process; got {self} of process "
                f"{self.process_index} in process {process.index}. Fix: use local_devices()."
            )
        ordinal = self.id if self.local_hardware_id < 0 else self.local_hardware_id
        with in_use.making:  # two threads must not create a driver each
            driver = _platforms[self.platform].driver(ordinal)
        in_use.drivers.add(driver)
        in_use.devices.add(self)
        in_use.several = len(in_use.devices) > 1
        return driver

    @cached_property
    def committed(self) -> Device:
        """The same device with ``is_committed``, for arrays that are explicitly placed on it."""
        if self.is_committed:
            return self
        others = (device for device in devices(self.platform) if device.is_local)
        in_use.several = in_use.several or any(device != self for device in others)
        return replace(self, is_committed=True)

    def memory_stats(self) -> dict[str, int]:
        """Return the memory statistics of the device, with JAX's names.

        Returns:
            ``bytes_in_use`` and ``peak_bytes_in_use`` of arrays and temporaries of this process;
            ``num_allocs`` and ``largest_alloc_size`` of all allocations so far; ``bytes_limit``,
            the total memory. On the CPU the first two are those of the whole process, and the next
            two count results from 64 KiB.

        Raises:
            ValueError: if the device belongs to another process.
        """
        return self.driver.memory_stats()

    def __reduce__(self) -> tuple[type[Device], tuple[str, int, int, int]]:
        return Device, (self.platform, self.id, self.process_index, self.local_hardware_id)

    def __repr__(self) -> str:
        kind = "".join(token.capitalize() for token in self.platform.split("_"))
        return f"{kind}Device(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


@record(repr=False)
class PlannedDevice(Device):
    """A device of a ``PlannedMesh``: it has a memory of its own, and nothing runs on it."""

    @property
    def memory(self) -> Hashable:
        return "planned", self.platform, self.id

    @cached_property
    def driver(self) -> Driver:
        raise ValueError(
            f"[device] {self} of a planned mesh must not hold arrays, as it need not exist. "
            "Fix: pass ShapeDtypeStructs to gpuflow.explain, or use a mesh of gpuflow.devices()."
        )


@record(frozen=False)
class _InUse:
    """The drivers and devices that this process has used; nearly always one.

    Processes with one device skip checks. A flag is never cleared once it is set.
    perf/bench_flags.py measures the savings.

    Attributes:
        drivers: the drivers in use.
        devices: the devices in use.
        several: whether arrays may be on several devices, so that operations must check. An eager
            sum of two small arrays then takes 28 % longer, a jitted one 55 %.
        distributed: whether an array ever had shards in several memories. The checks make an eager
            loop 7 % slower, and an operation on an array and a scalar 4 %.
        making: lock for the creation of a driver.
    """

    drivers: set[Driver] = field(default_factory=set)
    devices: set[Device] = field(default_factory=set)
    several: bool = False
    distributed: bool = False
    making: Any = field(default_factory=threading.RLock)

    def forget_lock(self) -> None:
        """Replace the lock in a forked child: the thread that held it may not exist there."""
        self.making = threading.RLock()


in_use = _InUse()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=in_use.forget_lock)


def common_device(name: str, arrays: Sequence[Any]) -> Device:
    """The device on which an operation on arrays runs.

    It is the device of the committed arrays, or the default device if there are none.

    Raises:
        ValueError: if arrays are committed to different devices.
    """
    committed = [array for array in arrays if array.device.is_committed]
    if not committed:
        return default_device()
    device = committed[0].device
    if any(array.device != device for array in committed):
        raise different_devices(name, committed)
    return device


def different_devices(name: str, arrays: Sequence[Any]) -> ValueError:
    """The error for arrays that are committed to different devices."""
    listed = ", ".join(f"{array.aval} on {_device_names(array)}" for array in arrays)
    return ValueError(
        f"[{name}] arrays that were put on devices must be on the same ones; got {listed}. "
        "Fix: move them with device_put(x, device)."
    )


def _device_names(array: Any) -> str:
    return ", ".join(sorted(map(str, array.devices())))


@record
class Platform:
    """A kind of device.

    Attributes:
        name: name of the platform, such as ``"cuda"``.
        count: returns the number of devices of this process; raises RuntimeError if there are none.
        driver: from the index of a device to its driver.
        is_default: whether it may be the default platform; the first registered one is.
        shares_memory: whether all devices of a process share one memory.
        target: returns the compilation target, which needs no device.
    """

    name: str
    count: Callable[[], int]
    driver: Callable[[int], Driver]
    is_default: Callable[[], bool] = lambda: False
    shares_memory: bool = False
    target: Callable[[], Target] | None = None


_platforms: dict[str, Platform] = {}


def register_platform(platform: Platform) -> None:
    """Register a platform with its devices."""
    _platforms[platform.name] = platform


_ALIASES = {"gpu": "cuda"}  # JAX's name


@cache
def _default_platform() -> str:
    return next(platform.name for platform in _platforms.values() if platform.is_default())


def target_of(platform: str) -> Target:
    """Return the compilation target of a platform, which needs no device.

    Raises:
        ValueError: if the platform is unknown.
    """
    named = _platforms.get(_ALIASES.get(platform, platform))
    if named is None or named.target is None:
        names = tuple(p.name for p in _platforms.values() if p.target is not None)
        raise ValueError(
            f"[explain] the platform must be one of {names}; got {platform!r}. "
            "Fix: leave it out, or name one of them."
        )
    return named.target()


@cache
def devices(platform: str | None = None) -> tuple[Device, ...]:
    """The devices of ``platform``; None is the default platform.

    Raises:
        RuntimeError: if the platform is unknown or has no devices.
    """
    if not are_in_use():
        config.before_devices()
    name = platform or config.environment.platform or _default_platform()
    name = _ALIASES.get(name, name)
    if name not in _platforms:
        raise RuntimeError(
            f"[devices] the platform must be one of {tuple(_platforms)}; got {name!r}. "
            "Fix: leave the platform out, or GPUFLOW_PLATFORM unset, for the default one."
        )
    local_count = _platforms[name].count()
    if process.count == 1:
        return tuple(Device(name, ordinal, 0, ordinal) for ordinal in range(local_count))
    counts = [there.get(name, local_count) for there in process.devices]
    locations = [(rank, ordinal) for rank, count in enumerate(counts) for ordinal in range(count)]
    return tuple(
        Device(name, ordinal, rank, local) for ordinal, (rank, local) in enumerate(locations)
    )


def are_in_use() -> bool:
    """Whether devices were requested already, which fixes their number."""
    return devices.cache_info().currsize > 0


@cache
def local_devices(platform: str | None = None) -> tuple[Device, ...]:
    """The devices of this process."""
    return tuple(device for device in devices(platform) if device.is_local)


def set_process(index: int, count: int, counts: tuple[Mapping[str, int], ...]) -> None:
    """Join a group: set this process's rank, the number of processes, and each one's devices."""
    process.index, process.count, process.devices = index, count, counts
    devices.cache_clear()
    local_devices.cache_clear()


def device_counts() -> dict[str, int]:
    """The number of this process's devices of the default platform and of the CPU."""
    names = {"cpu", config.environment.platform or _default_platform()}
    return {name: _platforms[name].count() for name in sorted(names)}


def default_device() -> Device:
    """The device of new arrays."""
    configured = config.trace_context().default_device
    if configured is None:
        return local_devices()[0]
    return configured if type(configured) is Device else local_devices(configured)[0]


def _check_default(value: Any) -> None:
    if not isinstance(value, Device) and value not in _platforms:
        raise ValueError(
            "[config] default_device must be a Device, None, or the name of a platform, one of "
            f"{tuple(_platforms)}; got {value!r}. Fix: gpuflow.devices()[0]."
        )


def _check_cpu_count(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_DEVICES:
        raise ValueError(
            f"[config] num_cpu_devices must be an integer from 1 to {MAX_DEVICES}; got {value!r}. "
            "Fix: config.update('num_cpu_devices', 8)."
        )
    if are_in_use() and value != config.environment.cpu_devices:
        raise RuntimeError(
            "[config] num_cpu_devices must be set before devices are first used; got "
            f"{value} where there are {config.environment.cpu_devices}. "
            "Fix: set it right after the import, or export GPUFLOW_CPU_DEVICES."
        )


config.register_check("default_device", _check_default)
config.register_check("num_cpu_devices", _check_cpu_count)


def default_backend() -> str:
    """Return the name of the default platform.

    Returns:
        A string, such as ``"cpu"`` or ``"cuda"``.

    Example:
        >>> gf.default_backend() == gf.devices()[0].platform
        True
    """
    return devices()[0].platform
