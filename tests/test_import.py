"""Importing gpuflow is cheap and drags in nothing slow."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile

SLOW_PACKAGES = (
    "numba",
    "scipy",
    "cupy",
    "sklearn",
    "rich",
    "matplotlib",
    "safetensors",
    "numpy.ma",
)
# What compiles programs and what runs them is imported when there is one.
OUR_LATER_MODULES = (
    "gpuflow.compiler.pipeline",
    "gpuflow.targets.cpu",
    "gpuflow.targets.cuda",
    "gpuflow.parallel.processes",
    "gpuflow.nn",
    "gpuflow.checkpointing",
    "gpuflow.data",
    "gpuflow.export",
    "gpuflow.mixed_precision",
)
# With NumPy, which it imports; 3.0 to 3.8 were measured, and in seconds a machine's speed counts.
ALLOWED_MULTIPLE_OF_NUMPY = 4.5
FOLDER = tempfile.mkdtemp(prefix="gpuflow-bytecode-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def run(code: str) -> str:
    # As after an installation: with compiled bytecode, and away from a checkout.
    environment = dict(os.environ, PYTHONPYCACHEPREFIX=FOLDER)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=FOLDER
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def seconds_to_import(module: str) -> float:
    # Of the processor's time: on a busy machine the clock counts what others do as well.
    clock = "import time; start = time.process_time()"
    return float(run(f"{clock}\nimport {module}\nprint(time.process_time() - start)"))


def test_import_leaves_slow_packages_alone():
    loaded = json.loads(run("import gpuflow, json, sys; print(json.dumps(list(sys.modules)))"))
    assert not [name for name in SLOW_PACKAGES + OUR_LATER_MODULES if name in loaded]


def test_import_takes_little_more_than_numpy():
    # The fastest of several tries: other work on the machine only ever adds to an import. A machine
    # that others slow down for a while gets more of them.
    tries = []
    for _ in range(20):
        tries.append((seconds_to_import("numpy"), seconds_to_import("gpuflow")))
        numpy_seconds, our_seconds = (min(column) for column in zip(*tries, strict=True))
        if len(tries) >= 5 and our_seconds <= ALLOWED_MULTIPLE_OF_NUMPY * numpy_seconds:
            return
    raise AssertionError(f"numpy takes {numpy_seconds} s to import, gpuflow {our_seconds} s")


def test_version_is_the_installed_one():
    assert run("import gpuflow; print(gpuflow.__version__)") == run(
        "from gpuflow.version import __version__; print(__version__)"
    )
