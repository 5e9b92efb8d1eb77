"""Everything there is to find out on a machine with a GPU, in commands of less than 10 minutes.

usage: python perf/gpu_acceptance.py [check] [times] [programs] [--out FOLDER] [--only TEXT,TEXT]
       python perf/gpu_acceptance.py --tiny [--platform cuda_sim]   no GPU: does the script run?

check: the environment, doctor, bandwidth and launches, the tests marked gpu; it stops at the first
thing that is wrong. times: the rows, the most important first, gpuflow beside JAX, torch and CuPy
where they are installed and beside itself with something turned off (gpu_race.py). programs:
programs and handwritten kernels beside the CPU, NumPy and the simulated GPU, the op sweep, the
demo, then NVIDIA's sanitizer and profiler where they are there. Without a name all three run.

Every section is a process of its own with a time limit (gpu_processes.py). What is found is written
at once (gpu_records.py), and a second run goes on with what is missing; the report is made of it
(gpu_report.py), with the goals that stand with the rows (gpu_rows.py). perf/rented_gpu.sh runs this
on rented machines. It needs gpuflow's own dependencies, numba-cuda, CuPy and pytest; nothing is
fetched.
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
import gpu_parts
from gpu_parts import CHECK, PARTS, PROGRAMS, TIMES, Group
from gpu_processes import run
from gpu_race import CHILD, Racer, race
from gpu_records import DONE, FILE, Records, tree_digest
from gpu_report import markdown, row_line
from gpu_rows import MANY_SIZES, Row, all_rows, chosen

HERE = Path(__file__).resolve().parent
WARM_SECONDS = 100.0  # of first calls elsewhere, before the first row
ROW_RESERVE = 20.0  # a row must not begin later before the end


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is named")
    parser.add_argument("--platform", choices=("cuda", "cuda_sim", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--done", type=Path, nargs="*", default=[], help="folders of earlier runs")
    parser.add_argument("--fresh", action="store_true", help="whatever was done is done again")
    parser.add_argument("--go-on", action="store_true", help="check does not stop at what is wrong")
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything")
    parser.add_argument("--workers", type=int, default=0, help="processes of tests at once")
    parser.add_argument("--only", default="", help="rows and sections that hold one of these texts")
    options = parser.parse_args(arguments)
    options.parts = options.parts or list(PARTS)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
    options.platform = options.platform or ("cpu" if options.tiny else "cuda")
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
        self._end = time.perf_counter() + options.seconds
        today = datetime.datetime.now(datetime.UTC)
        options.out.mkdir(parents=True, exist_ok=True)
        head = {
            "date": today.isoformat(timespec="seconds"), "platform": options.platform,
            "tiny": options.tiny, "tree": tree_digest(), "commit": gpu_environment.tree_commit(),
            "device": gpu_environment.device(), "versions": gpu_environment.versions(),
        }  # fmt: skip
        if options.fresh:
            (options.out / FILE).unlink(missing_ok=True)
        self.records = Records(options.out, head, [] if options.fresh else options.done)
        self._stem = f"gpu-{today.date()}" + ("-tiny" if options.tiny else "")
        self.is_wrong = False
        print(json.dumps({key: head[key] for key in ("device", "commit", "versions")}), flush=True)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self._end - time.perf_counter()

    def write_report(self) -> str:
        """The report so far, for machines and for people; its text."""
        report = self.records.report()
        text = markdown(report)
        (self.options.out / f"{self._stem}.json").write_text(json.dumps(report, indent=1))
        (self.options.out / f"{self._stem}.md").write_text(text)
        return text

    def groups(self, groups: Sequence[Group], stops: bool) -> bool:
        """Runs groups of sections; whether all went well. It may stop at the first that fails."""
        fine = True
        for group in groups:
            fine = self.group(group, self.left) and fine
            if stops and not fine and not self.options.go_on:
                print("STOPPED: mend this first, or say --go-on.", flush=True)
                break
        return fine

    def group(self, group: Group, seconds: float) -> bool:
        """Runs sections at the same time that are not done; whether all went well."""
        wanted = [one for one in group if chosen(one.name, self.options.only)]
        missing = [one for one in wanted if not self.records.has_section(one.name)]
        for one in wanted:
            if one not in missing:
                print(f"{one.name}: done before", flush=True)
        run(missing, seconds, self.logs, self.options.workers, self.note, self.records.begun())
        self.write_report()
        return all(self.records.has_section(one.name) for one in wanted)

    def note(self, entry: dict[str, Any]) -> None:
        """Keeps the entry of a section, and prints it."""
        self.records.add_section(entry)
        print(f"{entry['name']}: {entry['status']}, {entry['seconds']:.1f} s "
              f"{entry.get('note', '')}", flush=True)  # fmt: skip
        if entry["status"] not in DONE:
            print(entry.get("tail", "")[-1500:], entry.get("errors", "")[-1500:], flush=True)

    def times(self) -> bool:
        """Times the rows that are not done; whether gpuflow has a time for each."""
        options, records = self.options, self.records
        rows: list[tuple[str, Row | None]] = [(row.name, row) for row in all_rows()]
        rows.append((MANY_SIZES, None))
        rows = [(name, row) for name, row in rows if chosen(name, options.only)]
        names = gpu_parts.frameworks(options.tiny)
        # What failed before comes last: it may hang again.
        rows.sort(key=lambda pair: "error" in records.rows.get(names[0], {}).get(pair[0], {}))
        warm = gpu_parts.warm_group(options.platform, options.tiny, options.only)
        run(warm, min(WARM_SECONDS, self.left / 4), self.logs, 64, self.note_warm)
        where = ["--platform", options.platform, *(["--tiny"] if options.tiny else [])]
        racers = [
            Racer(name, [str(CHILD), name, *where], self.logs / f"race-{number}.err")
            for number, name in enumerate(names)
        ]
        known = sum(records.has_row(name, names[0]) for name, _ in rows)
        print(f"{known} of {len(rows)} rows done before", flush=True)
        until = time.perf_counter() + self.left - ROW_RESERVE
        is_whole = race(rows, racers, until, self.note_row, records.has_row)
        self.write_report()
        if not is_whole:
            print("out of time: run it again for the rows that are left", flush=True)
        return all(records.has_row(name, names[0]) for name, _ in rows)

    def note_warm(self, entry: dict[str, Any]) -> None:
        """Prints how many first calls there were: nothing of it is a result."""
        count = sum("row" in record for record in entry.get("records", ()))
        print(f"{entry['name']}: {count} rows in {entry['seconds']:.1f} s", flush=True)

    def note_row(self, row: str, framework: str, found: dict[str, Any]) -> None:
        """Keeps what a framework gave for a row, and prints it."""
        self.records.add_row(row, framework, found)
        print(row_line(row, framework, found), flush=True)

    def programs(self) -> bool:
        """Runs the sections about results; whether all went well."""
        options = self.options
        groups = gpu_parts.program_groups(
            options.platform, options.tiny, max(options.workers // 2, 1), self.logs / "kernels"
        )
        return self.groups(groups, stops=False)

    def run(self) -> int:
        """All parts that were asked for; 0 if nothing is wrong."""
        options = self.options
        check = gpu_parts.check_groups(options.platform, options.tiny)
        made = {
            CHECK: lambda: self.groups(check, stops=True), TIMES: self.times,
            PROGRAMS: self.programs,
        }  # fmt: skip
        fine = True
        try:
            for part in PARTS:
                if part in options.parts and (part != TIMES or fine or options.go_on):
                    fine = made[part]() and fine
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
        print(f"[acceptance] gpuflow needs {', '.join(missing)}. Fix: pip install them, from "
              "wheels where nothing can be fetched.")  # fmt: skip
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
