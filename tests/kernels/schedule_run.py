"""Run schedules of handwritten kernels on the simulated GPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

import gpuflow as gf
from gpuflow.runtime import program_gpu
from gpuflow.runtime.gpu_block_calls import block_launch
from gpuflow.runtime.gpu_blocks import Schedule

SIZES = [0, 1, 31, 33, 1025, 257]
ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]


def sim_device() -> Any:
    """The simulated GPU."""
    (device,) = gf.devices("cuda_sim")
    return device


def run_schedule(schedule: Schedule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays, operands and then outputs, after a schedule has run on copies of them."""
    driver = sim_device().driver
    driver.api.activate()
    held = [driver.copy(driver.from_host(array)) for array in arrays]
    workspace = driver.empty((max(schedule.workspace_bytes, 1),), np.dtype(np.uint8))
    places = [(None, data.address) for data in [*held, workspace]]
    for one in schedule.launches:
        block_launch(one, places, driver)[0]()
    return [driver.to_host(data) for data in held]


def on_gpu(function: Any, *operands: Any) -> Any:
    """The results of a jitted function on the simulated GPU, of which no library computes any."""
    with (
        gf.default_device(sim_device()),
        mock.patch.object(program_gpu, "LibraryCall", side_effect=AssertionError),
    ):
        return gf.tree.map(np.asarray, gf.jit(function)(*operands))
