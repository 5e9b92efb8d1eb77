"""Run schedules of handwritten kernels, and functions that use them.

They run on the simulated GPU, or with ``KERNEL_TESTS=cuda`` on a GPU (perf/gpu_parts.py).
The tests compare results with NumPy's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

import gpuflow as gf
from gpuflow.targets.cuda.library.launch_binding import bind_block_launch
from gpuflow.targets.cuda.library.launch_sequence import LaunchSequence
from gpuflow.targets.cuda.runtime.program import driver_text

SIZES = [0, 1, 31, 33, 1025, 257]
ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
PLATFORM = os.environ.get("KERNEL_TESTS", "cuda_sim")


def sim_device() -> Any:
    """The simulated GPU."""
    (device, *_) = gf.devices("cuda_sim")
    return device


def gpu_device() -> Any:
    """The GPU that the tests are for: the simulated one, unless a real one is asked for."""
    (device, *_) = gf.devices(PLATFORM)
    return device


def run_schedule(sequence: LaunchSequence, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays, operands and then outputs, after a schedule has run on copies of them."""
    driver = gpu_device().driver
    driver.api.activate()
    held = [driver.copy(driver.from_host(array)) for array in arrays]
    workspace = driver.empty((max(sequence.workspace_bytes, 1),), np.dtype(np.uint8))
    places = [(None, data.address) for data in [*held, workspace]]
    for one in sequence.launches:
        bind_block_launch(one, places, driver)[0]()
    return [driver.to_host(data) for data in held]


def on_gpu(function: Any, *operands: Any) -> Any:
    """The results of a jitted function on the GPU, of which no library computes any."""
    with (
        gf.default_device(gpu_device()),
        mock.patch.object(driver_text, "LibraryCall", side_effect=AssertionError),
    ):
        return gf.tree.map(np.asarray, gf.jit(function)(*operands))


def at_gpu(work: Callable[[], Any]) -> Any:
    """What ``work`` gives where the GPU is the default device: arrays, or a tree of them."""
    with gf.default_device(gpu_device()):
        return gf.tree.map(np.asarray, work())
