"""One framework of the GPU acceptance in one process: times rows and prints a JSON line for each.

usage: python perf/gpu_child.py FRAMEWORK [--platform cuda] [--tiny] [--rows TEXT] [--after ROW]
       python perf/gpu_child.py gpuflow --build 0/8      only builds every eighth row's kernels

Times of the device are those of many calls on inputs in turn, which together are larger than the
L2 cache, from before the first to after the last: with events where the framework has them, else
with the host's clock. Times of the host end when the last call has returned. Each time is the
median of several such batches.

A row is announced before it begins, so that whoever started this process knows which one it died
of; it exits with DEVICE_LOST when a row leaves the device of no use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from gpu_frameworks import OURS, Framework, load
from gpu_processes import DEVICE_LOST
from gpu_rows import BF16, JAX, Row, all_rows

L2_TWICE = 1 << 28
MOST_SETS = 8
BATCHES = 9
BATCH_SECONDS = 0.03
MOST_HOST_CALLS = 40  # a queue that is full would make the host wait
SIZES, SIZES_SECONDS = 500, 40.0  # random batch sizes of the last row
MANY_SIZES = "500 random batch sizes"


def inputs_of(row: Row, size: int, seed: int) -> list[np.ndarray]:
    """One set of inputs, on the host."""
    made = row.inputs(np.random.default_rng(seed), size)
    kinds = [ml_dtypes.bfloat16 if dtype == BF16 else np.dtype(dtype) for _, dtype in made]
    return [
        np.ascontiguousarray(array.astype(kind, copy=False))
        for (array, _), kind in zip(made, kinds, strict=True)
    ]


def measure(row: Row, framework: Framework, tiny: bool, only_build: bool) -> dict[str, Any] | None:
    """Seconds per call, and some numbers of a result; None: the row is not for the framework."""
    size = row.tiny if tiny else row.full
    function = framework.function(row)
    if function is None:
        return None
    host = inputs_of(row, size, 0)
    first = [framework.array(x) for x in host]
    start = time.perf_counter()
    out = function(*first)
    framework.wait(out)
    found: dict[str, Any] = {"size": size, "first_call": time.perf_counter() - start}
    if row.kernels and framework.kernels is not None:
        found["kernels"] = framework.kernels(function, first)
    if only_build:
        return found
    found["check"] = sample_of(framework, out)
    count = sum(x.nbytes for x in host)
    sets = [first]
    if not tiny and not row.host:
        wanted = min(MOST_SETS, max(1, -(-L2_TWICE // max(count, 1))))
        sets += [[framework.array(x) for x in inputs_of(row, size, k)] for k in range(1, wanted)]
    del out, host
    batch = timed_host if row.host else timed_device
    calls = 1 if tiny else calibrated(batch, function, sets, framework, row.host)
    samples = [batch(function, sets, framework, calls) for _ in range(1 if tiny else BATCHES)]
    return {
        **found, "seconds": statistics.median(samples), "samples": samples, "calls": calls,
        "sets": len(sets),
    }  # fmt: skip


def calibrated(
    batch: Callable[..., float], function: Any, sets: Sequence[Any], framework: Framework,
    is_host: bool,
) -> int:  # fmt: skip
    """How many calls take about as long as a batch should."""
    for _ in range(3):  # graphs are recorded at the third call
        seconds = batch(function, sets, framework, 2)
    return max(2, min(int(BATCH_SECONDS / max(seconds, 1e-7)), MOST_HOST_CALLS if is_host else 500))


def timed_device(function: Any, sets: Sequence[Any], framework: Framework, calls: int) -> float:
    """Seconds per call, of the device."""
    out = function(*sets[0])
    framework.wait(out)
    start, mark = time.perf_counter(), framework.clock() if framework.clock else None
    for number in range(calls):
        out = function(*sets[number % len(sets)])
    if framework.clock and framework.between:
        last = framework.clock()
        framework.wait(out)
        return framework.between(mark, last) / calls
    framework.wait(out)
    return (time.perf_counter() - start) / calls


def timed_host(function: Any, sets: Sequence[Any], framework: Framework, calls: int) -> float:
    """Seconds per call until it returns."""
    out = function(*sets[0])
    framework.wait(out)
    start = time.perf_counter()
    for _ in range(calls):
        out = function(*sets[0])
    seconds = time.perf_counter() - start
    framework.wait(out)
    return seconds / calls


def sample_of(framework: Framework, out: Any) -> list[float]:
    """A few numbers of each of the first outputs."""
    numbers: list[float] = []
    for leaf in framework.leaves(out)[:3]:
        values = np.ravel(framework.numpy(leaf))
        values = values[:: max(len(values) // 8, 1)][:8]
        numbers += [float(x) for x in (np.abs(values) if values.dtype.kind == "c" else values)]
    return numbers


def many_sizes(framework: Framework, tiny: bool) -> dict[str, Any] | None:
    """Seconds for one MLP step at each of many batch sizes, compiling included."""
    row = next(row for row in all_rows() if row.name == "MLP Adam step")
    function = framework.function(row)
    if function is None:
        return None
    count, most = (3, 8) if tiny else (SIZES, 1024)
    sizes = np.random.default_rng(5).integers(1, most, count)
    x, *state, labels = inputs_of(row, most, 0)
    held = [framework.array(w) for w in state]

    def step(size: int) -> None:
        # Arrays of a size, as a loader gives them.
        framework.wait(function(framework.array(x[:size]), *held, framework.array(labels[:size])))

    step(most)
    start, seconds, done = time.perf_counter(), 0.0, 0
    while done < count and seconds < SIZES_SECONDS:
        step(int(sizes[done]))
        done, seconds = done + 1, time.perf_counter() - start
    note = "" if done == count else f"stopped after {done}; the rest is taken to be as slow"
    return {"seconds": seconds * count / done, "size": count, "note": note}


def main(arguments: Sequence[str] | None = None) -> int:
    """Times the rows; each is printed when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    parser.add_argument("--after", default="", help="only rows behind the one of this name")
    parser.add_argument("--build", default="", help="k/n: only the first calls of each nth row")
    options = parser.parse_args(arguments)
    framework = load(options.framework, options.platform)
    emit({"row": "version", "version": framework.version})
    part, parts = map(int, options.build.split("/")) if options.build else (0, 1)
    tasks: list[tuple[str, Callable[[], dict[str, Any] | None]]] = [
        (row.name, lambda row=row: measure(row, framework, options.tiny, bool(options.build)))
        for row in all_rows()
    ]
    if options.framework in (OURS, JAX) and not options.build:
        tasks.append((MANY_SIZES, lambda: many_sizes(framework, options.tiny)))
    names = [name for name, _ in tasks]
    behind = names.index(options.after) + 1 if options.after in names else 0
    for name, task in tasks[behind:][part::parts]:
        if options.rows in name:
            guarded(name, task, framework)
    return 0


def guarded(name: str, task: Callable[[], dict[str, Any] | None], framework: Framework) -> None:
    """Prints what a row gives, or its error; exits if the device is of no use after it."""
    emit({"begin": name})
    try:
        found = task()
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    if found is not None:
        emit({"row": name, **found})
    emit({"end": name})
    if found is not None and "error" in found:
        try:
            framework.numpy(framework.array(np.ones(4, np.float32)))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            sys.exit(DEVICE_LOST)


def emit(record: dict[str, Any]) -> None:
    """Prints one record."""
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
