"""Files of a checkpoint: arrays in safetensors files, and a JSON file that commits them.

    folder/
        arrays-<token>-<process>.safetensors    complete before the next file names it
        tree.json                               replaced in one step: the checkpoint

A folder holds a checkpoint as soon as it has a ``tree.json``, which names the files with arrays. A
later save writes other files next to them, replaces ``tree.json``, and then deletes the files that
it no longer names (``ownership.py``). A process that is killed in between leaves the earlier
checkpoint, and unused files; the next save deletes them.

Tests: tests/checkpointing/test_ownership.py, tests/checkpointing/test_kills.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.errors import CheckpointError, check
from gpuflow.checkpointing.leaves import FILE_DTYPES
from gpuflow.checkpointing.ownership import (
    TREE,
    arrays_name,
    delete_leftovers,
    has_foreign_tree,
    has_own_tree,
    journal_name,
    write_journal,
)
from gpuflow.checkpointing.reading import (
    FORMAT,
    SystemFileError,
    bytes_of,
    canonical,
    checksum,
    read_tree,
    token_of,
)


@contextmanager
def writing(path: Path, size: int = 0) -> Iterator[None]:
    """Raise the system's errors in our form.

    Args:
        path: of the file that is written.
        size: how many bytes it will have.

    Raises:
        CheckpointError: which is an OSError too, with its ``errno``.
    """
    try:
        yield
    except OSError as error:
        free = "an unknown number"
        with suppress(OSError):
            free = f"{shutil.disk_usage(path.parent).free:,}"
        raise SystemFileError(
            f"[save] files of a checkpoint must be written completely; got {error.strerror!r} for "
            f"{path}, which needs {size:,} bytes where {free} are free. Fix: free some space, or "
            "save to another folder; the earlier checkpoint stays.",
            error,
            path,
        ) from error


def write_arrays(
    folder: Path, token: str, process: int, arrays: Mapping[str, np.ndarray]
) -> tuple[str, dict[str, int]]:
    """Write arrays into a new file of the folder, which is on the disk when this returns.

    Args:
        folder: of the checkpoint.
        token, process: which save it is, and of which process.
        arrays: by name, of the dtypes in ``FILE_DTYPES``.

    Returns:
        the file's name, and the checksum of each array's bytes.

    Raises:
        CheckpointError: if the file cannot be written.

    Source: Hugging Face, "Safetensors", format: the header's length (8 bytes), the header (JSON,
        padded with spaces), the arrays without gaps, those of the widest dtypes first.
    """
    name = arrays_name(token, process)
    order = sorted(arrays, key=lambda key: (-arrays[key].dtype.itemsize, key))
    whole = {key: np.ascontiguousarray(arrays[key]).reshape(arrays[key].shape) for key in order}
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    end = 0
    for key, x in whole.items():
        begin, end = end, end + x.nbytes
        dtype = FILE_DTYPES[x.dtype.name]
        header[key] = {"dtype": dtype, "shape": [*x.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with writing(folder / name, 8 + len(text) + end), open(folder / name, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in whole.values():
            file.write(bytes_of(x))
        file.flush()
        os.fsync(file.fileno())
    return name, {key: checksum(x) for key, x in whole.items()}


def write_tree(folder: Path, token: str, content: dict[str, Any]) -> None:
    """Make ``content``, and the files that it names, the checkpoint of the folder.

    Raises:
        CheckpointError: if it cannot be written.
    """
    text = canonical(content)
    document = {"format": FORMAT, "crc32": zlib.crc32(text.encode()), "content": content}
    new = folder / f"tree-{token}.json"
    with writing(new, len(text)):
        with open(new, "x", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / TREE)


def check_replaceable(folder: Path) -> None:
    """Check that a save may replace the folder's ``tree.json``.

    Raises:
        FileExistsError: if it is not a checkpoint's.
    """
    check(
        not has_foreign_tree(folder),
        lambda: (
            f"[save] a {TREE} that is replaced must be a checkpoint's own file; got {folder / TREE}"
            ", which no save wrote. Fix: give another folder, or move that file away."
        ),
        FileExistsError,
    )


def begin(folder: Path, token: str) -> None:
    """Write the journals of a save, and of the checkpoint that it replaces.

    Raises:
        CheckpointError: if the folder cannot be written.
    """
    with writing(folder / journal_name(token)):
        write_journal(folder, token)
        _write_journal_of_checkpoint(folder)


def _write_journal_of_checkpoint(folder: Path) -> None:
    token = token_of(folder)
    if token is not None:  # else it is damaged, and its files stay
        write_journal(folder, token)


def tidy(folder: Path, retained: Sequence[str]) -> bool:
    """Delete the files of earlier and of cut-off saves.

    Args:
        folder: of the checkpoint.
        retained: the names of the checkpoint's files.

    Returns:
        Whether anything was deleted. A file that cannot be deleted stays.
    """
    try:
        return delete_leftovers(folder, retained)
    except OSError:
        return False


def abandon(folder: Path, token: str) -> None:
    """Delete the files of a failed save, unless it was committed, as before a Ctrl-C."""
    with suppress(OSError, CheckpointError):  # a damaged checkpoint's files are not known
        try:
            content = read_tree(folder)
        except FileNotFoundError:
            content = {"files": [], "token": token}
        # Not those of an earlier checkpoint: the new one may not be on the disk yet.
        delete_leftovers(folder, content["files"], {token, content["token"]})


def delete(folder: Path) -> None:
    """Delete a checkpoint: after the first step it is no longer valid."""
    if has_foreign_tree(folder):
        return
    is_ours = has_own_tree(folder)
    if is_ours:
        _write_journal_of_checkpoint(folder)
        (folder / TREE).unlink()
        sync(folder)
    if tidy(folder, []) or is_ours:
        with suppress(OSError):  # there may be other files
            folder.rmdir()


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they stay.

    Raises:
        NotADirectoryError: if another kind of file exists.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with writing(folder), suppress(FileExistsError):
        folder.mkdir()
    check(
        folder.is_dir(),  # or another process was first
        lambda: f"[save] a checkpoint is a folder; got the file {folder}. Fix: give another path.",
        NotADirectoryError,
    )
    sync(folder.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against writes of other processes."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing is not enough: children that were forked meanwhile have the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
