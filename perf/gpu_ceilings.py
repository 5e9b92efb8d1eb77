"""What the machine can do at most: copies, products by the libraries alone, and launches.

usage: python perf/gpu_ceilings.py [--platform cuda] [--tiny]

Everything else is compared with these. Times are CUDA's events'; inputs are random numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from gpu_rows import normals

import gpuflow as gf
from gpuflow.core.views import contiguous
from gpuflow.targets.cuda.library.copy_launches import copy_launch
from gpuflow.targets.cuda.runtime.driver.api import Gemm
from gpuflow.targets.cuda.runtime.driver.handwritten_kernels import argument_slots, load, prepare


def timer(platform: str, driver: Any) -> Callable[[Callable[[], Any], int], float]:
    """A function of work and its repetitions: seconds for one."""

    def by_clock(work: Callable[[], Any], times: int) -> float:
        driver.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        driver.synchronize()
        return (time.perf_counter() - start) / times

    if platform != "cuda":
        return by_clock
    import cupy

    stream = driver.api.library(driver.compute)

    def by_events(work: Callable[[], Any], times: int) -> float:
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        for _ in range(times):
            work()
        last.record(stream)
        last.synchronize()
        return cupy.cuda.get_elapsed_time(first, last) / 1e3 / times

    return by_events


def median(measure: Callable[[], float], repeats: int) -> float:
    """The median of several measurements, after one that does not count."""
    measure()
    return statistics.median(measure() for _ in range(repeats))


def copy_bandwidth(driver: Any, timed: Any, count: int) -> dict[str, Any]:
    """Bytes read and written per second of a copy from device to device."""
    source, target = (driver.empty((count,), np.dtype(np.uint8)) for _ in range(2))
    seconds = median(lambda: timed(lambda: driver.copy_into(target, source), 10), 5)
    return {"ceiling": "copy", "bytes": 2 * count, "per_second": 2 * count / seconds}


def transfer_bandwidth(driver: Any, host: np.ndarray, to_device: bool) -> dict[str, Any]:
    """Bytes per second between the host's arrays and the device, by the host's clock."""
    data = driver.from_host(host)

    def once() -> float:
        driver.synchronize()
        start = time.perf_counter()
        if to_device:
            driver.from_host(host)
            driver.synchronize()
        else:
            driver.to_host(data)
        return time.perf_counter() - start

    name = "host to device" if to_device else "device to host"
    return {"ceiling": name, "bytes": host.nbytes, "per_second": host.nbytes / median(once, 3)}


def transfers(driver: Any, count: int) -> list[dict[str, Any]]:
    """Both directions, with the same random bytes."""
    host = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    return [transfer_bandwidth(driver, host, to_device) for to_device in (True, False)]


def product_rate(driver: Any, timed: Any, n: int, dtype: Any, reduced: bool) -> dict[str, Any]:
    """Operations per second of a product of square matrices."""
    kind, rng = np.dtype(dtype), np.random.default_rng(1)
    left, right = (driver.from_host(normals(rng, (n, n)).astype(kind)) for _ in range(2))
    out = driver.empty((n, n), kind)
    gemm = Gemm(n, n, n, False, False, n, n, 1, 0, 0, n * n, kind, kind, reduced)
    multiply = driver.api.gemm(gemm, driver.compute)
    name = f"product {'TF32' if reduced else kind.name}"
    if multiply is None:
        return {"ceiling": name, "error": "no library"}
    seconds = median(
        lambda: timed(lambda: multiply(left.address, right.address, out.address), 10), 5
    )
    return {"ceiling": name, "n": n, "per_second": 2.0 * n**3 / seconds}


def small_launch(driver: Any) -> tuple[Callable[[], Any], Any]:
    """A launch of a kernel of one block, which copies 256 numbers, and the memory that it uses."""
    source, target = (driver.from_host(np.zeros(256, np.float32)) for _ in range(2))
    copied = copy_launch(contiguous((256,)), 4)
    signature = ("*uint32", "*uint32", *[copied.index_type] * len(copied.scalars))
    kernel = load(copied.kernel, signature, driver, copied.constants)
    words = argument_slots(signature, [source, target, *copied.scalars])
    return prepare(kernel, driver, copied.grid, (copied.threads, 1, 1), words), (source, target)


def launches(driver: Any, timed: Any, count: int) -> list[dict[str, Any]]:
    """Seconds per small launch: of the host, and of the device with many in a row."""
    launch, _memory = small_launch(driver)

    def by_host() -> float:
        driver.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            launch()
        seconds = (time.perf_counter() - start) / count
        driver.synchronize()
        return seconds

    return [
        {"ceiling": "one launch, the host's time", "seconds": median(by_host, 5)},
        {
            "ceiling": "one launch of many in a row, the device's time",
            "seconds": median(lambda: timed(launch, count), 5),
        },
    ]


def replays(driver: Any, timed: Any, count: int) -> dict[str, Any]:
    """Seconds per small launch of a recorded graph."""
    launch, _memory = small_launch(driver)
    graph = driver.api.record(driver.compute, [launch] * count)
    name = f"one launch of a graph of {count}, the device's time"
    if graph is None:
        return {"ceiling": name, "error": "nothing was recorded"}
    return {"ceiling": name, "seconds": median(lambda: timed(graph, 10), 5) / count}


def waits(driver: Any) -> dict[str, Any]:
    """Seconds from a launch until the host knows that it is done."""
    launch, _memory = small_launch(driver)

    def once() -> float:
        start = time.perf_counter()
        launch()
        driver.synchronize()
        return time.perf_counter() - start

    return {"ceiling": "a launch and a wait for it", "seconds": median(once, 20)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything, each line by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    driver: Any = gf.devices(options.platform)[0].driver
    timed = timer(options.platform, driver)
    many, n = (1 << 12, 16) if options.tiny else (1 << 32, 8192)
    few = 4 if options.tiny else 100
    tasks: list[Callable[[], Any]] = [
        lambda: copy_bandwidth(driver, timed, many),
        lambda: launches(driver, timed, few),
        lambda: replays(driver, timed, few),
        lambda: waits(driver),
        lambda: product_rate(driver, timed, n, ml_dtypes.bfloat16, False),
        lambda: product_rate(driver, timed, n, np.float16, False),
        lambda: product_rate(driver, timed, n, np.float32, False),
        lambda: product_rate(driver, timed, n, np.float32, True),
        lambda: product_rate(driver, timed, n, np.float64, False),
        lambda: transfers(driver, min(many, 1 << 28)),
    ]
    for task in tasks:
        try:
            found = task()
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        for record in found if isinstance(found, list) else [found]:
            print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
