"""Run schedules of handwritten kernels, and functions that use them.

They run on the simulated GPU. With ``GPUFLOW_KERNEL_TESTS=cuda`` they run on a GPU, and on the
simulated one as well: the tests compare the GPU's results with NumPy's, and how far they are from
the simulator's goes, as a line of JSON, to the file that ``GPUFLOW_KERNEL_RECORDS`` names
(perf/gpu_acceptance.py does this).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

import gpuflow as gf
from gpuflow.targets.cuda.program import driver_text
from gpuflow.targets.cuda.providers.launch_binding import block_launch
from gpuflow.targets.cuda.providers.launch_sequence import Schedule

SIZES = [0, 1, 31, 33, 1025, 257]
ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
PLATFORM = os.environ.get("GPUFLOW_KERNEL_TESTS", "cuda_sim")


def sim_device() -> Any:
    """The simulated GPU."""
    (device, *_) = gf.devices("cuda_sim")
    return device


def gpu_device() -> Any:
    """The GPU that the tests are for: the simulated one, unless a real one is asked for."""
    (device, *_) = gf.devices(PLATFORM)
    return device


def run_schedule(schedule: Schedule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays, operands and then outputs, after a schedule has run on copies of them."""
    results = _run_schedule(schedule, arrays, gpu_device())
    if PLATFORM != "cuda_sim":
        note_difference(results, _run_schedule(schedule, arrays, sim_device()))
    return results


def _run_schedule(
    schedule: Schedule, arrays: Sequence[np.ndarray], device: Any
) -> list[np.ndarray]:
    driver = device.driver
    driver.api.activate()
    held = [driver.copy(driver.from_host(array)) for array in arrays]
    workspace = driver.empty((max(schedule.workspace_bytes, 1),), np.dtype(np.uint8))
    places = [(None, data.address) for data in [*held, workspace]]
    for one in schedule.launches:
        block_launch(one, places, driver)[0]()
    return [driver.to_host(data) for data in held]


def on_gpu(function: Any, *operands: Any) -> Any:
    """The results of a jitted function on the GPU, of which no library computes any."""
    results = _on_device(function, operands, gpu_device())
    if PLATFORM != "cuda_sim":
        simulated = _on_device(function, operands, sim_device())
        note_difference(gf.tree.leaves(results), gf.tree.leaves(simulated))
    return results


def at_gpu(work: Callable[[], Any]) -> Any:
    """What ``work`` gives where the GPU is the default device: arrays, or a tree of them."""
    with gf.default_device(gpu_device()):
        results = gf.tree.map(np.asarray, work())
    if PLATFORM != "cuda_sim":
        with gf.default_device(sim_device()):
            simulated = gf.tree.map(np.asarray, work())
        note_difference(gf.tree.leaves(results), gf.tree.leaves(simulated))
    return results


def _on_device(function: Any, operands: Sequence[Any], device: Any) -> Any:
    with (
        gf.default_device(device),
        mock.patch.object(driver_text, "LibraryCall", side_effect=AssertionError),
    ):
        return gf.tree.map(np.asarray, gf.jit(function)(*operands))


def note_difference(real: Sequence[np.ndarray], simulated: Sequence[np.ndarray]) -> None:
    """Write down how far the results of a GPU are from those of the simulator."""
    largest = 0.0
    for a, b in zip(real, simulated, strict=True):
        if a.size and a.tobytes() != b.tobytes():
            wide = np.complex128 if a.dtype.kind == "c" else np.float64
            x, y = a.astype(wide), b.astype(wide)
            off = np.abs(x - y)[~(np.isnan(x) & np.isnan(y))]
            scale = max(float(np.abs(y[np.isfinite(y)]).max(initial=0.0)), 1e-30)
            largest = max(largest, float(off.max(initial=0.0)) / scale)
    equal = all(a.tobytes() == b.tobytes() for a, b in zip(real, simulated, strict=True))
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removeprefix("tests/kernels/").split(" ")[0]
    record = {"test": test, "bits_equal": equal, "difference": largest}
    if "GPUFLOW_KERNEL_RECORDS" in os.environ:
        with open(os.environ["GPUFLOW_KERNEL_RECORDS"], "a") as records:
            records.write(json.dumps(record) + "\n")
