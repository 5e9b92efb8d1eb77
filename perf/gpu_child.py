"""One framework of the GPU acceptance in one process, which times the rows that it is asked for.

usage: python perf/gpu_child.py FRAMEWORK [--platform cuda] [--tiny]      serves gpu_race.py
       python perf/gpu_child.py FRAMEWORK --first [--names NAME NAME] [--part 0/4]

Requests and answers are lines of JSON. A row is asked for twice: ``first`` makes its inputs and
calls it once, which compiles it and may go on beside other processes; ``time`` measures it, and
then nothing else should run. With --first nothing is asked: rows are called once, so that what
compilers keep on disk is there when they are timed; each is announced before it begins.

Times of the device are those of many calls on inputs in turn, which together are larger than the
L2 cache, from before the first to after the last: with events where the framework has them, else
with the host's clock. Times of the host end when the last call has returned. Each time is the
median of several such batches, behind one that brings the clocks up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from gpu_frameworks import Framework, load
from gpu_processes import DEVICE_LOST
from gpu_rows import BF16, MANY_SIZES, Row, all_rows

L2_TWICE = 1 << 28
MAX_SETS = 8
BATCHES = 9
BATCH_SECONDS = 0.03
MAX_HOST_CALLS = 40  # a queue that is full would make the host wait
SIZES, SIZES_SECONDS = 500, 10.0  # random batch sizes of the last row


def inputs_of(row: Row, size: int, seed: int) -> list[np.ndarray]:
    """One set of inputs, on the host."""
    made = row.inputs(np.random.default_rng(seed), size)
    kinds = [ml_dtypes.bfloat16 if dtype == BF16 else np.dtype(dtype) for _, dtype in made]
    return [
        np.ascontiguousarray(array.astype(kind, copy=False))
        for (array, _), kind in zip(made, kinds, strict=True)
    ]


class Prepared:
    """A row that was called once: its function, its inputs, and what is known so far.

    Args:
        row: the row.
        framework: that it is for; it has a function of it.
        tiny: whether sizes are those for a machine without a GPU.
    """

    def __init__(self, row: Row, framework: Framework, tiny: bool) -> None:
        self._row, self._framework, self._tiny = row, framework, tiny
        self._size = row.tiny if tiny else row.full
        host = inputs_of(row, self._size, 0)
        self._bytes = sum(x.nbytes for x in host)
        self._function = framework.function(row)
        self._inputs = [framework.array(x) for x in host]
        del host
        start = time.perf_counter()
        out = self._function(*self._inputs)
        framework.wait(out)
        self.found: dict[str, Any] = {
            "size": self._size,
            "first_call": time.perf_counter() - start,
        }
        if row.kernels and framework.kernels is not None:
            self.found["kernels"] = framework.kernels(self._function, self._inputs)
        self.found["check"] = sample_of(framework, out)

    def measure(self) -> dict[str, Any]:
        """Seconds per call, and some numbers of the result."""
        row, framework = self._row, self._framework
        sets = [self._inputs]
        if not self._tiny and not row.host:
            wanted = min(MAX_SETS, max(1, -(-L2_TWICE // max(self._bytes, 1))))
            for seed in range(1, wanted):
                made = inputs_of(row, self._size, seed)
                sets.append([framework.array(x) for x in made])
        batch = timed_host if row.host else timed_device
        function = self._function
        calls = 1 if self._tiny else calibrated(batch, function, sets, framework, row.host)
        repeats = 1 if self._tiny else BATCHES
        samples = [batch(function, sets, framework, calls) for _ in range(repeats)]
        return {
            **self.found,
            "seconds": statistics.median(samples),
            "samples": samples,
            "calls": calls,
            "sets": len(sets),
        }


def calibrated(
    batch: Callable[..., float],
    function: Any,
    sets: Sequence[Any],
    framework: Framework,
    is_host: bool,
) -> int:
    """How many calls take about as long as a batch should."""
    for _ in range(3):  # graphs are recorded at the third call
        seconds = batch(function, sets, framework, 2)
    most = MAX_HOST_CALLS if is_host else 500
    calls = max(2, min(int(BATCH_SECONDS / max(seconds, 1e-7)), most))
    end = time.perf_counter() + BATCH_SECONDS
    while time.perf_counter() < end:  # an idle GPU has low clocks
        batch(function, sets, framework, calls)
    return calls


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


class ManySizes:
    """One MLP step at each of many batch sizes, compiling included.

    Args:
        framework: that it is for.
        tiny: whether only few are tried.
    """

    def __init__(self, framework: Framework, tiny: bool) -> None:
        self._framework = framework
        row = next(row for row in all_rows() if row.name == "MLP Adam step")
        self._function = framework.function(row)
        self._most = 8 if tiny else 1024
        self._x, *state, self._labels = inputs_of(row, self._most, 0)
        self._held = [framework.array(w) for w in state]
        self.found: dict[str, Any] = {}
        self.sizes = np.random.default_rng(5).integers(1, self._most, 3 if tiny else SIZES)
        self.step(self._most)

    def step(self, size: int) -> None:
        """One step of so many samples, waited for."""
        array = self._framework.array  # arrays of a size, as a loader gives them
        out = self._function(array(self._x[:size]), *self._held, array(self._labels[:size]))
        self._framework.wait(out)

    def measure(self) -> dict[str, Any]:
        """Seconds for all sizes."""
        count = len(self.sizes)
        start, seconds, done = time.perf_counter(), 0.0, 0
        while done < count and seconds < SIZES_SECONDS:
            self.step(int(self.sizes[done]))
            done, seconds = done + 1, time.perf_counter() - start
        note = "" if done == count else f"stopped after {done}; the rest is taken to be as slow"
        return {"seconds": seconds * count / done, "size": count, "note": note}


def prepared(name: str, framework: Framework, tiny: bool) -> Prepared | ManySizes | None:
    """A row by its name, called once; None if it is not for the framework."""
    if name == MANY_SIZES:
        return ManySizes(framework, tiny)
    row = next(row for row in all_rows() if row.name == name)
    return None if framework.function(row) is None else Prepared(row, framework, tiny)


class Server:
    """Answers requests; the row that was prepared last is the one that is timed."""

    def __init__(self, framework: Framework, tiny: bool) -> None:
        self._framework, self._tiny = framework, tiny
        self._row: Prepared | ManySizes | None = None
        self._built = 0  # before the row

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What came out of a request, or its error; ``lost`` if the device is of no use then."""
        try:
            found = self._measured() if request["do"] == "time" else self._first(request["row"])
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
            return found if works(self._framework) else {**found, "lost": True}
        built = self._framework.built() - self._built
        return {**found, "built": built} if built else found

    def _first(self, name: str) -> dict[str, Any]:
        self._row = None  # its memory goes before the next row asks for some
        self._framework.free()
        self._built = self._framework.built()
        self._row = prepared(name, self._framework, self._tiny)
        return {"none": True} if self._row is None else self._row.found

    def _measured(self) -> dict[str, Any]:
        assert self._row is not None
        return self._row.measure()


def works(framework: Framework) -> bool:
    """Whether the device still takes and gives numbers."""
    try:
        framework.numpy(framework.array(np.ones(4, np.float32)))
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return False
    return True


def serve(framework: Framework, tiny: bool, answers: Any) -> int:
    """Answers until there are no more requests, or the device is lost."""
    server = Server(framework, tiny)
    print(json.dumps({"version": framework.version}), file=answers, flush=True)
    for line in sys.stdin:
        answer = server.answer(json.loads(line))
        print(json.dumps(answer), file=answers, flush=True)
        if answer.get("lost"):
            return DEVICE_LOST
    return 0


def call_once(framework: Framework, options: argparse.Namespace, answers: Any) -> int:
    """The first call of each row, announced."""
    part, parts = map(int, options.part.split("/"))
    names = (options.names or [row.name for row in all_rows()])[part::parts]
    behind = names.index(options.after) + 1 if options.after in names else 0
    server = Server(framework, options.tiny)
    for name in names[behind:]:
        print(json.dumps({"begin": name}), file=answers, flush=True)
        answer = server.answer({"do": "first", "row": name})
        if not answer.get("none"):
            print(json.dumps({"row": name, **answer}), file=answers, flush=True)
        print(json.dumps({"end": name}), file=answers, flush=True)
        if answer.get("lost"):
            return DEVICE_LOST
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves, or calls rows once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework")
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--first", action="store_true", help="only the first call of each row")
    parser.add_argument("--names", nargs="*", default=[], help="of rows; else all of them")
    parser.add_argument("--after", default="", help="only rows behind the one of this name")
    parser.add_argument("--part", default="0/1", help="k/n: each nth row, from the kth on")
    options = parser.parse_args(arguments)
    # Whatever a framework prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    framework = load(options.framework, options.platform)
    if options.first:
        return call_once(framework, options, answers)
    return serve(framework, options.tiny, answers)


if __name__ == "__main__":
    sys.exit(main())
