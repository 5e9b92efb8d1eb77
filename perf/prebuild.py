"""Builds the kernels of the GPU acceptance at full size, on a machine without a GPU.

usage: python perf/prebuild.py FOLDER [--capability 9.0 ...] [--processes 2] [--rows TEXT,TEXT]
       [--tiny]
       python perf/prebuild.py FOLDER --check        are all of them there? builds what is not

Each row is called as the acceptance calls it, on a GPU that only plans (gpu_planned.py), in every
setting that is timed, with cuDNN and without, and once without the products that do what the next
kernel does: whether a GPU's library has those is known there only. The tests that need a GPU run
once on the simulated one, an sm_90, which builds their kernels. All kernels are in FOLDER, a kernel
cache, and ``prebuilt.json`` in it says for which tree, rows, architectures and packages;
FOLDER.tar.gz holds all of it.

It ends with 1 if a row was not covered, because it failed or because a second walk built something
again, or if FOLDER.tar.gz is larger than 40 MB; with --check, if a kernel was missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gpu_parts
from gpu_frameworks import OURS, SETTINGS
from gpu_processes import ROOT, commit, records_of
from gpu_records import tree_digest
from gpu_rows import ATOMIC, NO_KERNELS, chosen

HERE = Path(__file__).resolve().parent
CAPABILITIES = ("9.0",)
MAX_BYTES = 40_000_000
PROCESSES = min(os.cpu_count() or 1, 4)  # each has inputs of up to 1 GB
MANIFEST = "prebuilt.json"
NO_EPILOGUES_AT_ALL, WITH_CUDNN = "gpuflow without epilogues", "gpuflow with cuDNN"
TESTS = "tests"
# What is walked: the framework's name, and variables.
WALKS = {
    OURS: (OURS, {}),
    NO_EPILOGUES_AT_ALL: (OURS, {"GPUFLOW_CUDA_EPILOGUES": "0"}),
    NO_KERNELS: (NO_KERNELS, {}),
    ATOMIC: (ATOMIC, SETTINGS[ATOMIC]),
    WITH_CUDNN: (OURS, {}),  # others run as if there were none
}
# In these, the programs that are compared with the CPU are called as well.
PROGRAM_WALKS = (OURS, NO_EPILOGUES_AT_ALL, WITH_CUDNN)


def stale(folder: Path, root: Path = ROOT) -> str:
    """Why the kernels of a folder are not those of the tree; "" if they are."""
    path = folder / MANIFEST
    if not path.exists():
        return f"there is no {path}: prepare did not finish"
    manifest = json.loads(path.read_text())
    if manifest["tree"] != tree_digest(root):
        return f"it was made at {manifest['commit']}, and the tree has changed since"
    return ""


def walked(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each row of each walk gave; a walk that dies is a record with an error."""
    for name in WALKS:
        one_part = partial(_part_walked, name, folder, options)
        with ThreadPoolExecutor(options.processes) as threads:
            for records in threads.map(one_part, range(options.processes)):
                yield from records


def _part_walked(
    name: str, folder: Path, options: argparse.Namespace, part: int
) -> list[dict[str, Any]]:
    """What the rows of one process of a walk gave."""
    framework, further = WALKS[name]
    environment = _environment(folder, {**further, "GPUFLOW_CUDA_GRAPHS": "0"})
    command = [sys.executable, str(HERE / "gpu_walk.py"), framework, *options.capability]
    command += ["--rows", options.rows, "--part", f"{part}/{options.processes}"]
    command += ["--tiny"] if options.tiny else []
    command += ["--programs"] if name in PROGRAM_WALKS else []
    command += ["--cudnn"] if name == WITH_CUDNN else []
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    records = []
    for line in process.stdout:
        if line.startswith("{"):
            records.append({"walk": name, **json.loads(line)})
            tell(records[-1])
    if process.wait() not in (0, 1):
        error = f"ended with status {process.returncode}"
        records.append({"walk": name, "row": f"all of part {part}", "error": error})
    return records


def _environment(folder: Path, further: dict[str, str]) -> dict[str, str]:
    """The variables of a process that builds kernels in a folder."""
    environment = {**os.environ, **further, "GPUFLOW_CACHE_DIR": str(folder)}
    environment["GPUFLOW_CACHE_LIMIT"] = "0"
    paths = [str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment.pop("OPENBLAS_CORETYPE", None)
    return environment


def tests_walked(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The records of the files of tests that need a GPU, run on the simulated one."""
    files = [*gpu_parts.marked_files(), *gpu_parts.kernel_files()]
    files = [file for file in files if chosen(_test_name(file), options.rows)]
    with ThreadPoolExecutor(options.processes) as threads:
        yield from threads.map(partial(_file_walked, folder), files)


def _test_name(file: str) -> str:
    return f"tests: {Path(file).stem}"


def _file_walked(folder: Path, file: str) -> dict[str, Any]:
    """The record of one file; a test that fails is told, and no error: its kernels were built."""
    environment = _environment(folder, {"KERNEL_TESTS": "cuda_sim"})
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "gpu_test_walk"]
    command += ["-p", "no:cacheprovider", file]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    record: dict[str, Any] = {"walk": TESTS, "row": _test_name(file)}
    found = [one for one in records_of(done.stdout) if "keys" in one]
    record |= found[-1] if found else {}
    if not found or done.returncode not in (0, 1, 5):  # 5: pytest found no test
        tail = (done.stdout + done.stderr).strip()[-300:]
        record["error"] = f"pytest ended with status {done.returncode}: {tail}"
    tell(record)
    return record


def tell(record: dict[str, Any]) -> None:
    """A line about a row for which kernels were built, or that failed."""
    if record.get("built") or record.get("failed") or "error" in record:
        what = record.get("error") or f"{record['built']} kernels, {record['seconds']:.1f} s"
        what += f", {record['failed']} tests FAILED" if record.get("failed") else ""
        print(f"  {record['row']} ({record['walk']}): {what}", flush=True)


def summary(records: Sequence[dict[str, Any]], label: str, start: float) -> None:
    """Prints what a round of walks gave."""
    built, loaded, seconds = (
        sum(record.get(key, 0) for record in records) for key in ("built", "loaded", "seconds")
    )
    rows = {record["row"] for record in records if record.get("called")}
    print(
        f"{label}: {len(rows)} rows, {built} kernels built, {loaded} loaded, {seconds:.0f} s of "
        f"processors in {time.perf_counter() - start:.0f} s",
        flush=True,
    )


def failures(records: Sequence[dict[str, Any]], may_build: bool) -> list[str]:
    """The rows that are not covered, and why."""
    found = [f"{r['row']} ({r['walk']}): {r['error']}" for r in records if "error" in r]
    if not may_build:
        found += [
            f"{r['row']} ({r['walk']}): {r['built']} kernels were not there"
            for r in records
            if r.get("built")
        ]
    called = {r["row"] for r in records if r.get("called")}
    seen = {r["row"] for r in records if "error" not in r}
    return [*found, *(f"{row}: no setting calls it" for row in sorted(seen - called - {""}))]


def drop_others(folder: Path, keys: set[str]) -> None:
    """Deletes what no walk asks for: kernels of older trees, and those for this processor."""
    for path in folder.glob("*/*"):
        cubin = path.with_name(f"{path.name.split('.')[0]}.cubin")
        if path.name.split(".")[0] not in keys or not cubin.exists():
            path.unlink()


def sizes(folder: Path) -> tuple[int, int]:
    """Kernels in a folder, and the bytes of all its files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.suffix == ".cubin" for path in files), sum(p.stat().st_size for p in files)


def archive_of(folder: Path) -> Path:
    """Where the packed kernels lie."""
    return folder.with_name(f"{folder.name}.tar.gz")


def pack(folder: Path) -> int:
    """All files of the folder in one, as thousands of small ones travel slowly; its bytes."""
    with tarfile.open(archive_of(folder), "w:gz", compresslevel=6) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, str(path.relative_to(folder)))
    return archive_of(folder).stat().st_size


def build(folder: Path, options: argparse.Namespace) -> list[str]:
    """Fills the folder and walks once more; returns what is wrong."""
    for path in (folder / MANIFEST, archive_of(folder)):  # or older ones could travel
        path.unlink(missing_ok=True)
    tree, start = tree_digest(), time.perf_counter()
    tests = list(tests_walked(folder, options))
    summary(tests, "tests", start)
    first = list(walked(folder, options))
    summary(first, "built", start)
    wrong = failures([*tests, *first], may_build=True)
    if wrong:
        return wrong
    start = time.perf_counter()
    again = list(walked(folder, options))
    summary(again, "once more", start)
    drop_others(folder, {key for record in [*tests, *again] for key in record.get("keys", ())})
    kernels, count = sizes(folder)
    wrong = failures(again, may_build=False)
    if tree_digest() != tree:
        wrong.append("the tree was changed meanwhile")
    manifest = {
        "tree": tree,
        "commit": commit(),
        "rows": options.rows,
        "tiny": options.tiny,
        "capabilities": options.capability,
        "versions": again[-1].get("versions"),
        "kernels": kernels,
        "bytes": count,
    }
    if not wrong:
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
        packed = pack(folder)
        print(
            f"{kernels} kernels for {', '.join(options.capability)}: {count / 1e6:.1f} MB, "
            f"packed {packed / 1e6:.1f} MB",
            flush=True,
        )
        if packed > MAX_BYTES:
            wrong.append(f"that is more than the {MAX_BYTES / 1e6:.0f} MB that may travel")
    return wrong


def check(folder: Path, options: argparse.Namespace) -> list[str]:
    """Walks once; what has to be built is missing. Returns what is wrong."""
    reason = stale(folder)
    if reason:
        print(f"STALE: {reason}. Fix: perf/rented_gpu.sh prepare.", flush=True)
    start = time.perf_counter()
    records = [*tests_walked(folder, options), *walked(folder, options)]
    summary(records, "checked", start)
    return failures(records, may_build=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds or checks; returns 0 if every row is covered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capability", nargs="+", default=list(CAPABILITIES))
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--rows", default="", help="only rows whose name holds one of these texts")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--check", action="store_true", help="whether nothing is missing")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wrong = check(folder, options) if options.check else build(folder, options)
    for line in wrong:
        print(f"NOT COVERED: {line}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
