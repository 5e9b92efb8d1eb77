"""Everything there is to find out on a machine with a GPU, in one command of less than 9 minutes.

usage: python perf/gpu_acceptance.py [--out FOLDER] [--seconds 530] [--only TEXT]
       python perf/gpu_acceptance.py --platform cuda_sim --tiny      no GPU: does the script run?

What tells most comes first: versions, programs compared with the CPU and the simulated GPU, a
sample of the op sweep, the demo, ceilings, the tests marked gpu; then times beside JAX, torch and
CuPy where they are installed. Every section is a process of its own with a time limit, and the
report is written again after each, so that what was found is not lost with what fails.

It needs gpuflow's own dependencies (optree is in few GPU images) and numba-cuda; nothing is
fetched.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_report import markdown

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
SWEEP_SAMPLE = "eager or jit"
TINY_SWEEP = "sin-2 and test_values"
RIVALS = {"jax": "jax", "torch": "torch", "torch.compile": "torch", "cupy": "cupy"}


@dataclass
class Section:
    """One process.

    Attributes:
        name: in the report.
        command: arguments behind the interpreter.
        seconds: it may take.
        environment: variables besides.
    """

    name: str
    command: list[str]
    seconds: float
    environment: dict[str, str] = field(default_factory=dict)


def sections(platform: str, tiny: bool, workers: int) -> list[Section]:
    """All sections, in order."""
    on = {"GPUFLOW_PLATFORM": platform}
    where = ["--platform", platform, *(["--tiny"] if tiny else [])]
    parallel = ["-n", str(workers)] if workers > 1 else []
    checks = ["--most", "3"] if tiny else ["--simulator"]
    sweep = ["-k", TINY_SWEEP if tiny else SWEEP_SAMPLE, "--maxfail=200"]
    child = str(HERE / "gpu_child.py")
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    made = [
        Section("doctor", ["-m", "gpuflow.cli.main", "doctor", *([] if tiny else ["--cuda"])], 40),
        Section("programs", [str(HERE / "gpu_checks.py"), "--platform", platform, *checks], 90),
        Section("op sweep", [*test, *parallel, *sweep, "tests/ops/test_every_op.py"], 90, on),
        Section("ceilings", [str(HERE / "gpu_ceilings.py"), *where], 30),
        Section("tests", [*test, "-m", "gpu", *marked_files()], 90, on),
        Section("times: gpuflow", [child, "gpuflow", *where, "--seconds", "90"], 130),
    ]
    demo = ["-m", "gpuflow.cli.main", "demo", "--platform", platform, "--no-progress"]
    if not tiny:
        made.insert(3, Section("demo", [*demo, "--steps", "200"], 40))
    for rival, package in RIVALS.items():
        if not tiny and importlib.util.find_spec(package) is not None:
            command = [child, rival, *where, "--seconds", "60"]
            made.append(Section(f"times: {rival}", command, 90))
    return made


def marked_files() -> list[str]:
    """The test files that have tests marked gpu: to collect all others takes long."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text()
    ]
    return found or ["tests/runtime"]


def run(section: Section, seconds: float, folder: Path) -> dict[str, Any]:
    """Runs one section; what it prints goes to files and, where it is JSON, to the report."""
    stem = "".join(c if c.isalnum() else "-" for c in section.name)
    out_path, error_path = folder / f"{stem}.out", folder / f"{stem}.err"
    environment = {**os.environ, **section.environment, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment.pop("OPENBLAS_CORETYPE", None)
    start = time.perf_counter()
    with out_path.open("w") as out, error_path.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *section.command], stdout=out, stderr=errors, cwd=ROOT,
            env=environment,
        )  # fmt: skip
        try:
            status: int | None = process.wait(timeout=min(section.seconds, seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    text = out_path.read_text(errors="replace")
    return {
        "name": section.name, "status": status, "seconds": time.perf_counter() - start,
        "records": records_of(text), "tail": text[-3000:],
        "errors": error_path.read_text(errors="replace")[-3000:],
    }  # fmt: skip


def records_of(text: str) -> list[dict[str, Any]]:
    """The lines that are JSON objects."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # a process that was killed while it wrote
    return found


def write(report: dict[str, Any], folder: Path, stem: str) -> None:
    """The report so far, for machines and for people."""
    (folder / f"{stem}.json").write_text(json.dumps(report, indent=1))
    (folder / f"{stem}.md").write_text(markdown(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all sections; returns 1 if one that is not about rivals failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda", choices=("cuda", "cuda_sim"))
    parser.add_argument("--tiny", action="store_true", help="sizes for the simulator")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--seconds", type=float, default=530.0, help="for everything")
    parser.add_argument("--workers", type=int, default=0, help="processes of the op sweep")
    parser.add_argument("--only", default="", help="only sections whose name holds this")
    options = parser.parse_args(arguments)
    has_xdist = importlib.util.find_spec("xdist") is not None
    workers = options.workers or (8 if has_xdist and not options.tiny else 1)
    start = time.perf_counter()
    today = datetime.datetime.now(datetime.UTC)
    report: dict[str, Any] = {
        "date": today.isoformat(timespec="seconds"), "platform": options.platform,
        "tiny": options.tiny, "sections": [],
    }  # fmt: skip
    stem = f"gpu-{today.date()}" + ("-tiny" if options.tiny else "")
    logs = options.out / f"{stem}-logs"
    logs.mkdir(parents=True, exist_ok=True)
    for section in sections(options.platform, options.tiny, workers):
        left = options.seconds - (time.perf_counter() - start)
        if options.only not in section.name:
            continue
        if left < 5:
            found: dict[str, Any] = {"name": section.name, "status": "out of time", "seconds": 0.0}
        else:
            found = run(section, left, logs)
        report["sections"].append(found)
        write(report, options.out, stem)
        print(f"{section.name}: status {found['status']}, {found['seconds']:.1f} s", flush=True)
        if found["status"] not in (0, 5):  # 5: pytest found no test
            print(found.get("tail", "")[-1500:], found.get("errors", "")[-1500:], flush=True)
    print((options.out / f"{stem}.md").read_text())
    needed = [s for s in report["sections"] if not s["name"].startswith("times: ")]
    needed += [s for s in report["sections"] if s["name"] == "times: gpuflow"]
    return int(any(s["status"] not in (0, 5) for s in needed))


if __name__ == "__main__":
    sys.exit(main())
