"""Registration of the platforms ``cuda``, ``cpu`` and ``cuda_sim``.

The module of a platform's driver is imported at its first use.

Tests: tests/targets/cuda/test_cuda_device.py, tests/targets/cuda/test_gpu_trouble.py.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.compiler.target import Target
from gpuflow.runtime.device import Platform, register_platform
from gpuflow.runtime.driver import Driver

if TYPE_CHECKING:
    from gpuflow.targets.cpu.runtime import driver as host_driver
    from gpuflow.targets.cuda.library import target as gpu_target
    from gpuflow.targets.cuda.runtime.driver import on_cupy
    from gpuflow.targets.cuda_sim import driver as simulated_driver
else:
    host_driver = LazyModule("gpuflow.targets.cpu.runtime.driver")
    on_cupy = LazyModule("gpuflow.targets.cuda.runtime.driver.on_cupy")
    simulated_driver = LazyModule("gpuflow.targets.cuda_sim.driver")
    gpu_target = LazyModule("gpuflow.targets.cuda.library.target")


# Files that exist on Linux, or on WSL (/dev/dxg), if there is an NVIDIA GPU.
GPU_SIGNS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia/version")


def _cpu(device_index: int) -> Driver:
    del device_index  # virtual devices share everything
    return host_driver.cpu_driver()


def _cpu_count() -> int:
    return config.environment.cpu_devices


def _cpu_target() -> Target:
    return host_driver.cpu_driver().target


def _cuda_sim(device_index: int) -> Driver:
    return simulated_driver.sim_driver(device_index)


def _cuda_target() -> Target:
    return gpu_target.chosen_gpu_target()


def _cuda_count() -> int:
    """The number of CUDA devices; raises RuntimeError with a fix if there is no usable GPU."""
    try:
        return on_cupy.device_count()
    except RuntimeError:
        if seems_to_have_gpu():
            raise
    raise RuntimeError(
        f"[cuda] the machine must have an NVIDIA GPU; found none of {', '.join(GPU_SIGNS)}. Fix: "
        'leave the platform out, or pass "cpu", to use the CPU. If there is a GPU, install '
        "NVIDIA's driver, then run gpuflow doctor, which lists missing components."
    )


def _cuda(device_index: int) -> Driver:
    return on_cupy.cuda_driver(device_index)


def seems_to_have_gpu() -> bool:
    """Whether this machine seems to have a GPU; imports nothing."""
    return any(os.path.exists(sign) for sign in GPU_SIGNS)


def _has_cuda() -> bool:
    """Whether CUDA is the default platform.

    Warns if there seems to be a GPU that cannot be used. Without a GPU, only files are checked.
    """
    if not seems_to_have_gpu():
        return False
    try:
        return on_cupy.device_count() > 0
    except on_cupy.NoGpuError:
        return False
    except RuntimeError as error:
        warnings.warn(
            f"gpuflow uses the CPU, though this machine seems to have a GPU: {error} "
            "(GPUFLOW_PLATFORM=cpu turns this warning off.)",
            stacklevel=2,
        )
        return False


def register_platforms() -> None:
    """Register the devices of all platforms; the first that is available is the default.

    Called once, when gpuflow is imported. It imports no driver.
    """
    register_platform(Platform("cuda", _cuda_count, _cuda, _has_cuda, target=_cuda_target))
    shares_memory = not config.environment.separate_memories
    register_platform(Platform("cpu", _cpu_count, _cpu, lambda: True, shares_memory, _cpu_target))
    register_platform(Platform("cuda_sim", lambda: config.environment.sim_devices, _cuda_sim))
