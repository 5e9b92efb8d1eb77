"""Everything there is to find out on a machine with a GPU, in one command of less than 9 minutes.

usage: python perf/gpu_acceptance.py [--out FOLDER] [--seconds 530] [--only TEXT]
       python perf/gpu_acceptance.py --tiny [--platform cuda_sim]   no GPU: does the script run?

First versions and ceilings; then, side by side, whether results are right: programs and handwritten
kernels beside the CPU, NumPy and the simulated GPU, the op sweep, the tests marked gpu, the demo,
while other processes build what will be timed. Then times, one framework after the other: gpuflow,
JAX, torch and CuPy where they are installed, and gpuflow with something turned off. Every section
is a process of its own with a time limit (gpu_processes.py), and the report is written again after
each, so that what was found is not lost with what fails.

It needs gpuflow's own dependencies (optree is in few GPU images), numba-cuda, CuPy and pytest;
nothing is fetched. Tables are made by gpu_report.py, goals stand with the rows (gpu_rows.py).
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gpu_processes import ROOT, Section, run
from gpu_report import markdown
from gpu_rows import ATOMIC, COMPILED, CUPY, JAX, NO_EPILOGUES, NO_GRAPHS, NO_KERNELS, TORCH

HERE = Path(__file__).resolve().parent
NEEDED = ("numpy", "numba", "optree", "ml_dtypes", "scipy", "opt_einsum")
PACKAGES = (
    "numpy", "numba", "llvmlite", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "cuda-core",
    "cuda-bindings", "cupy-cuda13x", "jax", "torch", "triton", "optree", "ml-dtypes",
)  # fmt: skip
# The sweep has one case for each way an op is lowered, and on a GPU the dtypes of the simulator's.
SWEEP_SAMPLE = "test_values and jit"
TINY_SWEEP = "sin-2 and test_values"
# Which package each rival needs, and how long it may take.
RIVALS = {JAX: ("jax", 70), COMPILED: ("torch", 80), TORCH: ("torch", 40), CUPY: ("cupy", 25)}
VARIANTS = {NO_KERNELS: 60, NO_EPILOGUES: 20, NO_GRAPHS: 20, ATOMIC: 20}
BUILDERS = 4
ROW_SECONDS, BUILD_SECONDS = 30, 120


def sections(platform: str, tiny: bool, workers: int, records: Path) -> list[Section]:
    """All sections, in order; neighbors that are ``together`` run at the same time."""
    made = [_doctor(tiny), _ceilings(platform, tiny)]
    made += _comparisons(platform, tiny, workers, records)
    where = ["--platform", platform, *(["--tiny"] if tiny else [])]
    child = [str(HERE / "gpu_child.py")]

    def times(name: str, seconds: float) -> Section:
        return Section(
            f"times: {name}", [*child, name, *where], seconds,
            task_seconds=BUILD_SECONDS if tiny else ROW_SECONDS,
        )  # fmt: skip

    if not tiny:
        made += [
            Section(f"build {k}", [*child, "gpuflow", *where, "--build", f"{k}/{BUILDERS}"], 170,
                    task_seconds=BUILD_SECONDS, together=True)
            for k in range(BUILDERS)
        ]  # fmt: skip
    made.append(times("gpuflow", 55 if tiny else 110))
    for name, (package, seconds) in RIVALS.items():
        if not tiny and importlib.util.find_spec(package) is not None:
            made.append(times(name, seconds))
    made += [times(name, seconds) for name, seconds in VARIANTS.items() if not tiny]
    return made


def _doctor(tiny: bool) -> Section:
    command = ["-m", "gpuflow.cli.main", "doctor", *([] if tiny else ["--cuda"])]
    return Section("doctor", command, 40)


def _ceilings(platform: str, tiny: bool) -> Section:
    on = "cuda_sim" if tiny else platform
    command = [str(HERE / "gpu_ceilings.py"), "--platform", on, *(["--tiny"] if tiny else [])]
    return Section("ceilings", command, 40)


def _comparisons(platform: str, tiny: bool, workers: int, records: Path) -> list[Section]:
    """Whether results are right."""
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    few, many = (["-n", str(max(k, 1))] if workers > 1 else [] for k in (1, workers))
    on = {"GPUFLOW_PLATFORM": platform}
    checks = [str(HERE / "gpu_checks.py"), "--platform", platform]
    checks += ["--most", "3"] if tiny else ["--simulator"]
    sweep = ["-k", TINY_SWEEP if tiny else SWEEP_SAMPLE, "--maxfail=200"]
    if tiny:
        return [
            Section("programs", checks, 40, task_seconds=BUILD_SECONDS, task_key="program"),
            Section("op sweep", [*test, *sweep, "tests/ops/test_every_op.py"], 40, on),
        ]
    compared = {"GPUFLOW_KERNEL_TESTS": platform, "GPUFLOW_KERNEL_RECORDS": str(records)}
    demo = ["-m", "gpuflow.cli.main", "demo", "--platform", platform, "--no-progress"]
    return [
        Section("programs", checks, 170, task_seconds=60, task_key="program", together=True),
        Section("kernels", [*test, *many, "--maxfail=100", "tests/kernels"], 190, compared,
                together=True, records=records),
        Section("op sweep", [*test, *many, *sweep, "tests/ops/test_every_op.py"], 190, on,
                together=True),
        Section("tests", [*test, *few, "-m", "gpu", *marked_files()], 190, on, together=True),
        Section("demo", [*demo, "--steps", "200"], 60, together=True),
    ]  # fmt: skip


def marked_files() -> list[str]:
    """The test files that have tests marked gpu: to collect all others takes long."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    return found or ["tests/runtime"]


def versions() -> dict[str, str]:
    """Installed packages that matter, and Python."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def answer(command: Sequence[str]) -> str:
    """What a command prints; empty where it cannot be run."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """The commit of the tree, and whether it was changed."""
    head = answer(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown"
    return head + (" with changes" if answer(["git", "status", "--porcelain"]) else "")


def write(report: dict[str, Any], folder: Path, stem: str) -> None:
    """The report so far, for machines and for people."""
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=1))
    (folder / f"{stem}.md").write_text(markdown(report))


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", choices=("cuda", "cuda_sim", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--seconds", type=float, default=530.0, help="for everything")
    parser.add_argument("--workers", type=int, default=0, help="processes of each large test run")
    parser.add_argument("--only", default="", help="only sections whose name holds this")
    options = parser.parse_args(arguments)
    options.platform = options.platform or ("cpu" if options.tiny else "cuda")
    has_xdist = importlib.util.find_spec("xdist") is not None
    options.workers = options.workers or (5 if has_xdist and not options.tiny else 1)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all sections; returns 1 if one that is not about rivals failed."""
    options, start = options_of(arguments), time.perf_counter()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"[acceptance] gpuflow needs {', '.join(missing)}. Fix: pip install them, from "
              "wheels where nothing can be fetched.")  # fmt: skip
        return 2
    today = datetime.datetime.now(datetime.UTC)
    device = answer(["nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                     "--format=csv,noheader"])  # fmt: skip
    report: dict[str, Any] = {
        "date": today.isoformat(timespec="seconds"), "platform": options.platform,
        "tiny": options.tiny, "commit": commit(), "device": device or "no GPU",
        "versions": versions(), "sections": [],
    }  # fmt: skip
    print(json.dumps({key: report[key] for key in ("device", "commit", "versions")}), flush=True)
    stem = f"gpu-{today.date()}" + ("-tiny" if options.tiny else "")
    options.out.mkdir(parents=True, exist_ok=True)
    logs = Path(tempfile.mkdtemp(prefix="gpu-acceptance-"))
    atexit.register(shutil.rmtree, logs, ignore_errors=True)
    # Kernels that one section builds are there for the others.
    os.environ.setdefault("GPUFLOW_CACHE_DIR", str(logs / "cache"))
    chosen = [
        section
        for section in sections(options.platform, options.tiny, options.workers, logs / "kernels")
        if options.only in section.name
    ]
    for _, group in groupby(enumerate(chosen), lambda pair: -1 if pair[1].together else pair[0]):
        left = options.seconds - (time.perf_counter() - start)
        report["sections"] += entries_of([section for _, section in group], left, logs)
        write(report, options.out, stem)
    print((options.out / f"{stem}.md").read_text())
    return int(any(failed(entry) for entry in report["sections"]))


def entries_of(group: list[Section], left: float, logs: Path) -> list[dict[str, Any]]:
    """Entries of the report for sections that run at the same time."""
    if left < 5:
        skipped = {"status": "out of time", "seconds": 0.0}
        entries = [{"name": section.name, **skipped} for section in group]
    else:
        entries = run(group, left, logs)
    for entry in entries:
        print(f"{entry['name']}: status {entry['status']}, {entry['seconds']:.1f} s", flush=True)
        if entry["status"] not in (0, 5):  # 5: pytest found no test
            print(entry.get("tail", "")[-1500:], entry.get("errors", "")[-1500:], flush=True)
    return entries


def failed(entry: dict[str, Any]) -> bool:
    """Whether a section failed that is about gpuflow."""
    name = entry["name"]
    if "times" in name and name != "times: gpuflow":
        return False
    records = entry.get("records", [])
    return entry["status"] not in (0, 5) or any("error" in r for r in records if "row" in r)


if __name__ == "__main__":
    sys.exit(main())
