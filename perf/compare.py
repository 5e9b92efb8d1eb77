"""Times workloads in gpuflow and its rivals, side by side: one process per framework.

usage: python perf/compare.py perf/bench_slice.py [--jax-python PATH] [--rounds 5] [--restarts 3]

Rounds are interleaved, so that a change of the machine's speed meets all frameworks alike, and
every framework is started several times, since some settle into a faster or slower mode per
process. Rows about the start of a process get a fresh one for each sample. A row whose rival did
not run, or gave a wrong result, is marked FAILED. What an environment may have set and users
have not is removed for everyone: OPENBLAS_CORETYPE, and PYTHONDONTWRITEBYTECODE, with which every
process would compile the sources of what pip has not installed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from child import load_file
from report import OURS, Row, check_verdict, report
from workload import ProcessWorkload

FOLDER = Path(__file__).resolve().parent
# Idle threads of OpenBLAS and OpenMP spin for up to 0.1 s; the next process must not meet them.
PAUSE_SECONDS = 0.12
_REMOVED = ("OPENBLAS_CORETYPE", "PYTHONDONTWRITEBYTECODE")


class ChildError(Exception):
    """A child process could not be started, died, or answered with an error."""


class Child:
    """A framework's process; `ask` sends one request and waits for the answer."""

    def __init__(
        self,
        framework: str,
        python: str,
        bench_file: Path,
        cache_folder: str,
        further: Mapping[str, str] | None = None,
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in _REMOVED}
        environment["GPUFLOW_CACHE_DIR"] = cache_folder
        for name, value in (further or {}).items():
            environment[name] = value.replace("{cache}", cache_folder)
        if framework == OURS:
            # The tree that this script belongs to is measured, not another installed one.
            paths = [str(FOLDER.parent), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self.framework = framework
        self.dead: str | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the child
        command = [python, str(FOLDER / "child.py"), framework, str(bench_file)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env=environment,
            )
        except OSError as error:
            self.process = None
            self.dead = f"could not start {framework}: {error.strerror}"

    def ask(self, kind: str, name: str = "", limit: float | None = None) -> Any:
        """The answer's value.

        Raises:
            ChildError: the process is gone, answered with an error, or took more than `limit`
                seconds, for which it is ended.
        """
        self.send(kind, name)
        return self.receive(limit)

    def send(self, kind: str, name: str = "") -> None:
        """Sends a request, whose answer `receive` takes."""
        if self.dead is None:
            assert self.process is not None and self.process.stdin
            try:
                self.process.stdin.write(json.dumps({"kind": kind, "name": name}) + "\n")
                self.process.stdin.flush()
            except OSError:
                self.dead = self._last_words()

    def receive(self, limit: float | None = None) -> Any:
        """Waits for the answer to the last request; returns and raises what `ask` does."""
        line = ""
        if self.dead is None:
            assert self.process is not None and self.process.stdout
            if select.select([self.process.stdout], [], [], limit)[0]:
                line = self.process.stdout.readline()
                if not line:
                    self.dead = self._last_words()
            else:
                self.process.kill()
                self.dead = f"no answer within {limit:g} s"
        if self.dead is not None:
            raise ChildError(self.dead)
        reply = json.loads(line)
        if "error" in reply:
            raise ChildError(reply["error"])
        return reply["value"]

    def _last_words(self) -> str:
        assert self.process is not None
        status = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return f"process ended with status {status}: {lines[-1] if lines else 'no message'}"

    def close(self) -> None:
        if self.process is not None:
            if self.process.stdin:
                self.process.stdin.close()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()


def measure_rows(
    workloads: Sequence[Any],
    pythons: dict[str, str],
    bench_file: Path,
    rounds: int,
    restarts: int,
) -> tuple[list[Row], dict[str, dict[str, str]]]:
    """Runs all workloads; returns the rows and what each framework said of its versions."""
    rows = [Row(item.name, item.target, rivals=item.rivals) for item in workloads]
    versions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(restarts):
            children = {
                name: Child(name, python, bench_file, cache) for name, python in pythons.items()
            }
            try:
                for child in children.values():
                    try:
                        versions[child.framework] = child.ask("hello")
                    except ChildError as error:
                        versions.setdefault(child.framework, {"version": f"FAILED {error}"})
                for row in rows:
                    measure_row(row, children, rounds)
            finally:
                for child in children.values():
                    child.close()
    return rows, versions


def measure_row(row: Row, children: dict[str, Child], rounds: int) -> None:
    """Adds `rounds` interleaved rounds; the first failure of a framework settles its cell."""

    def ask(child: Child, kind: str) -> float | None:
        if child.framework in row.failures or not row.takes(child.framework):
            return None
        try:
            return child.ask(kind, row.name)
        except ChildError as error:
            row.failures[child.framework] = str(error)
            return None

    for child in children.values():
        ask(child, "prepare")
    for number in range(rounds):
        # Every other round in reverse, so that nobody always follows the same neighbour.
        order = list(children.values())[:: 1 if number % 2 == 0 else -1]
        for child in order:
            seconds = ask(child, "run")
            if seconds is not None:
                row.samples.setdefault(child.framework, []).append(seconds)
                time.sleep(PAUSE_SECONDS)


def measure_processes(
    workloads: Sequence[ProcessWorkload], pythons: dict[str, str], bench_file: Path
) -> list[Row]:
    """Runs the workloads that need fresh processes, the frameworks in turn."""
    rows = []
    for item in workloads:
        row = Row(item.name, item.target, rivals=item.rivals, unit=item.unit)
        rows.append(row)
        with tempfile.TemporaryDirectory() as filled:
            # Round 0 fills the cache folders and does not count.
            for number in range(0 if item.warm else 1, item.samples + 1):
                for name in list(pythons)[:: 1 if number % 2 == 0 else -1]:
                    if not row.takes(name) or name in row.failures:
                        continue
                    try:
                        value = measure_process(item, name, pythons[name], bench_file, filled)
                    except ChildError as error:
                        row.failures[name] = str(error)
                        continue
                    if number > 0:
                        row.samples.setdefault(name, []).append(value)
    return rows


def measure_process(
    item: ProcessWorkload, framework: str, python: str, bench_file: Path, filled: str
) -> float:
    """One sample, from a process of its own.

    Raises:
        ChildError: the process died, or answered with an error.
    """
    with tempfile.TemporaryDirectory() as empty:
        cache = os.path.join(filled, framework) if item.warm else empty
        start = time.perf_counter()
        child = Child(framework, python, bench_file, cache, item.environment)
        try:
            value = child.ask("measure", item.name)
            elapsed = time.perf_counter() - start
        finally:
            child.close()
    return elapsed if item.from_start else value


def measure_checks(groups: Sequence[Any], python: str, bench_file: Path) -> list[dict[str, Any]]:
    """Runs each group in fresh processes; a group that fails gives one row with the reason."""
    found: list[dict[str, Any]] = []
    for group in groups:
        checks: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as cache:
            try:
                for _ in range(group.processes):
                    child = Child(OURS, python, bench_file, cache)
                    try:
                        checks = child.ask("check", group.name)
                    finally:
                        child.close()
            except ChildError as error:
                checks = [{"name": group.name, "failure": str(error)}]
        found.extend(checks)
    return found


def rival_pythons(options: argparse.Namespace) -> dict[str, str]:
    """Which interpreter runs which framework; gpuflow first."""
    pythons = {OURS: sys.executable}
    for rival in options.rivals.split(","):
        if rival == "jax":
            pythons[rival] = options.jax_python or sys.executable
        elif rival == "torch":
            pythons[rival] = options.torch_python or sys.executable
        elif rival:
            pythons[rival] = sys.executable
    if pythons.get("jax") == sys.executable and importlib.util.find_spec("jax") is None:
        print("jax is not importable here: give --jax-python PATH", file=sys.stderr)
    return pythons


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times workloads side by side.")
    parser.add_argument("bench_file", type=Path, help="defines WORKLOADS and perhaps CHECKS")
    parser.add_argument("--jax-python", help="interpreter that has JAX (default: this one)")
    parser.add_argument("--torch-python", help="interpreter that has PyTorch (default: this one)")
    parser.add_argument("--rivals", default="jax", help="comma-separated: jax, numpy, torch")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per process")
    parser.add_argument("--restarts", type=int, default=3, help="processes per framework")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--results", type=Path, default=FOLDER / "results", help="folder")
    options = parser.parse_args(arguments)

    bench = load_file(options.bench_file, "benchmark_file")
    workloads = [item for item in bench.WORKLOADS if options.only in item.name]
    processes = [
        item for item in getattr(bench, "PROCESS_WORKLOADS", []) if options.only in item.name
    ]
    groups = [item for item in getattr(bench, "CHECKS", []) if options.only in item.name]
    pythons = rival_pythons(options)
    rivals = [name for name in pythons if name != OURS]
    rows, versions = measure_rows(
        workloads, pythons, options.bench_file, options.rounds, options.restarts
    )
    rows += measure_processes(processes, pythons, options.bench_file)
    checks = measure_checks(groups, pythons[OURS], options.bench_file)

    name = options.bench_file.stem
    today = datetime.date.today().isoformat()
    text = report(name, rows, checks, versions, rivals, today)
    print(text)
    if options.only:
        print("not stored: --only gives a part of the results")
    else:
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / f"{name.removeprefix('bench_')}-{today}.md").write_text(text + "\n")
    verdicts = [row.verdict(rival) for row in rows for rival in rivals if row.takes(rival)]
    verdicts += [check_verdict(check) for check in checks]
    return 1 if any(verdict.startswith(("MISS", "FAILED")) for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
