"""How much of the cost of making batches prefetch_to_device hides.

usage: python perf/bench_data.py [THREADS]

A step trains a perceptron. Three loops run in turn, many times: over batches that lie there, over
batches that are made between the steps, and over batches that the prefetching thread makes; the
least time of each counts. Shuffled batches of float32 rows are made of 200,000 rows, as
``data.batches`` does. THREADS is GPUFLOW_NUM_THREADS; with one fewer than there are cores (the
default), a core is free for the thread.

Each loop has two times: of the clock, which is worth something where nothing else runs, and of the
processor for the thread that runs the steps, which is what remains of it where a core is free.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

_THREADS = sys.argv[1] if len(sys.argv) > 1 else str(max((os.cpu_count() or 2) - 1, 1))
os.environ["GPUFLOW_NUM_THREADS"] = _THREADS

import numpy as np  # noqa: E402

import gpuflow as gf  # noqa: E402
import gpuflow.numpy as jnp  # noqa: E402
from gpuflow import data  # noqa: E402

_ROWS, _FEATURES, _BATCH = 200_000, 256, 4096
# The first steps are not timed: some batches were ready before.
_FIRST, _STEPS, _READY, _REPEATS = 6, 8, 3, 25
# Widths of the hidden layer: a short step and a longer one; and whether batches are gathered, or
# waited for, as for a disk, which takes no core.
_ROWS_OF_TABLE = ((64, "gathered"), (256, "gathered"), (256, "waited for"))
_WAIT = 0.01


def _step(width: int) -> tuple[Callable[..., Any], list[Any]]:
    rng = np.random.default_rng(0)
    shapes = [(_FEATURES, width), (width, 1)]
    weights = [jnp.asarray(rng.standard_normal(s, np.float32) * 0.05) for s in shapes]

    def loss(weights: list[Any], batch: dict[str, Any]) -> Any:
        hidden = jnp.tanh(batch["x"] @ weights[0])
        return jnp.mean((hidden @ weights[1] - batch["y"][:, None]) ** 2)

    @gf.jit
    def step(weights: list[Any], batch: dict[str, Any]) -> list[Any]:
        gradients = gf.grad(loss)(weights, batch)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]

    return step, weights


def _seconds(
    step: Callable[..., Any], weights: list[Any], batches: Iterable[Any]
) -> tuple[float, float]:
    """Seconds of a step, in a loop over batches: of the clock, and of this thread's processor."""
    start = start_of_thread = 0.0
    for number, batch in enumerate(batches):
        if number == _FIRST:
            gf.block_until_ready(weights)
            start, start_of_thread = time.perf_counter(), time.thread_time()
        weights = step(weights, batch)
    gf.block_until_ready(weights)
    own = time.thread_time() - start_of_thread
    return (time.perf_counter() - start) / _STEPS, own / _STEPS


def main() -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "x": rng.standard_normal((_ROWS, _FEATURES), np.float32),
        "y": rng.standard_normal(_ROWS, np.float32),
    }

    def made() -> data.Batches:
        """As many batches as there are steps, the same ones each time."""
        return data.batches(arrays, _BATCH, key=key, epochs=None)

    def waited_for() -> Iterable[Any]:
        while True:
            time.sleep(_WAIT)
            yield hosts[0]

    def some(batches: Iterable[Any]) -> Iterable[Any]:
        return (batch for batch, _ in zip(batches, range(_FIRST + _STEPS), strict=False))

    key = gf.random.key(0)
    hosts = list(some(made()))
    there = [gf.device_put(batch) for batch in hosts]
    sources = {"gathered": made, "waited for": waited_for}
    print(f"{os.cpu_count()} cores, {_THREADS} threads of gpuflow, the least of {_REPEATS}")
    print("ms of a step: of the clock / of the processor for its thread")
    print("| hidden | batches are | there | made between steps | prefetched | more than there |")
    print("| --- | --- | --- | --- | --- | --- |")
    for width, kind in _ROWS_OF_TABLE:
        step, weights = _step(width)
        source = sources[kind]
        _seconds(step, weights, there)
        times: dict[str, list[tuple[float, float]]] = {"there": [], "made": [], "prefetched": []}
        for _ in range(_REPEATS):
            times["there"].append(_seconds(step, weights, there))
            times["made"].append(_seconds(step, weights, map(gf.device_put, some(source()))))
            with data.prefetch_to_device(source(), _READY) as ready:
                times["prefetched"].append(_seconds(step, weights, some(ready)))
        least = {
            name: [1e3 * min(column) for column in zip(*pairs, strict=True)]
            for name, pairs in times.items()
        }
        more = [new / old - 1 for new, old in zip(least["prefetched"], least["there"], strict=True)]
        cells = [f"{clock:.2f} / {own:.2f}" for clock, own in least.values()]
        print(f"| {width} | {kind} | {' | '.join(cells)} | {more[0]:+.1%} / {more[1]:+.1%} |")


if __name__ == "__main__":
    main()
