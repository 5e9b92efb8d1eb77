"""Reading the files of a checkpoint, with their form and their checksums checked.

Tests: tests/checkpointing/test_forgeries.py, tests/checkpointing/test_damage.py,
tests/checkpointing/test_round_trips.py.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from gpuflow.base.errors import CheckpointError, check
from gpuflow.base.private_files import open_regular, parse_json
from gpuflow.checkpointing.leaves import FILE_DTYPES, in_file
from gpuflow.checkpointing.ownership import TOKEN, TREE
from gpuflow.checkpointing.schema import Malformed, check_content, check_header, shown
from gpuflow.checkpointing.structure import DEEPEST

FORMAT = "gpuflow checkpoint 1"
# Each level of containers is two levels of JSON.
_DEEPEST_JSON = 2 * DEEPEST + 16


class SystemFileError(CheckpointError, OSError):
    """A checkpoint file that the system cannot write or read; ``errno`` is the reason."""

    def __init__(self, message: str, error: OSError, path: Path) -> None:
        super().__init__(message)
        self.errno, self.strerror, self.filename = error.errno, error.strerror, str(path)

    def __str__(self) -> str:
        return str(self.args[0])


def path_of(op: str, path: str | os.PathLike[str]) -> Path:
    """The folder that a call names.

    Raises:
        TypeError, ValueError: if it is not a path, or an empty one.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    check(
        isinstance(text, str),
        lambda: (
            f"[{op}] the path must be a str or pathlib.Path; got a {type(path).__name__}. "
            "Fix: 'runs/model'."
        ),
    )
    check(
        text != "" and "\0" not in text,
        lambda: (
            f"[{op}] the path must name a folder; got {text!r}. "
            "Fix: 'runs/model', or '.' for the current folder."
        ),
        ValueError,
    )
    return Path(text)


def canonical(content: dict[str, Any]) -> str:
    """The canonical text, whose checksum is in tree.json."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def checksum(array: np.ndarray) -> int:
    """The CRC-32 of an array's bytes, in row-major order."""
    return zlib.crc32(bytes_of(array))


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def read_tree(folder: Path) -> dict[str, Any]:
    """The content of the folder's ``tree.json``, as passed to ``write_tree``.

    Raises:
        FileNotFoundError: if there is no complete checkpoint.
        CheckpointError: if the file is damaged, or of another format.
    """
    path = folder / TREE
    try:
        with opened(path) as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"[restore] a checkpoint is a folder with a {TREE}; got {folder}, which has none. "
            "Fix: give the path that was saved to; a save that was cut short leaves no checkpoint."
        ) from None
    try:
        document = parse_json(text, _DEEPEST_JSON)
        version, content, expected = document["format"], document["content"], document["crc32"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, f"no JSON text of ours ({error})") from None
    check(
        version == FORMAT,
        lambda: (
            f"[restore] the format must be {FORMAT!r}; got {shown(version)} in {folder}. "
            "Fix: read it with the version of gpuflow that wrote it."
        ),
        CheckpointError,
    )
    if zlib.crc32(canonical(content).encode()) != expected:
        raise damaged(path, "another checksum than it had when it was written")
    try:
        check_content(content)
    except Malformed as error:
        raise damaged(path, str(error)) from None
    return content


def token_of(folder: Path) -> str | None:
    """The token of the folder's checkpoint, without a check of the rest; None: it is not known."""
    with suppress(OSError, ValueError, KeyError, TypeError), open_file(folder / TREE) as file:
        token = parse_json(file.read(), _DEEPEST_JSON)["content"]["token"]
        return token if TOKEN.fullmatch(token) else None
    return None


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file of a checkpoint, open for reading.

    Raises:
        FileNotFoundError, NotADirectoryError: if it is missing.
        CheckpointError: which is an OSError too, if it cannot be read or is not a regular file.
    """
    file = open_file(path)
    try:
        yield file
    finally:
        file.close()


def open_file(path: Path) -> BufferedReader:
    """As ``opened``, but the caller closes the file."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise SystemFileError(
            f"[restore] files of a checkpoint must be regular files that can be read; got "
            f"{error.strerror} at {path}. Fix: restore an earlier checkpoint, or give this process "
            "the right to read it.",
            error,
            path,
        ) from error


def damaged(path: Path, what: str) -> CheckpointError:
    """Return the error for a file that differs from the written data."""
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
        self._file = open_file(path)
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
        header = parse_json(self._file.read(length))
        check_header(header, size - 8 - length)
        return 8 + length, header

    def check_array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """Check that the file has an array of this name, dtype and shape.

        Raises:
            CheckpointError: if it does not.
        """
        entry = self._header.get(name)
        if entry is None:
            raise damaged(self.path, f"no array {shown(name)}")
        found, expected = (entry["dtype"], entry["shape"]), (FILE_DTYPES[dtype.name], list(shape))
        if found != expected:
            raise damaged(self.path, f"{shown(found)} for {shown(name)}, of {expected}")

    def read(self, name: str, dtype: np.dtype, shape: tuple[int, ...], crc: int) -> np.ndarray:
        """Read a new array, one of those that ``check_array`` found.

        Raises:
            CheckpointError: if its bytes differ from those that were written.
        """
        array = np.empty(shape, dtype)
        self._file.seek(self._start + self._header[name]["data_offsets"][0])
        read = self._file.readinto(bytes_of(array)) if array.nbytes else 0
        if read != array.nbytes or checksum(array) != crc:
            raise damaged(self.path, f"other bytes for {shown(name)}")
        return array

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_checkpoint(folder: Path) -> tuple[dict[str, Any], list[ArrayFile]]:
    """The content of a checkpoint, and its files, opened.

    They stay readable while another process saves over them.

    Raises:
        FileNotFoundError, CheckpointError: as for ``read_tree``; or if a file is missing.
    """
    content = read_tree(folder)
    while True:
        opened: list[ArrayFile] = []
        try:
            for name in content["files"]:
                opened.append(ArrayFile(folder / name))
            _check_chunks(content, opened)
            return content, opened
        except FileNotFoundError as error:
            close_all(opened)
            newer = read_tree(folder)  # another process may have saved
            if newer["files"] == content["files"]:
                raise damaged(folder, f"no {Path(error.filename).name}") from None
            content = newer
        except BaseException:
            close_all(opened)
            raise


def _check_chunks(content: dict[str, Any], files: list[ArrayFile]) -> None:
    for leaf in content["leaves"]:
        for chunk in leaf.get("pieces", []):
            shape = tuple(end - begin for begin, end in chunk["bounds"])
            files[chunk["file"]].check_array(chunk["name"], *in_file(leaf["dtype"], shape))


def close_all(files: list[ArrayFile]) -> None:
    """Close files."""
    for file in files:
        file.close()
