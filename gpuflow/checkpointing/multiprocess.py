"""Saves of several processes into one folder: each writes its shards, process 0 the tree.

The threads that write do not communicate, except through the folder, which all processes see:

    process p    arrays-<token>-p.safetensors, then tree-<token>-p.json, which lists its chunks
    process 0    waits for all of these, and writes tree.json
    process p    waits for a tree.json of this token

A process that fails leaves failed-<token>.json with the reason for the others.

Tests: tests/checkpointing/test_groups.py.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.errors import CheckpointError
from gpuflow.base.private_files import parse_json
from gpuflow.checkpointing import files, reading
from gpuflow.checkpointing.ownership import write_journal
from gpuflow.experimental.multihost_utils import broadcast_one_to_all
from gpuflow.runtime.device import process

_PATIENCE = 600.0  # seconds
_LOOK = 0.02


def agreed_token() -> str:
    """A name for a save, equal in all processes, which all call this."""
    random_bits = np.frombuffer(secrets.token_bytes(8), np.uint32)
    return broadcast_one_to_all(random_bits).tobytes().hex()


@contextmanager
def sharing_errors(folder: Path, token: str) -> Iterator[None]:
    """Send errors inside of the block to the other processes."""
    try:
        yield
    except Exception as error:
        with suppress(OSError):
            text = f"process {process.index}: {type(error).__name__}: {error}"
            write_journal(folder, token)  # the next save deletes the file
            _put(folder / f"failed-{token}.json", text)
        raise


def hand_over(folder: Path, token: str, manifest: dict[str, Any]) -> None:
    """Send process 0 the list of files of this process, and return when it is in a checkpoint.

    Raises:
        CheckpointError: another process failed, or takes too long.
    """
    _put(folder / f"tree-{token}-{process.index}.json", manifest)

    def is_committed() -> bool:
        with suppress(FileNotFoundError):
            return reading.read_tree(folder)["token"] == token
        return False

    _wait(folder, token, is_committed, "process 0")


def handed_over(folder: Path, token: str) -> list[dict[str, Any]]:
    """Return the lists of the other processes, in order.

    Raises:
        CheckpointError: another process failed, or takes too long.
    """
    manifests = []
    for number in range(1, process.count):
        path = folder / f"tree-{token}-{number}.json"
        _wait(folder, token, path.exists, f"process {number}")
        manifests.append(_read(path))
    return manifests


def _put(path: Path, content: Any) -> None:
    """Write a file atomically."""
    new, text = path.with_suffix(".new"), json.dumps(content)
    with files.writing(new, len(text)):
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)


def _read(path: Path) -> Any:
    with reading.opened(path) as file:
        try:
            return parse_json(file.read())
        except ValueError as error:
            raise reading.damaged(path, f"no JSON text of ours ({error})") from None


def _wait(folder: Path, token: str, is_written: Any, writers: str) -> None:
    failed, deadline = folder / f"failed-{token}.json", time.monotonic() + _PATIENCE
    while not is_written():
        why = ""
        if failed.exists():
            why = _read(failed)
        elif time.monotonic() > deadline:
            why = f"nothing of {writers} in {_PATIENCE:g} s"
        if why:
            raise CheckpointError(
                f"[save] all processes must write their shards; got {why}. Fix: remove that cause, "
                f"and check that all processes can write to {folder}; the previous checkpoint is "
                "unchanged."
            )
        time.sleep(_LOOK)
