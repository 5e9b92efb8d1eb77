"""Times every public function beside JAX: jitted, eager and differentiated, at three sizes.

usage: python perf/sweep.py --results FILE [--only TEXT] [--mode MODE] [--size N] [--threads 2]

The cells are those of sweep_cells.py; each framework has one process, started again when it is
gone. Both build a cell at the same time, and their results are compared; then they are timed in
turn, in rounds of some milliseconds, and the least round of each counts. With one thread, which is
the default, the ratio is that of processor time, which other processes on the machine disturb
least; with more it is that of the clock. Cells above LIMIT get further rounds, in both.

FILE receives a JSON line for each cell when it is there. Cells that it has already are not timed
again, so that a sweep that was interrupted goes on; --again times those that failed, were wrong or
above LIMIT, since a machine that is slow for a second may hit one of the two. The least of both
times counts, for both. --report only reports. Ends with 1 where a goal is missed, a result is
wrong, or a function of the public modules is neither timed nor under a reason in
sweep_further_calls.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import Child, ChildError
from report import OURS, commit, processor
from sweep_cells import CELLS, ROOT, Cell, public_functions, unlisted
from sweep_report import LIMIT, Outcome, misses, report_text
from sweep_values import difference

BENCH_FILE = Path(__file__).resolve().parent / "sweep_cells.py"
JAX = "jax"
# Further rounds where a ratio is near or above LIMIT, as a multiple of the first ones.
FURTHER = 2
MIN_ROUNDS = 2
TIMING_SECONDS = 1.5  # after which a cell gets no further rounds
CELLS_OF_A_PROCESS = 300  # then both start anew: what they keep of each program adds up


def environment_of(threads: int) -> dict[str, str]:
    """Variables that give both frameworks, and the libraries they call, so many threads."""
    flags = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()}"
    count = str(threads)
    return {
        "GPUFLOW_PLATFORM": "cpu",
        "JAX_PLATFORMS": "cpu",
        "GPUFLOW_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_NUM_THREADS": count,
        "NPROC": count,
        "XLA_FLAGS": f"{flags} intra_op_parallelism_threads={count}",
    }


class Processes:
    """One living process for each framework."""

    def __init__(self, pythons: Mapping[str, str], threads: int, cache: str) -> None:
        self._pythons, self._cache = pythons, cache
        self._environment = environment_of(threads)
        self._children: dict[str, Child] = {}
        self._asked = 0

    def ready(self) -> list[Child]:
        """The processes for the next cell, gpuflow's first."""
        if self._asked >= CELLS_OF_A_PROCESS:
            self.close()
        for name, python in self._pythons.items():
            child = self._children.get(name)
            if child is not None and child.dead is not None:
                child.close()
                child = None
            if child is None:
                self._children[name] = Child(
                    name, python, BENCH_FILE, self._cache, self._environment
                )
        self._asked += 1
        return list(self._children.values())

    def close(self) -> None:
        for child in self._children.values():
            child.close()
        self._children, self._asked = {}, 0


def measure(cell: Cell, children: Sequence[Child], rounds: int, limit: float) -> Outcome:
    """Builds a cell in both, compares its results, and times it in turn."""
    outcome = Outcome(cell.name, cell.function, cell.mode, cell.size, cell.variant)
    first = ask_all(children, "prepare", cell, limit, outcome)
    if outcome.failures:
        return outcome
    outcome.first = first
    if not cell.section.free:
        stored = ask_all(children, "store", cell, limit, outcome)
        if outcome.failures:
            return outcome
        outcome.wrong = difference(stored[OURS], stored[JAX])
        for answer in stored.values():
            Path(answer["path"]).unlink()
    try:
        time_rounds(cell, children, rounds, limit, outcome)
    except ChildError as error:
        outcome.failures["timing"] = str(error)
    return outcome


def ask_all(
    children: Sequence[Child], kind: str, cell: Cell, limit: float, outcome: Outcome
) -> dict[str, Any]:
    """The answers of all, who work at the same time."""
    answers = {}
    for child in children:
        child.send(kind, cell.name)
    for child in children:
        try:
            answers[child.framework] = child.receive(limit)
        except ChildError as error:
            outcome.failures[child.framework] = str(error)
    return answers


def time_rounds(
    cell: Cell, children: Sequence[Child], rounds: int, limit: float, outcome: Outcome
) -> None:
    """Adds rounds of each in turn: every other time in reverse."""
    start, wanted, number = time.perf_counter(), rounds, 0
    while number < wanted:
        for child in children[:: 1 if number % 2 == 0 else -1]:
            outcome.add(child.framework, child.ask("time", cell.name, limit))
        number += 1
        if number >= MIN_ROUNDS and time.perf_counter() - start > TIMING_SECONDS:
            return
        if number == rounds and max(outcome.ratios()) > 0.95 * LIMIT:
            wanted = rounds * (1 + FURTHER)


def chosen(options: argparse.Namespace) -> list[Cell]:
    """The cells that are asked for."""
    return [
        cell
        for cell in CELLS
        if options.only in cell.name
        and options.mode in ("", cell.mode)
        and options.size in (0, cell.size)
        and options.variant in ("", cell.variant)
    ]


def is_wanted(known: Outcome | None, options: argparse.Namespace) -> bool:
    """Whether a cell is to be timed, given what came out of it before."""
    if options.again:
        return known is not None and known.is_remarkable(options.threads)
    return known is None


def stored_outcomes(path: Path | None) -> dict[str, Outcome]:
    """The outcomes of earlier sweeps, by the names of their cells."""
    if path is None or not path.exists():
        return {}
    outcomes: dict[str, Outcome] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "name" in entry:
            outcome = Outcome(**entry)
            outcomes[outcome.name] = outcome.after(outcomes.get(outcome.name))
    return outcomes


@contextlib.contextmanager
def appended(path: Path | None, head: Mapping[str, Any]) -> Iterator[Any]:
    """A function that adds a line to the file of results, if there is one."""
    if path is None:
        yield lambda line: None
        return
    with path.open("a", buffering=1) as file:

        def add(line: Mapping[str, Any]) -> None:
            file.write(json.dumps(line) + "\n")

        add(head)
        yield add


def sweep(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Measures cells, and shows those above LIMIT as they come."""
    pythons = {OURS: sys.executable, JAX: options.jax_python or sys.executable}
    head = {"commit": commit(), "processor": processor(), "threads": options.threads}
    with tempfile.TemporaryDirectory() as cache, appended(options.results, head) as add:
        processes = Processes(pythons, options.threads, cache)
        try:
            for number, cell in enumerate(cells):
                outcome = measure(cell, processes.ready(), options.rounds, options.limit_seconds)
                add(vars(outcome))
                if outcome.is_remarkable(options.threads):
                    print(f"{number + 1}/{len(cells)} {outcome.line(options.threads)}", flush=True)
        finally:
            processes.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, help="a JSON line for each cell; goes on with it")
    parser.add_argument("--again", action="store_true", help="times what was above the limit")
    parser.add_argument("--report", action="store_true", help="only report what is in the file")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--mode", default="", choices=["", "jit", "eager", "grad"])
    parser.add_argument("--size", type=int, default=0, help="100, 10000 or 1000000")
    parser.add_argument("--variant", default="", help="float32, bfloat16, transposed, ...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit-seconds", type=float, default=60.0, help="for one answer")
    parser.add_argument("--jax-python", help="interpreter that has JAX (default: this one)")
    options = parser.parse_args(arguments)

    cells = chosen(options)
    known = stored_outcomes(options.results)
    if not options.report:
        # What the file is about is kept here, too, where there is none.
        with tempfile.TemporaryDirectory() as folder:
            if options.results is None:
                options.results = Path(folder) / "results.jsonl"
            sweep([cell for cell in cells if is_wanted(known.get(cell.name), options)], options)
            known = stored_outcomes(options.results)
    outcomes = [known[cell.name] for cell in cells if cell.name in known]
    sys.path.insert(0, str(ROOT))  # the tree that this script belongs to
    missing = unlisted(public_functions())
    print(report_text(outcomes, len(cells), missing, options.threads))
    return 1 if missing or misses(outcomes, options.threads) else 0


if __name__ == "__main__":
    sys.exit(main())
