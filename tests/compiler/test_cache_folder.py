"""The folder of built code is this user's alone, or another one is used."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpuflow.base.config import config
from gpuflow.base.errors import CacheWarning
from gpuflow.cli import doctor
from gpuflow.compiler.cache import folder as cache_folders

PROGRAM = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import gpuflow as gf, gpuflow.numpy as jnp
    x = gf.jit(lambda x: jnp.tanh(x @ x) + 1)(jnp.ones((64, 64)))
    x.block_until_ready()
    from gpuflow.runtime.kernel_cache import kernel_cache
    assert kernel_cache().stats.built + kernel_cache().stats.loaded > 0
    folder = kernel_cache().folder
    print(json.dumps([str(folder), str(folder.stat().st_mode & 0o777),
        [str(w.message) for w in caught if "cache" in str(w.message)], float(x[0, 0])]))
"""


@pytest.fixture
def configured(monkeypatch):
    """``configured(folder)``: what the process uses then."""
    cache_folders._verified_or_temporary.cache_clear()

    def ask(folder):
        changed = replace(config.environment, cache_folder=folder)
        monkeypatch.setattr(config, "environment", changed)
        return cache_folders.cache_folder()

    yield ask
    cache_folders._verified_or_temporary.cache_clear()


def test_a_new_folder_is_private(tmp_path, configured):
    assert configured(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert configured(None) is None


def test_a_folder_that_others_may_write_is_refused_once(tmp_path, configured):
    tmp_path.chmod(0o770)
    with pytest.warns(CacheWarning, match=r"by this user only.*mode 770.*Fix: chmod 700") as caught:
        folder = configured(tmp_path)
        assert configured(tmp_path) == folder != tmp_path
    assert len(caught) == 1 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert doctor_says(tmp_path).startswith("refused: it may be written by others (mode 770)")
    cache_folders._remove(str(folder), -1)  # as a forked child
    assert folder.exists()
    cache_folders._remove(str(folder), os.getpid())
    assert not folder.exists()


def doctor_says(folder):
    return dict(doctor.cache(folder))["cache"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_somebody_else_is_refused(tmp_path, configured):
    os.chown(tmp_path, 12345, 12345)
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        assert configured(tmp_path) != tmp_path


def test_a_process_with_a_refused_folder_writes_nothing_there_and_cleans_up(tmp_path):
    folder, temporary = tmp_path / "cache", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    folder.chmod(0o777)
    paths = {"GPUFLOW_CACHE_DIR": str(folder), "TMPDIR": str(temporary)}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **paths},
        text=True,
        capture_output=True,
        cwd=Path(cache_folders.__file__).parents[3],
        timeout=120,
    )
    assert result.returncode == 0, result.stderr

    used, mode, said, value = json.loads(result.stdout)
    assert Path(used).parent == temporary and int(mode) == 0o700 and value == 2.0
    assert len(said) == 1 and "chmod 700" in said[0]
    assert not list(folder.iterdir()) and not list(temporary.iterdir())
