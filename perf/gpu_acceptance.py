"""The results of a GPU that fit into 15 minutes, in two parts; a part is one command.

usage: python perf/gpu_acceptance.py [first] [second] [--out FOLDER] [--only TEXT,TEXT]
       python perf/gpu_acceptance.py --tiny [--platform cuda_sim]   no GPU: does the script run?

first, at most 480 s: the environment and one result, bandwidth and launches, programs compared with
the CPU, programs about faults, 25 rows compared with torch (gpu_race.py), NVIDIA's sanitizer and
profiler. second, at most 300 s: doctor and the tests that need a GPU, what graphs cost, the other
rows, rows compared with JAX. Without a name both run. gpu_parts.py has the stages with their
seconds.

Every section is a process with a time limit (gpu_processes.py), and so is every framework
that rows are timed in. One that hangs, crashes or fails is recorded, and the others run. Results
are written at once (gpu_records.py), and a second run goes on with what is missing; the report is
made of them (gpu_report.py), with the goals of the rows (gpu_rows.py). perf/rented_gpu.sh runs this
on rented machines. It needs CuPy and gpuflow's dependencies, but numba only for kernels that were
not built before; nothing is fetched.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gpu_environment
from gpu_parts import PARTS, SECONDS, Stage, stages, warm_sections
from gpu_processes import run
from gpu_race import CHILD, Racer, race, takes
from gpu_records import DONE, FILE, Records, tree_digest
from gpu_report import markdown, row_line
from gpu_rows import MANY_SIZES, Row, all_rows, chosen

HERE = Path(__file__).resolve().parent
WARM_SHARE = 0.25  # of a stage's time for first calls in other frameworks, before its rows


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is named")
    parser.add_argument("--platform", choices=("cuda", "cuda_sim"))
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="folders of earlier runs")
    parser.add_argument("--fresh", action="store_true", help="whatever was done is done again")
    parser.add_argument("--seconds", type=float, help="for everything; less than the parts have")
    parser.add_argument("--workers", type=int, default=0, help="processes of tests at once")
    parser.add_argument("--only", default="", help="rows and sections that hold one of these texts")
    options = parser.parse_args(arguments)
    options.parts = options.parts or list(PARTS)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
    options.platform = options.platform or ("cuda_sim" if options.tiny else "cuda")
    options.seconds = options.seconds or sum(SECONDS[part] for part in options.parts)
    options.workers = options.workers or (1 if options.tiny else max(2, (os.cpu_count() or 2) - 2))
    return options


class Acceptance:
    """One run.

    Args:
        options: the command line.
        logs: a folder for what sections print.
    """

    def __init__(self, options: argparse.Namespace, logs: Path) -> None:
        self.options, self.logs = options, logs
        self._start = time.perf_counter()
        self._end = self._start + options.seconds
        today = datetime.datetime.now(datetime.UTC)
        options.out.mkdir(parents=True, exist_ok=True)
        head = {
            "date": today.isoformat(timespec="seconds"),
            "platform": options.platform,
            "tiny": options.tiny,
            "tree": tree_digest(),
            "commit": gpu_environment.tree_commit(),
            "device": gpu_environment.device(),
            "versions": gpu_environment.versions(),
        }
        if options.fresh:
            (options.out / FILE).unlink(missing_ok=True)
        self.records = Records(options.out, head, [] if options.fresh else options.done)
        self._stem = f"gpu-{today.date()}" + ("-tiny" if options.tiny else "")
        print(json.dumps({key: head[key] for key in ("device", "commit", "versions")}), flush=True)

    def write_report(self) -> str:
        """The report so far, for machines and for people; its text."""
        report = self.records.report()
        text = markdown(report)
        (self.options.out / f"{self._stem}.json").write_text(json.dumps(report, indent=1))
        (self.options.out / f"{self._stem}.md").write_text(text)
        return text

    def stage(self, stage: Stage, until: float) -> bool:
        """Run a stage; whether all of it went well.

        Args:
            stage: of a part.
            until: when it must end, by ``perf_counter``.
        """
        print(f"--- {stage.name}: {until - time.perf_counter():.0f} s", flush=True)
        fine = self.sections(stage, until) if stage.sections else self.rows(stage, until)
        self.write_report()
        return fine

    def sections(self, stage: Stage, until: float) -> bool:
        """Run the sections that are not done; whether all went well."""
        wanted = [one for one in stage.sections if chosen(one.name, self.options.only)]
        missing = [one for one in wanted if not self.records.has_section(one.name)]
        for one in wanted:
            if one not in missing:
                print(f"{one.name}: done before", flush=True)
        most = stage.most or self.options.workers
        left = until - time.perf_counter()
        run(missing, left, self.logs, most, self.note, self.records.begun())
        return all(self.records.has_section(one.name) for one in wanted)

    def note(self, entry: dict[str, Any]) -> None:
        """Keeps the entry of a section, and prints it."""
        self.records.add_section(entry)
        print(
            f"{entry['name']}: {entry['status']}, {entry['seconds']:.1f} s {entry.get('note', '')}",
            flush=True,
        )
        if entry["status"] not in DONE:
            print(entry.get("tail", "")[-1500:], entry.get("errors", "")[-1500:], flush=True)

    def rows(self, stage: Stage, until: float) -> bool:
        """Time the rows that are not done; whether gpuflow has a time for each."""
        options, records, names = self.options, self.records, stage.frameworks
        known: dict[str, Row | None] = {row.name: row for row in all_rows()}
        known[MANY_SIZES] = None
        wanted = [name for name in stage.rows if chosen(name, options.only)]
        # Rows that failed before come last: they may hang again.
        wanted.sort(key=lambda name: "error" in records.rows.get(names[0], {}).get(name, {}))
        seconds = WARM_SHARE * (until - time.perf_counter())
        missing = [
            name
            for name in wanted
            if any(takes(one, known[name]) and not records.has_row(name, one) for one in names)
        ]
        warm = warm_sections(stage, missing, options.platform, seconds)
        run(warm, seconds, self.logs, len(warm), self.note_warm)
        where = ["--platform", options.platform, *(["--tiny"] if options.tiny else [])]
        racers = [
            Racer(name, [str(CHILD), name, *where], self.logs / f"race-{number}.err")
            for number, name in enumerate(names)
        ]
        print(f"{len(wanted) - len(missing)} of {len(wanted)} rows done before", flush=True)
        rows = [(name, known[name]) for name in wanted]
        if not race(rows, racers, until, self.note_row, records.has_row):
            print("out of time: run it again for the remaining rows", flush=True)
        return all(records.has_row(name, names[0]) for name in wanted)

    def note_warm(self, entry: dict[str, Any]) -> None:
        """Prints how many first calls there were: nothing of it is a result."""
        count = sum("row" in record for record in entry.get("records", ()))
        print(f"{entry['name']}: {count} rows in {entry['seconds']:.1f} s", flush=True)

    def note_row(self, row: str, framework: str, found: dict[str, Any]) -> None:
        """Keeps what a framework gave for a row, and prints it."""
        self.records.add_row(row, framework, found)
        print(row_line(row, framework, found), flush=True)

    def run(self) -> int:
        """All parts that were asked for; 0 if nothing is wrong."""
        options, fine = self.options, True
        where = options.platform, options.tiny
        planned = [stage for part in options.parts for stage in stages(part, *where)]
        try:
            until = self._start
            for stage in planned:  # time that a stage leaves over is the next one's
                until = min(until + stage.seconds, self._end)
                fine = self.stage(stage, until) and fine
        finally:  # also where it is interrupted
            print(self.write_report(), flush=True)
        return int(not fine)


def _interrupted(number: int, frame: Any) -> None:
    """Ends what runs, so that what it found so far is kept."""
    del frame
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; returns 1 if one that is not about rivals failed, 2 if it cannot begin."""
    options = options_of(arguments)
    missing = [name for name in gpu_environment.missing_packages("") if name]
    if missing:
        print(
            f"[acceptance] gpuflow needs {', '.join(missing)}. Fix: pip install them, from "
            "wheels where nothing can be fetched."
        )
        return 2
    with suppress(ValueError):  # a thread that is not the main one
        signal.signal(signal.SIGTERM, _interrupted)
    # Kernels that one section builds are there for the others, and for the next run.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("GPUFLOW_CACHE_DIR", str(caches / "gpuflow"))
    with tempfile.TemporaryDirectory(prefix="gpu-acceptance-", ignore_cleanup_errors=True) as logs:
        return Acceptance(options, Path(logs)).run()


if __name__ == "__main__":
    sys.exit(main())
