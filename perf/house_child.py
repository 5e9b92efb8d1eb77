"""What house.py measures in a process of its own: one cold call of jit, or what binding costs.

usage: python perf/house_child.py passed|milliseconds|binding

Prints JSON. PYTHONPATH says which gpuflow is measured, GPUFLOW_CACHE_DIR where its kernels go.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gpuflow as gf
from gpuflow import numpy as jnp
from gpuflow.base import undisturbed
from gpuflow.compiler import pipeline

ROOT = f"{Path(gf.__file__).resolve().parents[1]}/"
OURS = (f"{ROOT}gpuflow/", f"{ROOT}kernels/")
# The folders whose order of work is followed from one file to the next.
HOW_IT_RUNS = ("gpuflow/compiler/", "gpuflow/targets/", "gpuflow/runtime/")
SIZE = 1000
BINDS = 200
NEW_SIZES = range(33, 63)


def cold_call() -> Callable[[], None]:
    """The call that is measured: a function of one op, whose argument is there."""
    x = jnp.ones((SIZE,), jnp.float32)
    f = gf.jit(jnp.sin)
    return lambda: f(x).block_until_ready()


# --- what a call passes -------------------------------------------------------------------------


class Passed:
    """Notes which of our functions are called, and the files of them inside of compile_plan."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.files: list[str] = []
        self.plans = 0

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function: called at each call and return."""
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or event not in ("call", "return"):
            return
        if code.co_name == "compile_plan":
            self.plans += 1 if event == "call" else -1
        elif event == "call" and self.plans:
            self.files.append(code.co_filename.removeprefix(ROOT))
        self.codes.add(code)

    def figures(self) -> dict[str, Any]:
        """Functions, files and rooms passed; how often control goes back to what it had left."""
        files = {code.co_filename for code in self.codes}
        named = {code for code in self.codes if not code.co_name.startswith("<")}
        inside = [file for file in self.files if file.startswith(HOW_IT_RUNS)]
        return {
            "functions": len(named),
            "names": sorted(code.co_name for code in named),
            "files": len(files),
            "rooms": len({Path(file).parent for file in files}),
            "back to files": times_back(inside),
            "back to rooms": times_back([str(Path(file).parent) for file in inside]),
        }


def times_back(places: Sequence[str]) -> int:
    """How often a sequence of places comes to one where it was before, but not just before."""
    moves = [after for before, after in pairwise(["", *places]) if before != after]
    return len(moves) - len(set(moves))


def passed() -> dict[str, Any]:
    """The functions that a cold call passes, in all of its threads."""
    call, record = cold_call(), Passed()

    def noted(run: Callable[[], None], arguments: tuple[()]) -> int:
        def noting() -> None:
            sys.setprofile(record.note)
            run(*arguments)

        return start_new_thread(noting, ())

    undisturbed.start_new_thread = noted  # its threads are not those of threading
    threading.setprofile(record.note)
    sys.setprofile(record.note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return record.figures()


def milliseconds() -> dict[str, Any]:
    """Milliseconds of the cold call."""
    call = cold_call()
    start = time.perf_counter()
    call()
    return {"milliseconds": 1e3 * (time.perf_counter() - start)}


# --- binding ------------------------------------------------------------------------------------


def _step(params: Any, images: Any, labels: Any) -> Any:
    """A training step of a perceptron of three layers."""

    def loss(params: Any) -> Any:
        x = images
        for w, b in params[:-1]:
            x = gf.nn.relu(x @ w + b)
        w, b = params[-1]
        return -jnp.mean(jnp.sum(gf.nn.log_softmax(x @ w + b) * labels, axis=1))

    value, slope = gf.value_and_grad(loss)(params)
    return value, gf.tree.map(lambda p, s: p - 0.1 * s, params, slope)


def _program(batch: int) -> Any:
    """The program of the step for a batch size."""
    widths = (64, 48, 48, 10)
    params = [(jnp.ones((m, n)), jnp.ones(n)) for m, n in pairwise(widths)]
    return gf.make_jaxpr(_step)(params, jnp.ones((batch, 64)), jnp.ones((batch, 10)))


class Timed:
    """A function that adds up the time spent in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*args, **kwargs)
        self.seconds += time.perf_counter() - start
        return result


def binding() -> dict[str, Any]:
    """Microseconds a step of binding a program again, and binding it to sizes not seen before."""
    timed = Timed(pipeline.bound_plan)
    pipeline.bound_plan = timed

    def microseconds(program: Any) -> float:
        before = timed.seconds
        plan, _ = pipeline.compile_plan(program)
        return 1e6 * (timed.seconds - before) / len(plan.steps)

    program = _program(32)
    again = [microseconds(program) for _ in range(BINDS)][BINDS // 10 :]
    new = [microseconds(_program(size)) for size in NEW_SIZES]
    # The first sizes may be of classes that no kernel is there for.
    return {"again": min(again), "new": statistics.median(new[len(new) // 3 :])}


if __name__ == "__main__":
    measured = {"passed": passed, "milliseconds": milliseconds, "binding": binding}
    print(json.dumps(measured[sys.argv[1]]()))
