"""One framework in one process: measures what compare.py asks for, line by line.

Requests and answers are JSON lines on stdin and stdout. The framework's own output goes to stderr.
Nothing of gpuflow is imported beside a rival: the timing code is loaded from its file.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import operator
import os
import platform
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TIMING_FILE = Path(__file__).resolve().parents[1] / "gpuflow" / "timing.py"
# One answer to "run" holds about this many seconds of samples.
SAMPLE_SECONDS = 0.25
# And one answer to "time" about this many.
ROUND_SECONDS = 0.003
WARM_UP_CALLS = 3
WARM_UP_SECONDS = 1.0  # after which there are no further ones


def load_file(path: Path, name: str) -> types.ModuleType:
    """Imports a Python file under `name`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_timing(framework: str) -> types.ModuleType:
    """The timing code; a rival's process has no gpuflow for its one import."""
    name = "gpuflow.core.argument_kinds"
    if framework != "gpuflow":
        stand_in = types.ModuleType(name)
        stand_in.explained = lambda function: function
        sys.modules[name] = stand_in
    try:
        return load_file(TIMING_FILE, "benchmark_timing")
    finally:
        if framework != "gpuflow":
            del sys.modules[name]


def plain_numpy() -> tuple[Any, Any]:
    """NumPy with a `jit` that does nothing: runs whatever needs no transformation."""
    namespace = types.SimpleNamespace(
        __name__="numpy", __version__=np.__version__, jit=lambda function, **_: function
    )
    return namespace, np


def load_framework(name: str) -> tuple[Any, Any]:
    """The framework's (jax-like module, numpy-like module)."""
    if name == "numpy":
        return plain_numpy()
    if name == "torch":
        module = importlib.import_module(name)
        return module, module
    return importlib.import_module(name), importlib.import_module(f"{name}.numpy")


def describe(name: str, module: Any) -> dict[str, str]:
    """Versions that belong beside every figure."""
    return {
        "framework": name,
        "version": str(getattr(module, "__version__", "unknown")),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


class Server:
    """Holds the loaded framework and the workload that was prepared last."""

    def __init__(self, framework: str, bench_file: Path) -> None:
        self.framework = framework
        self.jax, self.jnp = load_framework(framework)
        self.timing = load_timing(framework)
        self.bench = load_file(bench_file, "benchmark_file")
        self.workloads = {item.name: item for item in self.bench.WORKLOADS}
        self.processes = {item.name: item for item in getattr(self.bench, "PROCESS_WORKLOADS", [])}
        self.groups = {item.name: item for item in getattr(self.bench, "CHECKS", [])}
        self.prepared: dict[str, Callable[[], Any]] = {}
        self.calls: dict[str, int] = {}
        self.wait: Callable[[Any], Any] = self.timing.block_until_ready

    def answer(self, request: dict[str, Any]) -> Any:
        """Carries out one request: the name of one of the methods below, or `hello`."""
        kind = request["kind"]
        if kind == "hello":
            return describe(self.framework, self.jax)
        if kind == "prepare":
            return self.prepare(request["name"])
        if kind == "run":
            return self.run(request["name"])
        if kind == "time":
            return self.time(request["name"])
        if kind == "store":
            return self.store(request["name"])
        if kind == "measure":
            return self.processes[request["name"]].measure(self.jax, self.jnp)
        if kind == "check":
            checks = self.groups[request["name"]].measure(self.jax, self.jnp)
            return [dataclasses.asdict(check) for check in checks]
        raise ValueError(f"unknown request {kind!r}")

    def prepare(self, name: str) -> float:
        """Builds the workload, checks its result and warms it up.

        Returns the seconds until the first result.
        """
        workload = self.workloads[name]
        start = time.perf_counter()
        make = workload.makers.get(self.framework, workload.make)
        function = make(self.jax, self.jnp)
        result = self.timing.block_until_ready(function())
        first = time.perf_counter() - start
        if workload.check is not None:
            workload.check(result)
        # A single result is asked itself: that is short beside a short call.
        self.wait = self.timing.block_until_ready
        if hasattr(result, "block_until_ready"):
            self.wait = operator.methodcaller("block_until_ready")
        del result
        start = time.perf_counter()
        for _ in range(WARM_UP_CALLS):
            self.timing.block_until_ready(function())
            if time.perf_counter() - start > WARM_UP_SECONDS:
                break
        # The workloads before it, and their arrays, are not needed again.
        self.prepared, self.calls = {name: function}, {}
        return first

    def run(self, name: str) -> float:
        """Median seconds per call of one round."""
        return self.timing.timeit(self.prepared[name], seconds=SAMPLE_SECONDS).median

    def time(self, name: str) -> tuple[float, float]:
        """Seconds per call of one short round: by the clock, and of all threads' processors."""
        function = self.prepared[name]
        calls = self.calls.get(name, 1)
        clock, processors = self._round(function, calls)
        while name not in self.calls and clock < ROUND_SECONDS / 2:
            calls *= 2
            clock, processors = self._round(function, calls)
        self.calls[name] = calls
        return clock / calls, processors / calls

    def _round(self, function: Callable[[], Any], calls: int) -> tuple[float, float]:
        """Seconds of some calls, each of which is waited for."""
        wait = self.wait
        clock, processors = time.perf_counter(), time.process_time()
        for _ in range(calls):
            wait(function())
        return time.perf_counter() - clock, time.process_time() - processors

    def store(self, name: str) -> dict[str, Any]:
        """Writes what frameworks have to agree on to a file; its path, and the leaves' dtypes."""
        workload = self.workloads[name]
        result = workload.compared(self.jax, self.prepared[name]())
        leaves = [np.asarray(leaf) for leaf in self.jax.tree.leaves(result)]
        handle, path = tempfile.mkstemp(".npz", dir=os.environ["GPUFLOW_CACHE_DIR"])
        with os.fdopen(handle, "wb") as file:
            np.savez(file, *(a.astype(np.float32) if a.dtype.kind == "V" else a for a in leaves))
        return {"path": path, "dtypes": [leaf.dtype.name for leaf in leaves]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("framework")
    parser.add_argument("bench_file", type=Path)
    options = parser.parse_args()
    # Whatever the framework prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    server: Server | None = None
    for line in sys.stdin:
        try:
            if server is None:
                server = Server(options.framework, options.bench_file)
            reply = {"value": server.answer(json.loads(line))}
        except Exception as error:
            text = str(error).strip().splitlines()
            reply = {"error": f"{type(error).__name__}: {text[0] if text else ''}"[:300]}
        answers.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
