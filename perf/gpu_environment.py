"""Whether a machine is ready for the acceptance: packages, kernels that were brought, one result.

usage: python perf/gpu_environment.py [--platform cuda] [--tiny]

Prints what it finds line by line; ends with 1 and a line that begins with WRONG for each thing that
would waste the time to come.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import prebuild
from gpu_processes import answer, commit
from gpu_records import tree_digest

NEEDED = ("numpy", "optree", "ml_dtypes", "scipy", "opt_einsum", "llvmlite")
TO_BUILD = ("numba",)  # kernels that were not brought along
ON_A_GPU = ("cupy",)
PACKAGES = (
    "numpy",
    "numba",
    "llvmlite",
    "numba-cuda",
    "nvidia-nvvm",
    "nvidia-nvjitlink",
    "cuda-core",
    "cuda-bindings",
    "cupy-cuda13x",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "jax",
    "torch",
    "triton",
    "optree",
    "ml-dtypes",
)
_SIZE = 1 << 12
# A function and its argument; perf/prebuild.py builds its kernel.
FIRST_PROGRAM = (lambda v: v * 2 + 1, np.random.default_rng(0).standard_normal(_SIZE, np.float32))


def versions() -> dict[str, str]:
    """Installed packages that matter, and Python."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        for one in importlib.metadata.distributions(name=package):
            found.setdefault(package, one.version)
    return found


def device() -> str:
    """What the system says of its GPU."""
    asked = "name,driver_version,memory.total,clocks.sm,temperature.gpu"
    return answer(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]) or "no GPU"


def manifest() -> dict[str, Any]:
    """What is said of the kernels that were brought along; empty if none were."""
    path = Path(os.environ.get("GPUFLOW_CACHE_DIR", "")) / prebuild.MANIFEST
    return json.loads(path.read_text()) if path.exists() else {}


def tree_commit() -> str:
    """The commit of the tree; where there is no git, that of the kernels, if the tree is theirs."""
    found = commit()
    if not found.startswith("unknown") or not manifest():
        return found
    same = manifest()["tree"] == tree_digest()
    return f"{manifest()['commit']}{'' if same else ' and changes since'}"


def missing_packages(platform: str) -> list[str]:
    """What cannot be imported."""
    wanted = [*NEEDED, *(ON_A_GPU if platform == "cuda" else ())]
    wanted += () if manifest() else TO_BUILD
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def wrong_with_kernels() -> Iterator[str]:
    """What is wrong with the kernels that were brought along; nothing if none were."""
    found = manifest()
    if not found:
        print("no kernels were brought along: they are built here")
        return
    print(
        f"brought along: {found['kernels']} kernels of {found['commit']} for "
        f"{', '.join(found['capabilities'])}"
    )
    reason = prebuild.stale(Path(os.environ["GPUFLOW_CACHE_DIR"]))
    if reason:
        yield f"the kernels are STALE: {reason}. Fix: perf/rented_gpu.sh prepare, and bring them"


def first_result(platform: str) -> Iterator[str]:
    """What is wrong with one small program: the way from Python to the device and back."""
    import gpuflow as gf
    from gpuflow.runtime.kernel_cache import cache_stats
    from gpuflow.targets.cuda.codegen.cached_builds import cache_key_inputs

    (found, *_) = gf.devices(platform)
    function, x = FIRST_PROGRAM
    start = time.perf_counter()
    with gf.default_device(found):
        got = np.asarray(gf.jit(function)(x))
    seconds = time.perf_counter() - start
    api = getattr(found.driver, "api", None)
    stats = cache_stats()
    print(
        f"first result on {getattr(api, 'name', platform)} after {seconds:.2f} s; "
        f"{stats.loaded} kernels loaded, {stats.built} built"
    )
    if api is not None:
        print(f"keys of kernels: {' '.join(cache_key_inputs(api.compute_capability)[3:])}")
    if not np.array_equal(got, function(x)):
        yield f"x * 2 + 1 is off by up to {np.abs(got - function(x)).max()}"


def findings(platform: str) -> Iterator[str]:
    """Everything that is wrong, the first things first."""
    print(f"device: {device()}; {os.cpu_count()} processors")
    print(json.dumps(versions()))
    missing = missing_packages(platform)
    if missing:
        yield (
            f"{', '.join(missing)} cannot be imported. Fix: bring wheels along, with "
            "perf/rented_gpu.sh prepare --wheel NAME"
        )
        return
    yield from wrong_with_kernels()
    yield from first_result(platform)


def main(arguments: Sequence[str] | None = None) -> int:
    """Looks; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    wrong = 0
    for line in findings(options.platform):
        print(f"WRONG: {line}", flush=True)
        wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
