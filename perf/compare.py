"""Times workloads in gpuflow and its rivals, side by side: one process per framework.

usage: python perf/compare.py perf/bench_slice.py [--jax-python PATH] [--rounds 5] [--restarts 3]

Rounds are interleaved, so that a change of the machine's speed meets all frameworks alike, and
every framework is started several times, since some settle into a faster or slower mode per
process. A row whose rival did not run is marked FAILED. OPENBLAS_CORETYPE is removed for everyone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from child import load_file

FOLDER = Path(__file__).resolve().parent
OURS = "gpuflow"


class ChildError(Exception):
    """A child process could not be started, died, or answered with an error."""


class Child:
    """A framework's process; `ask` sends one request and waits for the answer."""

    def __init__(self, framework: str, python: str, bench_file: Path, cache_folder: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
        environment["GPUFLOW_CACHE_DIR"] = cache_folder
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

    def ask(self, kind: str, name: str = "") -> Any:
        """The answer's value.

        Raises:
            ChildError: the process is gone, or answered with an error.
        """
        if self.dead is None:
            assert self.process is not None and self.process.stdin and self.process.stdout
            try:
                self.process.stdin.write(json.dumps({"kind": kind, "name": name}) + "\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
            except OSError:
                line = ""
            if not line:
                self.dead = self._last_words()
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


@dataclass
class Row:
    """All rounds of one workload: seconds per call for each framework, or why there are none."""

    name: str
    target: float | None
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, framework: str) -> float | None:
        samples = self.samples.get(framework)
        return statistics.median(samples) if samples and framework not in self.failures else None

    def ratios(self, rival: str) -> list[float]:
        """gpuflow's time over the rival's, round by round."""
        if self.median(OURS) is None or self.median(rival) is None:
            return []
        pairs = zip(self.samples[OURS], self.samples[rival], strict=True)
        return [ours / theirs for ours, theirs in pairs]

    def verdict(self, rival: str) -> str:
        """PASS, MISS, FAILED with the reason, or nothing where there is no target."""
        for framework in (OURS, rival):
            if framework in self.failures:
                return f"FAILED {framework}: {self.failures[framework]}"
        if self.target is None:
            return ""
        return "PASS" if statistics.median(self.ratios(rival)) <= self.target else "MISS"


def measure_rows(
    workloads: Sequence[Any],
    pythons: dict[str, str],
    bench_file: Path,
    rounds: int,
    restarts: int,
) -> tuple[list[Row], dict[str, dict[str, str]]]:
    """Runs all workloads; returns the rows and what each framework said of its versions."""
    rows = [Row(item.name, item.target) for item in workloads]
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
        if child.framework in row.failures:
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


def check_verdict(check: dict[str, Any]) -> str:
    if "failure" in check:
        return f"FAILED {check['failure']}"
    return "PASS" if check["measured"] <= check["target"] else "MISS"


def processor() -> str:
    """Processor name and number of usable cores."""
    name = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def commit() -> str:
    """The commit of the measured tree, marked where files differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(FOLDER.parent), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD") or "no commit"
    return head + (" with local changes" if git("status", "--porcelain") else "")


def report(
    name: str,
    rows: Sequence[Row],
    checks: Sequence[dict[str, Any]],
    versions: dict[str, dict[str, str]],
    rivals: Sequence[str],
    today: str,
) -> str:
    """The result file, in Markdown."""
    lines = [f"# {name}, {today}", "", f"- processor: {processor()}", f"- commit: {commit()}"]
    for framework, facts in versions.items():
        rest = ", ".join(f"{k} {v}" for k, v in facts.items() if k in ("python", "numpy"))
        lines.append(f"- {framework} {facts['version']}" + (f" ({rest})" if rest else ""))
    lines += ["- OPENBLAS_CORETYPE unset for every framework", ""]
    for rival in rivals if rows else ():
        lines += [
            f"| workload | gpuflow | {rival} | ratio (spread) | at most | verdict |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [row_line(row, rival) for row in rows]
        lines.append("")
    if checks:
        lines += ["| property | measured | at most | verdict |", "| --- | --- | --- | --- |"]
        lines += [check_line(check) for check in checks]
        lines.append("")
    return "\n".join(lines)


def row_line(row: Row, rival: str) -> str:
    ratios = row.ratios(rival)
    ratio = "-"
    if ratios:
        ratio = f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"
    target = "-" if row.target is None else f"{row.target:g}"
    cells = [row.name, cell(row, OURS), cell(row, rival), ratio, target, row.verdict(rival)]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def cell(row: Row, framework: str) -> str:
    median = row.median(framework)
    if median is None:
        return "FAILED"
    spread = max(row.samples[framework]) - min(row.samples[framework])
    return f"{1e3 * median:.4g} ms ± {1e3 * spread / 2:.2g}"


def check_line(check: dict[str, Any]) -> str:
    if "failure" in check:
        cells = [check["name"], "-", "-", check_verdict(check)]
    else:
        unit = f" {check['unit']}" if check["unit"] else ""
        note = f" ({check['note']})" if check["note"] else ""
        measured = f"{check['measured']:.4g}{unit}{note}"
        cells = [check["name"], measured, f"{check['target']:g}{unit}", check_verdict(check)]
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def rival_pythons(options: argparse.Namespace) -> dict[str, str]:
    """Which interpreter runs which framework; gpuflow first."""
    pythons = {OURS: sys.executable}
    for rival in options.rivals.split(","):
        if rival == "jax":
            pythons[rival] = options.jax_python or sys.executable
        elif rival:
            pythons[rival] = sys.executable
    if pythons.get("jax") == sys.executable and importlib.util.find_spec("jax") is None:
        print("jax is not importable here: give --jax-python PATH", file=sys.stderr)
    return pythons


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times workloads side by side.")
    parser.add_argument("bench_file", type=Path, help="defines WORKLOADS and perhaps CHECKS")
    parser.add_argument("--jax-python", help="interpreter that has JAX (default: this one)")
    parser.add_argument("--rivals", default="jax", help="comma-separated: jax, numpy")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per process")
    parser.add_argument("--restarts", type=int, default=3, help="processes per framework")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--results", type=Path, default=FOLDER / "results", help="folder")
    options = parser.parse_args(arguments)

    bench = load_file(options.bench_file, "benchmark_file")
    workloads = [item for item in bench.WORKLOADS if options.only in item.name]
    groups = [item for item in getattr(bench, "CHECKS", []) if options.only in item.name]
    pythons = rival_pythons(options)
    rivals = [name for name in pythons if name != OURS]
    rows, versions = measure_rows(
        workloads, pythons, options.bench_file, options.rounds, options.restarts
    )
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
    verdicts = [row.verdict(rival) for row in rows for rival in rivals]
    verdicts += [check_verdict(check) for check in checks]
    return 1 if any(verdict.startswith(("MISS", "FAILED")) for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
