"""What recording, changing and replaying launches costs: the limits of graphs.py are guesses.

usage: python perf/gpu_graph_costs.py [--platform cuda] [--tiny]

A line for each cost, and one for each limit: what it is, and what these costs say it should be.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from gpu_ceilings import median, small_launch, timer

import gpuflow as gf
from gpuflow.targets.cuda.runtime.driver import graphs

FEW, MANY = 4, 32  # launches of a graph
COPIES = tuple(1 << k for k in (12, 16, 18, 20, 22, 24))  # bytes


def host_seconds(driver: Any, work: Callable[[], Any], times: int) -> float:
    """Seconds of the host for each call, with an empty queue in front."""

    def once() -> float:
        driver.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            work()
        seconds = (time.perf_counter() - start) / times
        driver.synchronize()
        return seconds

    return median(once, 7)


def costs(driver: Any, timed: Any, times: int) -> dict[str, float]:
    """Seconds by name.

    Args:
        driver: of the device.
        timed: from ``gpu_ceilings.timer``.
        times: calls of each measurement.
    """
    api, stream = driver.api, driver.compute
    launch, _memory = small_launch(driver)
    found = {"launch": host_seconds(driver, launch, times)}
    for count in (FEW, MANY):
        graph = api.record(stream, [launch] * count)
        if graph is None:
            raise RuntimeError(f"[graph costs] {count} launches must be recorded; they were not.")
        found[f"record {count}"] = host_seconds(
            driver, lambda count=count: api.record(stream, [launch] * count), max(times // 8, 1)
        )
        found[f"replay {count}"] = host_seconds(driver, graph, times)
        found[f"change one of {count}"] = host_seconds(
            driver, lambda graph=graph: graph.change_launch(1, launch), times
        )
    for count in COPIES:
        source, target = (driver.empty((count,), np.dtype(np.uint8)) for _ in range(2))

        def copy(target: Any = target, source: Any = source, count: int = count) -> None:
            api.copy_within(target.address, source.address, count, stream)

        found[f"copy {count} bytes, the host's time"] = host_seconds(driver, copy, times)
        found[f"copy {count} bytes"] = median(lambda copy=copy: timed(copy, times), 5)
    return found


def advice(found: dict[str, float]) -> Iterator[dict[str, Any]]:
    """For each limit: what it is, and what it should be by these costs."""
    launch, change = found["launch"], found[f"change one of {MANY}"]
    saved = {count: count * launch - found[f"replay {count}"] for count in (FEW, MANY)}
    each = (found[f"replay {MANY}"] - found[f"replay {FEW}"]) / (MANY - FEW)
    start = found[f"replay {FEW}"] - FEW * each
    least = start / (launch - each) if launch > each else None
    yield _limit("LEAST_LAUNCHES", "launches from which a replay takes less of the host", least)
    yield _limit("_WORTH_CHANGING", "launches that a change must save", change / launch)
    paid = found[f"record {MANY}"] / saved[MANY] if saved[MANY] > 0 else None
    yield _limit(
        "_REPLAYS_PER_RECORDING", f"replays until {MANY} recorded launches have paid", paid
    )
    for count in (FEW, MANY):
        sizes = [size for size in COPIES if found[f"copy {size} bytes"] < saved[count]]
        text = f"bytes of a copy on the device that takes less than {count} launches save"
        yield _limit("_MAX_COPIED_BYTES", text, max(sizes, default=None))


def _limit(name: str, what: str, measured: float | None) -> dict[str, Any]:
    return {"limit": name, "is": getattr(graphs, name), "what": what, "measured": measured}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints a line of JSON for each cost and each limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    driver: Any = gf.devices(options.platform)[0].driver
    found = costs(driver, timer(options.platform, driver), 2 if options.tiny else 64)
    for name, seconds in found.items():
        print(json.dumps({"ceiling": name, "seconds": seconds}), flush=True)
    for line in advice(found):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
