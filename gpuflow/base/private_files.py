"""Regular files, files that only this user can have written, and untrusted JSON.

A file is checked through the descriptor that it is then read from, so that nothing can replace it
in between. Anything that is not a regular file, such as a FIFO, is refused without waiting.

Tests: tests/base/test_private_files.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HAS_OWNERS = hasattr(os, "geteuid")
# Of POSIX; 0 where a system does not have the flag. O_NONBLOCK: opening a FIFO does not wait.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a link"),
)
DEEPEST = 64
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


def kind_of(mode: int) -> str:
    """The kind of something that is not a regular file, from ``stat``'s mode: "a FIFO"."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "not a file")


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file, or a link to one, for reading.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if the path is something else, such as a FIFO, which is not waited for.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{kind_of(mode)}, not a regular file", os.fspath(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """The descriptor of a file that belongs to this user and that other users cannot write.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is a link, not a file, or another user may have written it.
    """
    descriptor = os.open(path, _FLAGS | _NO_LINKS)
    try:
        status = os.fstat(descriptor)
        what = "" if stat.S_ISREG(status.st_mode) else "is no file"
        what = what or whose(status)
        if what:
            raise PermissionError(f"{os.fspath(path)} {what}")
        yield descriptor
    finally:
        os.close(descriptor)


def read_private(path: str | os.PathLike[str]) -> bytes:
    """The content of a file that passes the checks of ``opened``.

    Raises:
        OSError: as for ``opened``.
    """
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def whose(status: os.stat_result) -> str:
    """Describe other users who may have written a file or folder; "" if there are none."""
    if not _HAS_OWNERS:
        return ""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    if status.st_mode & _OTHERS_MAY_WRITE:
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def folder_problem(folder: Path) -> str:
    """Describe other users who may write files of a folder; "" if none, or if it is missing."""
    try:
        # The owner of a link may have redirected it to one of our folders.
        link = os.lstat(folder)
        if stat.S_ISLNK(link.st_mode) and _HAS_OWNERS and link.st_uid not in (0, os.geteuid()):
            return f"is a link that belongs to user {link.st_uid}"
        status = os.stat(folder)
    except OSError:
        return ""
    return whose(status) if stat.S_ISDIR(status.st_mode) else ""


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file so that other processes see it whole or not at all; only this user reads it.

    Args:
        path: the file; missing folders are created.
        content: all of it, or chunks of it in order.
    """
    chunks = [content] if isinstance(content, bytes) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(chunks)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def parse_json(text: bytes, deepest: int = DEEPEST) -> Any:
    """The value of an untrusted JSON text.

    Args:
        text: the bytes, in UTF-8.
        deepest: the maximum number of levels of lists and objects.

    Raises:
        ValueError: if it is not JSON, or is nested deeper.
    """
    if _is_deep(text, deepest):
        raise ValueError(f"it is nested deeper than {deepest} levels")
    return json.loads(text.decode())


def _is_deep(text: bytes, deepest: int = DEEPEST) -> bool:
    if text.count(b"[") + text.count(b"{") <= deepest:
        return False
    level = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", text)):
        level += 1 if bracket[0] in b"[{" else -1
        if level > deepest:
            return True
    return False
