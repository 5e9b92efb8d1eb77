"""One framework of the GPU acceptance in one process: times rows and prints a JSON line for each.

usage: python perf/gpu_child.py FRAMEWORK [--platform cuda] [--tiny] [--seconds 60] [--rows TEXT]

Times of the device are those of many calls on inputs in turn, which together are larger than the
L2 cache, from before the first to after the last: with events where the framework has them, else
with the host's clock. Times of the host end when the last call has returned.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from gpu_rows import Row, all_rows

L2_TWICE = 1 << 28
MOST_SETS = 8
BATCHES = 7
BATCH_SECONDS = 0.03
SIZES = 500  # random batch sizes of the last row


@dataclass(frozen=True)
class Framework:
    """What the rows need of a framework.

    Attributes:
        version: for the report.
        module: as rows want it: jax-like, or torch.
        array: a NumPy array on the device.
        jit: compiles a function.
        numpy: an array of the framework in NumPy.
        wait: returns when all work is done.
        clock: a function that marks a place in the device's work; ``None``: no events.
        between: seconds from one mark to another, both done.
    """

    version: str
    module: Any
    array: Callable[[np.ndarray], Any]
    jit: Callable[[Any], Any]
    numpy: Callable[[Any], np.ndarray]
    wait: Callable[[Any], None]
    leaves: Callable[[Any], list[Any]]
    clock: Callable[[], Any] | None = None
    between: Callable[[Any, Any], float] | None = None


def load_gpuflow(platform: str) -> Framework:
    """gpuflow on a platform."""
    import gpuflow

    (device, *_) = gpuflow.devices(platform)
    gpuflow.config.update("default_device", device)
    clock = between = None
    if platform == "cuda":
        import cupy

        stream = device.driver.api.library(device.driver.compute)

        def clock() -> Any:
            mark = cupy.cuda.Event()
            mark.record(stream)
            return mark

        def between(first: Any, last: Any) -> float:
            return cupy.cuda.get_elapsed_time(first, last) / 1e3

    return Framework(
        gpuflow.__version__, gpuflow, lambda x: gpuflow.device_put(x, device), gpuflow.jit,
        np.asarray, lambda out: gpuflow.block_until_ready(out), gpuflow.tree.leaves, clock, between,
    )  # fmt: skip


def load_jax(platform: str) -> Framework:
    """JAX, on whatever it finds."""
    del platform
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # others need memory as well
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")  # float32 means float32
    return Framework(
        f"{jax.__version__} on {jax.devices()[0].device_kind}", jax, jax.device_put, jax.jit,
        np.asarray, jax.block_until_ready, jax.tree_util.tree_leaves,
    )  # fmt: skip


def load_torch(platform: str, compiled: bool = False) -> Framework:
    """torch, op by op or compiled."""
    import torch

    device = "cuda" if platform == "cuda" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    def array(x: np.ndarray) -> Any:
        if x.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(x.astype(np.float32)).to(device, torch.bfloat16)
        return torch.from_numpy(x).to(device)

    def wait(out: Any) -> None:
        del out
        if device == "cuda":
            torch.cuda.synchronize()

    def clock() -> Any:
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def leaves(out: Any) -> list[Any]:
        if not isinstance(out, (tuple, list)):
            return [out]
        return [x for part in out for x in leaves(part)]

    on_gpu = device == "cuda"
    return Framework(
        torch.__version__, torch, array, torch.compile if compiled else lambda f: f,
        lambda x: x.detach().float().cpu().numpy(), wait, leaves,
        clock if on_gpu else None,
        (lambda first, last: first.elapsed_time(last) / 1e3) if on_gpu else None,
    )  # fmt: skip


def load_cupy(platform: str) -> Framework:
    """CuPy, op by op: rows that ask for more than arrays fail."""
    del platform
    import cupy

    def clock() -> Any:
        mark = cupy.cuda.Event()
        mark.record()
        return mark

    return Framework(
        cupy.__version__, types.SimpleNamespace(numpy=cupy), cupy.asarray, lambda f: f,
        cupy.asnumpy, lambda out: cupy.cuda.Device().synchronize(),
        lambda out: list(out) if isinstance(out, (tuple, list)) else [out],
        clock, lambda first, last: cupy.cuda.get_elapsed_time(first, last) / 1e3,
    )  # fmt: skip


LOADERS: dict[str, Callable[[str], Framework]] = {
    "gpuflow": load_gpuflow,
    "jax": load_jax,
    "torch": load_torch,
    "torch.compile": lambda platform: load_torch(platform, compiled=True),
    "cupy": load_cupy,
}


def inputs_of(row: Row, size: int, framework: Framework, seed: int) -> list[Any]:
    """One set of inputs on the device."""
    made = row.inputs(np.random.default_rng(seed), size)
    kinds = [ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype) for _, dtype in made]
    return [
        framework.array(np.ascontiguousarray(array.astype(kind)))
        for (array, _), kind in zip(made, kinds, strict=True)
    ]


def measure(row: Row, framework: Framework, name: str, tiny: bool) -> dict[str, Any]:
    """Seconds per call, and some numbers of a result."""
    size = row.tiny if tiny else row.full
    make = row.torch if name.startswith("torch") else row.make
    if make is None:
        return {"skipped": "no such row for this framework"}
    function = make(framework.module)
    if not row.is_eager:
        function = framework.jit(function)
    first = inputs_of(row, size, framework, 0)
    start = time.perf_counter()
    out = function(*first)
    framework.wait(out)
    compiled = time.perf_counter() - start
    check = sample_of(framework, out)
    count = sum(int(np.prod(x.shape)) * 4 for x in first)
    sets = [first]
    if not tiny and not row.host:
        wanted = min(MOST_SETS, max(1, -(-L2_TWICE // max(count, 1))))
        sets += [inputs_of(row, size, framework, seed) for seed in range(1, wanted)]
    del out
    batch = timed_host if row.host else timed_device
    calls = 1 if tiny else calibrated(batch, function, sets, framework, row.host)
    samples = [batch(function, sets, framework, calls) for _ in range(1 if tiny else BATCHES)]
    return {
        "seconds": statistics.median(samples), "samples": samples, "check": check,
        "first_call": compiled, "calls": calls, "sets": len(sets), "size": size,
    }  # fmt: skip


def calibrated(
    batch: Callable[..., float], function: Any, sets: Sequence[Any], framework: Framework,
    is_host: bool,
) -> int:  # fmt: skip
    """How many calls take about as long as a batch should."""
    batch(function, sets, framework, 2)
    seconds = batch(function, sets, framework, 2)
    # A queue that is full would make the host wait.
    return max(2, min(int(BATCH_SECONDS / max(seconds, 1e-7)), 50 if is_host else 2000))


def timed_device(
    function: Any, sets: Sequence[Any], framework: Framework, calls: int
) -> float:
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
        values = np.asarray(framework.numpy(leaf), np.float64).reshape(-1)
        step = max(len(values) // 8, 1)
        numbers += [float(x) for x in values[::step][:8]]
    return numbers


def many_sizes(framework: Framework, tiny: bool) -> dict[str, Any]:
    """Seconds for one MLP step at each of many batch sizes, compiling included."""
    row = next(row for row in all_rows() if row.name == "MLP Adam step")
    function = framework.jit(row.make(framework.module))
    count = 3 if tiny else SIZES
    sizes = np.random.default_rng(5).integers(1, 8 if tiny else 1024, count)
    sets = [inputs_of(row, int(size), framework, 0) for size in sizes[:1]]
    framework.wait(function(*sets[0]))
    start = time.perf_counter()
    for number, size in enumerate(sizes):
        framework.wait(function(*inputs_of(row, int(size), framework, 0)))
        if time.perf_counter() - start > 60:
            return {"seconds": time.perf_counter() - start, "note": f"stopped after {number + 1}"}
    return {"seconds": time.perf_counter() - start}


def main(arguments: Sequence[str] | None = None) -> int:
    """Times the rows; each is printed when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=LOADERS)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rows", default="", help="only rows whose name holds this")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    framework = LOADERS[options.framework](options.platform)
    emit({"row": "version", "version": framework.version})
    for row in all_rows():
        if options.rows in row.name:
            if time.perf_counter() - start > options.seconds:
                emit({"row": row.name, "skipped": "out of time"})
                continue
            guarded(row.name, measure, row, framework, options.framework, options.tiny)
    name = "500 random batch sizes"
    if options.rows in name and options.framework in ("gpuflow", "jax"):
        guarded(name, many_sizes, framework, options.tiny)
    return 0


def guarded(name: str, function: Callable[..., dict[str, Any]], *arguments: Any) -> None:
    """Prints what the function gives, or its error."""
    try:
        found = function(*arguments)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    emit({"row": name, **found})


def emit(record: dict[str, Any]) -> None:
    """Prints one record."""
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    sys.exit(main())
