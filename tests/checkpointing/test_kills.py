"""A writer that is killed at any point leaves the last checkpoint readable.

``CHECKPOINT_KILLS=200 pytest tests/checkpointing/test_kills.py`` kills so many; 20 are the default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpuflow.checkpointing import files

ROOT = Path(__file__).resolve().parents[2]


def test_killed_writers_lose_nothing(tmp_path):
    kills = int(os.environ.get("CHECKPOINT_KILLS", "20"))
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    script = Path(__file__).with_name("kills.py")
    ended = subprocess.run(
        [sys.executable, script, tmp_path / "run", str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=30 + 2 * kills,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    done, halves, steps = map(int, ended.stdout.split())
    # Else the kills came at no interesting time.
    assert done == kills and halves >= kills // 10 and steps >= kills // 10, ended.stdout


def test_files_are_on_the_disk_before_their_names_count(tmp_path, monkeypatch):
    """Power may fail too: the order of calls is what a file system asks for."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        calls.append(("sync", name.partition("-")[0]))
        fsync(descriptor)

    def replaced(source, target):
        calls.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.os, "replace", replaced)
    from gpuflow import checkpointing

    folder = tmp_path / "above" / "c"
    checkpointing.save(folder, {"x": 1})
    assert calls == [
        ("sync", tmp_path.name.partition("-")[0]),
        ("sync", "above"),  # the new folders' names
        ("sync", "arrays"),
        ("sync", "tree"),
        ("replace", "tree.json"),
        ("sync", "c"),
    ]
