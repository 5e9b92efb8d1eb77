"""Saving: a snapshot in the thread that calls, files in another one or in the same.

Tests: tests/checkpointing/test_saving.py, tests/checkpointing/test_round_trips.py.
"""

from __future__ import annotations

import atexit
import math
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpuflow.base.errors import CheckpointError, check
from gpuflow.base.records import record
from gpuflow.checkpointing import files, leaves, multiprocess, schema, structure
from gpuflow.checkpointing.reading import path_of
from gpuflow.runtime.device import process


@record
class Snapshot:
    """A tree as it was when the save began; any thread may write it.

    Attributes:
        description: its containers, as JSON.
        leaves: (path, leaf) in the order of the tree; later changes of arrays do not reach them.
        metadata: additional data that is stored with it, as JSON.
        token: a name of this save, equal in all processes; file names contain it.
        is_shared: whether other processes have shards of it, and save them.
    """

    description: dict[str, Any]
    leaves: tuple[tuple[str, leaves.Leaf], ...]
    metadata: dict[str, Any]
    token: str
    is_shared: bool


def snapshot_of(tree: Any, metadata: dict[str, Any] | None = None) -> Snapshot:
    """A snapshot of a tree; all processes call it if arrays have shards in others.

    Raises:
        TypeError: a leaf that cannot be saved.
    """
    description, pairs = structure.described(tree)
    is_shared = any(leaves.is_elsewhere(leaf) for _, leaf in pairs)
    is_first = process.index == 0 or not is_shared
    leaf_snapshots = tuple(
        (path, leaves.snapshot_leaf(path, leaf, is_first)) for path, leaf in pairs
    )
    token = multiprocess.agreed_token() if is_shared else secrets.token_hex(8)
    return Snapshot(description, leaf_snapshots, metadata or {}, token, is_shared)


def write(folder: Path, snapshot: Snapshot) -> None:
    """Make a snapshot the checkpoint of a folder.

    If ``snapshot.is_shared``, all processes must call it for the same folder: process 0 waits for
    the files of the others, and commits. Until it has, and if it fails, the folder has the previous
    checkpoint.
    """
    files.make_folder(folder)
    files.check_replaceable(folder)
    if not snapshot.is_shared:
        _write_all(folder, snapshot, list)
        return
    with multiprocess.sharing_errors(folder, snapshot.token):
        if process.index:
            files.begin(folder, snapshot.token)
            multiprocess.hand_over(folder, snapshot.token, _write_own(folder, snapshot))
        else:
            _write_all(folder, snapshot, lambda: multiprocess.handed_over(folder, snapshot.token))


def _write_all(
    folder: Path, snapshot: Snapshot, others: Callable[[], list[dict[str, Any]]]
) -> None:
    """Write the arrays of this process, and the tree with those of ``others``."""
    with files.locked(folder):
        try:
            files.begin(folder, snapshot.token)
            first = _write_own(folder, snapshot)
            committed = _commit(folder, snapshot, [first, *others()])
        except BaseException:
            files.abandon(folder, snapshot.token)
            raise
        files.tidy(folder, committed)


def _write_own(folder: Path, snapshot: Snapshot) -> dict[str, Any]:
    """Write the data of this process.

    Returns:
        as JSON, the file, and for each chunk the index of its leaf and its entry in the record.
    """
    named = _named_chunks(snapshot)
    arrays = {name: chunk.values for name, chunk in named.items()}
    file, sums = files.write_arrays(folder, snapshot.token, process.index, arrays)
    chunks = [
        (leaf_index, {"name": name, "crc32": sums[name], "bounds": bounds})
        for name, (leaf_index, bounds, _) in named.items()
    ]
    return {"file": file, "pieces": chunks}


def _commit(folder: Path, snapshot: Snapshot, manifests: list[dict[str, Any]]) -> list[str]:
    """Write the tree over the files of all processes, and return their names."""
    names = [manifest["file"] for manifest in manifests]
    records = [dict(leaf.record) for _, leaf in snapshot.leaves]
    for file, manifest in enumerate(manifests):
        for leaf_index, entry in manifest["pieces"]:
            records[leaf_index].setdefault("pieces", []).append({"file": file, **entry})
    for (path, _), leaf_record in zip(snapshot.leaves, records, strict=True):
        _check_whole(path, leaf_record)
    content = {
        "files": names,
        "tree": snapshot.description,
        "leaves": records,
        "paths": [path for path, _ in snapshot.leaves],
        "metadata": snapshot.metadata,
        "token": snapshot.token,
    }
    files.write_tree(folder, snapshot.token, content)
    files.sync(folder)
    return names


def _check_whole(path: str, saved: dict[str, Any]) -> None:
    """Check that the chunks of an array cover it.

    Raises:
        CheckpointError: they are not.
    """
    if leaves.is_scalar(saved) or not math.prod(saved["shape"]) or saved["dtype"] == "float0":
        return
    sizes = [
        math.prod(end - begin for begin, end in chunk["bounds"])
        for chunk in saved.get("pieces", [])
    ]
    check(
        schema.is_whole(saved.get("pieces", []), saved["shape"]),
        lambda: (
            f"[save] the processes' parts must be the whole array; got {sum(sizes)} elements of "
            f"{leaves.type_text(saved)} at {path or 'the top'}. Fix: save the same tree in all."
        ),
        CheckpointError,
    )


class _Chunk(NamedTuple):
    """A chunk of an array that this process writes; ``leaf_index`` counts all leaves."""

    leaf_index: int
    bounds: leaves.Bounds
    values: Any


def _named_chunks(snapshot: Snapshot) -> dict[str, _Chunk]:
    """The chunks of this process, by their names in the file, which are unique."""
    named: dict[str, _Chunk] = {}
    for leaf_index, (path, leaf) in enumerate(snapshot.leaves):
        for bounds, values in leaf.chunks:
            is_single = len(leaf.chunks) == 1
            suffix = "" if is_single else " " + ",".join(f"{a}:{b}" for a, b in bounds)
            name = f"{path or 'value'}{suffix}"
            if name in named:  # paths of different nodes may be equal as text
                name = f"{name} #{leaf_index}"
            named[name] = _Chunk(leaf_index, bounds, values)
    return named


class Saving:
    """A running save in a background thread, returned by ``save_async``."""

    def __init__(self, path: Path, job: Callable[[], None]) -> None:
        self.path = path
        self._job = job
        self._error: BaseException | None = None
        self._is_raised = False
        # Not a daemon: the interpreter waits for it.
        self._thread = threading.Thread(target=self._run, name=f"save {path}", daemon=False)

    def _run(self) -> None:
        job, self._job = self._job, _nothing
        try:
            job()
        except BaseException as error:
            self._error = error

    def is_done(self) -> bool:
        """Return whether the checkpoint is on disk, or the save has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            Exception: if the writing thread failed: its error, with its traceback.
        """
        self._thread.join()
        if self._error is not None:
            self._is_raised = True
            raise self._error

    def _raise_pending(self) -> None:
        """Wait, and raise an error that was not raised yet."""
        self._thread.join()
        if not self._is_raised:
            self.wait()


def _nothing() -> None:
    """The task after completion: values are released."""


@record(frozen=False)
class _Last:
    """The last started save: there is one at a time."""

    saving: Saving | None = None
    lock: Any = None


_last = _Last(None, threading.RLock())


def _forget() -> None:
    """Reset the state in a forked child, where the writing thread does not exist."""
    _last.saving, _last.lock = None, threading.RLock()


def _raise_at_exit() -> None:
    """Raise the error of a save that was not awaited."""
    wait_for_last()


os.register_at_fork(after_in_child=_forget)
atexit.register(_raise_at_exit)


def wait_for_last() -> None:
    """Wait for the previous save, and raise its error if it was not raised yet."""
    with _last.lock:
        saving, _last.saving = _last.saving, None
        if saving is not None:
            saving._raise_pending()


def start(path: Path, job: Callable[[], None]) -> Saving:
    """Start a save in another thread, after the previous one."""
    with _last.lock:
        wait_for_last()
        saving = Saving(path, job)
        saving._thread.start()
        _last.saving = saving
    return saving


def save(path: str | os.PathLike[str], tree: Any) -> None:
    """Save a pytree; it is on disk when the function returns.

    An existing checkpoint at ``path`` is replaced atomically: a process that is killed before
    leaves the old one.

    In a group of processes, each calling process writes; calling it in process 0 alone is
    sufficient. If arrays have shards in other processes, all processes must call it, and write
    their shards to the same folder.

    Args:
        path: path of the checkpoint, a folder, which is created.
        tree: a pytree of arrays of any shapes and dtypes (of gpuflow, random keys included, and of
            NumPy), and Python numbers, strings and bytes, in any containers. Sharded arrays are
            written shard by shard.

    Raises:
        TypeError: if a leaf has another type, or is traced.
        ValueError: if the path is empty, or containers are nested more than 100 levels deep, as in
            a cycle.
        CheckpointError: if the files cannot be written, as on a full disk, or another process could
            not write its shards. An error of the system is an OSError too, with its errno.
        FileExistsError: if the folder has a ``tree.json`` that ``save`` did not write.
        Exception: if an earlier ``save_async`` failed and its error was not raised yet. Nothing is
            saved then.

    Other files in the folder, which no earlier save wrote, are not changed.

    Example:
        >>> import tempfile
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow import checkpointing
        >>> path = tempfile.mkdtemp() + "/model"
        >>> checkpointing.save(path, {"w": jnp.ones(3, jnp.bfloat16), "step": 7})
        >>> checkpointing.restore(path)
        {'step': 7, 'w': Array([1, 1, 1], dtype=bfloat16)}
    """
    folder = path_of("save", path)
    wait_for_last()
    write(folder, snapshot_of(tree))


def save_async(path: str | os.PathLike[str], tree: Any) -> Saving:
    """Save the current values of a pytree in a background thread.

    Arrays may be donated, deleted and written to as soon as this returns. There is one save at a
    time: the next save, and the exit of the interpreter, wait for it.

    Args:
        path: path of the checkpoint, as for ``save``.
        tree: the pytree to save, as for ``save``.

    Returns:
        A Saving; its ``wait()`` returns when the checkpoint is on disk.

    Raises:
        TypeError, ValueError: as for ``save``.
        Exception: if an earlier ``save_async`` failed and its error was not raised yet. Nothing is
            saved then.

    Cost: CPU arrays are referenced, not copied; GPU and NumPy arrays are copied immediately.

    Example:
        >>> import tempfile
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow import checkpointing
        >>> path = tempfile.mkdtemp() + "/model"
        >>> saving = checkpointing.save_async(path, jnp.arange(3))
        >>> saving.wait()
        >>> checkpointing.restore(path)
        Array([0, 1, 2], dtype=int32)
    """
    folder = path_of("save_async", path)
    wait_for_last()
    snapshot = snapshot_of(tree)
    return start(folder, lambda: write(folder, snapshot))
