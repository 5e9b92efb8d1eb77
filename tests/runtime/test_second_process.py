"""Processes that share a kernel cache, and the checking mode."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = str(Path(__file__).resolve().parents[2])

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("always")
import numpy as np
import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.runtime.kernel_cache import cache_stats

def loss(w, x):
    return jnp.mean(gf.nn.log_softmax(jnp.tanh(x @ w)) * x)

step = gf.jit(lambda w, x: (w - 0.1 * gf.grad(loss)(w, x), jnp.sum(x, 0)))
w, x = np.eye(5, dtype=np.float32), np.ones((7, 5), np.float32) * np.arange(5, dtype=np.float32)
results = [np.asarray(out).tolist() for out in step(w, x)]
step(w, np.concatenate([x, x]))
stats = cache_stats()
print(json.dumps({
    "built": stats.built, "loaded": stats.loaded, "numba": "numba" in sys.modules,
    "cupy": "cupy" in sys.modules, "results": results,
}))
"""


def start(folder, program=PROGRAM, **variables):
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(folder), **variables}
    environment["PYTHONPATH"] = PACKAGE
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What the program printed, and its warnings."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), errors


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder that one process filled, and what that process said."""
    folder = tmp_path_factory.mktemp("kernels")
    return folder, finish(start(folder))[0]


def test_second_process_builds_nothing(filled):
    folder, first = filled
    assert first["built"] > 0 and not first["numba"]
    second, errors = finish(start(folder))
    assert second["built"] == 0 and second["loaded"] == first["built"]
    assert not second["numba"] and not second["cupy"]
    assert second["results"] == first["results"] and not errors


def test_processes_at_once_on_an_empty_cache(tmp_path, filled):
    _, first = filled
    processes = [start(tmp_path) for _ in range(3)]
    for process in processes:
        said, errors = finish(process)
        assert said["results"] == first["results"] and "CacheWarning" not in errors
        assert said["built"] + said["loaded"] == first["built"]
    assert finish(start(tmp_path))[0]["built"] == 0


def test_damaged_cache_is_built_again_with_a_warning(tmp_path, filled):
    _, first = filled
    finish(start(tmp_path))
    codes = sorted(path for path in tmp_path.glob("??/*") if path.suffix in (".image", ".o"))
    codes[0].write_bytes(codes[0].read_bytes()[:64])
    descriptions = sorted(tmp_path.glob("??/*.json"))
    descriptions[-1].write_text("{")
    said, errors = finish(start(tmp_path))
    assert said["results"] == first["results"]
    assert 1 <= said["built"] <= 2 and "CacheWarning" in errors
    assert finish(start(tmp_path))[0]["built"] == 0


def test_cache_folder_that_cannot_exist_does_not_stop_a_program(tmp_path, filled):
    _, first = filled
    blocked = tmp_path / "file"
    blocked.write_text("")
    said, errors = finish(start(blocked))
    assert said["results"] == first["results"] and "CacheWarning" in errors


def test_checking_mode_accepts_and_changes_nothing(filled):
    folder, first = filled
    said, errors = finish(start(folder, GPUFLOW_CHECK="1"))
    assert said["results"] == first["results"] and said["built"] == 0, errors


def test_one_thread_and_many_agree(filled):
    folder, first = filled
    for threads in ("1", "4"):
        said, _ = finish(start(folder, GPUFLOW_NUM_THREADS=threads))
        assert said["results"] == first["results"]
