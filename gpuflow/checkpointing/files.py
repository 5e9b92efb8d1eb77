"""Files of a checkpoint: arrays in safetensors files, and a JSON file that makes them count.

    folder/
        arrays-<token>-<process>.safetensors    whole before the next file names it
        tree.json                               replaced in one step: the checkpoint

A folder holds a checkpoint as soon as it has a ``tree.json``, which names the files with arrays. A
later save writes other files beside them, replaces ``tree.json``, and then deletes what that no
longer names. Whoever is killed in between leaves the earlier checkpoint, and files that nobody
reads; the next save deletes them.
"""

from __future__ import annotations

import fcntl
import json
import operator
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.errors import CheckpointError, check

TREE = "tree.json"
FORMAT = "gpuflow checkpoint 1"
_ARRAYS = "arrays-{token}-{process}.safetensors"


def write_arrays(
    folder: Path, token: str, process: int, arrays: Mapping[str, np.ndarray]
) -> tuple[str, dict[str, int]]:
    """Write arrays into a new file of the folder, which is on the disk when this returns.

    Args:
        folder: of the checkpoint.
        token, process: which save it is, and of which process.
        arrays: by name, of dtypes that the format has.

    Returns:
        the file's name, and the checksum of each array's bytes.

    Raises:
        ImportError: safetensors is not installed.
    """
    save_file = require_safetensors()
    name = _ARRAYS.format(token=token, process=process)
    whole = {key: np.ascontiguousarray(x).reshape(x.shape) for key, x in arrays.items()}
    sums = {key: checksum(x) for key, x in whole.items()}
    try:
        save_file(whole, folder / name, metadata={"format": FORMAT})
        sync(folder / name)
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    return name, sums


def require_safetensors() -> Any:
    """``safetensors.numpy.save_file``.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ImportError(
            f"[checkpointing] safetensors must be installed to save; got: {error}. "
            'Fix: pip install "gpuflow[checkpoint]".'
        ) from error
    return save_file


def write_tree(folder: Path, token: str, content: dict[str, Any]) -> None:
    """Make ``content``, and the files that it names, the checkpoint of the folder."""
    text = _canonical(content)
    document = {"format": FORMAT, "crc32": zlib.crc32(text.encode()), "content": content}
    new = folder / f"tree-{token}.json"
    try:
        with open(new, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / TREE)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def delete_failed(folder: Path, names: list[str]) -> None:
    """Delete files of a save that failed, unless it had come to count, as by Ctrl-C behind that."""
    try:
        kept = read_tree(folder)["files"]
    except FileNotFoundError:
        kept = []
    except CheckpointError:  # nobody knows
        return
    for name in names:
        if name not in kept:
            (folder / name).unlink(missing_ok=True)


def delete_unnamed(folder: Path, names: list[str]) -> None:
    """Delete what earlier saves left: half-written trees, and arrays in files besides ``names``."""
    for pattern in ("arrays-*.safetensors", "tree-*", "failed-*"):
        for path in folder.glob(pattern):
            if path.name not in names:
                path.unlink(missing_ok=True)


def delete(folder: Path) -> None:
    """Delete a checkpoint: from the first step on it does not count as one."""
    (folder / TREE).unlink(missing_ok=True)
    sync(folder)
    delete_unnamed(folder, [])
    with suppress(OSError):  # somebody keeps other files there
        folder.rmdir()


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def checksum(array: np.ndarray) -> int:
    """The CRC-32 of an array's bytes, in row-major order."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


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
        NotADirectoryError: something else is there.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        check(
            folder.is_dir(),  # another process was first
            lambda: (
                f"[save] a checkpoint is a folder; got the file {folder}. Fix: give another path."
            ),
            NotADirectoryError,
        )
    sync(folder.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process writes into the folder, and keep others from it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing is not enough: children that were forked meanwhile have the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


# --- reading -------------------------------------------------------------------------------


def read_tree(folder: Path) -> dict[str, Any]:
    """What ``write_tree`` was given.

    Raises:
        FileNotFoundError: there is no complete checkpoint.
        CheckpointError: the file is damaged, or of another format.
    """
    try:
        text = (folder / TREE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"[restore] a checkpoint is a folder with a {TREE}; got {folder}, which has none. "
            "Fix: give the path that was saved to; a save that was cut short leaves no checkpoint."
        ) from None
    try:
        document = json.loads(text)
        known, content, wanted = document["format"], document["content"], document["crc32"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder / TREE, f"no JSON text of ours ({error})") from None
    check(
        known == FORMAT,
        lambda: (
            f"[restore] the format must be {FORMAT!r}; got {known!r} in {folder}. "
            "Fix: read it with the version of gpuflow that wrote it."
        ),
        CheckpointError,
    )
    if zlib.crc32(_canonical(content).encode()) != wanted:
        raise damaged(folder / TREE, "another checksum than it had when it was written")
    return content


def damaged(path: Path, what: str) -> CheckpointError:
    """The error for a file that is not what was written."""
    return CheckpointError(
        f"[restore] the files of a checkpoint must be as they were written; got {what} in {path}. "
        "Fix: restore an earlier checkpoint."
    )


class ArrayFile:
    """A safetensors file that is read array by array; it may be deleted while it is open.

    The library's own reader for NumPy does not know the dtypes of 8 bits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb")  # noqa: SIM115
        try:
            self._start, self._header = self._read_header()
        except (ValueError, UnicodeDecodeError) as error:
            self.close()
            raise damaged(path, f"a header that cannot be read ({error})") from None

    def _read_header(self) -> tuple[int, dict[str, Any]]:
        length = int.from_bytes(self._file.read(8), "little")
        size = os.fstat(self._file.fileno()).st_size
        if not 0 < length <= size - 8:
            raise ValueError(f"{length} bytes of header in {size}")
        header = json.loads(self._file.read(length))
        if not isinstance(header, dict):
            raise ValueError("no JSON object")
        return 8 + length, header

    def read(self, name: str, dtype: np.dtype, shape: tuple[int, ...], crc: int) -> np.ndarray:
        """An array of its own.

        Raises:
            CheckpointError: it is not there, or is not what was written.
        """
        try:
            begin, end = map(operator.index, self._header[name]["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise damaged(self.path, f"no array {name!r}") from None
        array = np.empty(shape, dtype)
        if begin < 0 or end - begin != array.nbytes:
            raise damaged(self.path, f"{end - begin} bytes for {name!r} of {array.nbytes}")
        self._file.seek(self._start + begin)
        read = self._file.readinto(array.reshape(-1).view(np.uint8).data) if array.nbytes else 0
        if read != array.nbytes or checksum(array) != crc:
            raise damaged(self.path, f"other bytes for {name!r}")
        return array

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_checkpoint(folder: Path) -> tuple[dict[str, Any], list[ArrayFile]]:
    """The content of a checkpoint, and its files, opened.

    They stay readable while another process saves over them.

    Raises:
        FileNotFoundError, CheckpointError: as for ``read_tree``; or a file is missing.
    """
    content = read_tree(folder)
    while True:
        opened: list[ArrayFile] = []
        try:
            for name in content["files"]:
                if Path(name).name != name:
                    raise damaged(folder / TREE, f"the file {name!r} of another folder")
                opened.append(ArrayFile(folder / name))
            return content, opened
        except FileNotFoundError as error:
            close_all(opened)
            newer = read_tree(folder)  # somebody saved in between
            if newer["files"] == content["files"]:
                raise damaged(folder, f"no {Path(error.filename).name}") from None
            content = newer


def close_all(files: list[ArrayFile]) -> None:
    """Let go of files."""
    for file in files:
        file.close()
