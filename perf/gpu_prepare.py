"""Makes the folder that travels to a rented GPU: kernels, their versions, and wheels.

usage: perf/rented_gpu.sh prepare [--wheel NAME] [--python 3.12] [--capability 9.0 8.0]
       [--processes 2] [--tiny]

    kernels.tar.gz   the kernels of all rows, programs and tests, built here (prebuild.py)
    versions         the packages that built them, for GPUFLOW_KERNEL_VERSIONS
    site.tar.gz      what the machine lacks of gpuflow's dependencies, from wheels
    results/         what earlier runs there found; put here what comes back

A second time only what the tree's changes ask for is built.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import prebuild
from gpu_processes import answer

# What gpuflow needs and images with CuPy, torch and JAX do not have, and what that needs. They have
# cuDNN, without the frontend; its versions are those of the extra.
WHEELS = ("optree", "typing-extensions")
FRONTEND = "nvidia-cudnn-frontend"
_PLATFORMS = (
    *(f"manylinux_2_{n}_x86_64" for n in (17, 24, 27, 28, 31, 34)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
MAX_BYTES = 64_000_000  # of the tree and of what it brings
ARCHIVE, SITE = "kernels.tar.gz", "site.tar.gz"

COMMANDS = """
Bring along the tree ({tree:.1f} MB) and {bring} ({more:.1f} MB), in its place in the tree. There:

    bash perf/rented_gpu.sh first     # at most 8 minutes
    bash perf/rented_gpu.sh second    # at most 5 minutes

--out FOLDER, or OUT=FOLDER, says where results go; a second run of a part goes on with what is
missing. If the machine forgets its files, copy gpu-records.jsonl back into
{bring}/results first. PYTHON=... chooses the interpreter; it must be a Python {python}.
"""


def frontend_requirement() -> str:
    """The versions of cuDNN's frontend that the extra asks for."""
    project = tomllib.loads((prebuild.ROOT / "pyproject.toml").read_text())["project"]
    (found,) = [
        text for text in project["optional-dependencies"]["cudnn"] if text.startswith(FRONTEND)
    ]
    return found


def download(names: Sequence[str], python: str, archive: Path) -> None:
    """Fetch the wheels of some packages for another Python, and pack their files.

    Raises:
        subprocess.CalledProcessError: pip found none.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        for platform in _PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, "-d", str(wheels), *names], check=True)
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
            print(f"wheel: {wheel.name}", flush=True)
        with tarfile.open(archive, "w:gz") as files:
            files.add(site, ".")


def versions_text(versions: Mapping[str, str]) -> str:
    """The value of GPUFLOW_KERNEL_VERSIONS."""
    return " ".join(f"{package}={version}" for package, version in versions.items())


def tree_bytes() -> int:
    """Bytes of the files that git knows or would take."""
    listed = answer(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    files = [prebuild.ROOT / name for name in listed.split("\0") if name]
    return sum(path.stat().st_size for path in files if path.is_file())


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the folder and says what to do with it; returns 1 if a row is not covered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bring", type=Path, required=True)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    parser.add_argument("--wheel", nargs="*", default=[], help="further packages it lacks")
    parser.add_argument("--capability", nargs="+", default=list(prebuild.CAPABILITIES))
    parser.add_argument("--processes", type=int, default=prebuild.PROCESSES)
    parser.add_argument("--rows", default="", help="only rows whose name holds one of these texts")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    options = parser.parse_args(arguments)
    bring, kernels = options.bring.resolve(), options.bring.resolve().parent / "kernels"
    (bring / "results").mkdir(parents=True, exist_ok=True)
    for name in (ARCHIVE, SITE):
        (bring / name).unlink(missing_ok=True)  # or an older one could travel
    names = [*WHEELS, frontend_requirement(), *options.wheel]
    download(names, options.python, bring / SITE)
    built = [str(kernels), "--rows", options.rows, "--capability", *options.capability]
    built += ["--processes", str(options.processes)]
    if prebuild.main([*built, *(["--tiny"] if options.tiny else [])]):
        return 1
    manifest = json.loads((kernels / prebuild.MANIFEST).read_text())
    (bring / "versions").write_text(versions_text(manifest["versions"]))
    shutil.copy(prebuild.archive_of(kernels), bring / ARCHIVE)
    count = sum(path.stat().st_size for path in bring.rglob("*") if path.is_file())
    tree = tree_bytes()
    if count + tree > MAX_BYTES:
        print(
            f"NOT COVERED: {(count + tree) / 1e6:.1f} MB are more than the "
            f"{MAX_BYTES / 1e6:.0f} MB that may travel"
        )
        return 1
    sizes = {"tree": tree / 1e6, "more": count / 1e6}
    print(COMMANDS.format(bring=bring, python=options.python, **sizes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
