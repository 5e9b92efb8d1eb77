"""Files that only this user can have written, and JSON from outside.

A file is judged through the descriptor that it is then read from, so that nothing can take its
place in between. What stands there instead of a file, such as a FIFO, is refused without waiting.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HAS_OWNERS = hasattr(os, "geteuid")
# Of POSIX; 0 where a system has no such thing. O_NONBLOCK: opening a FIFO does not wait.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_DEEPEST = 64
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[int]:
    """The descriptor of a file that belongs to this user and that nobody else may write.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is a link, no file, or somebody else may have written it.
    """
    descriptor = os.open(path, _FLAGS)
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
    """The content of a file as ``opened`` takes it.

    Raises:
        OSError: as for ``opened``.
    """
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def whose(status: os.stat_result) -> str:
    """Who else may have written a file or folder; "" if nobody."""
    if not _HAS_OWNERS:
        return ""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to user {os.geteuid()}"
    if status.st_mode & _OTHERS_MAY_WRITE:
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def folder_problem(folder: Path) -> str:
    """Why files of a folder are not this user's alone; "" if they are, or it is not there."""
    try:
        # A link tells who chose the folder, which may be one of ours.
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
        path: the file; folders that are not there are made.
        content: all of it, or parts of it in order.
    """
    parts = [content] if isinstance(content, bytes) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def parse_json(text: bytes) -> Any:
    """The value of a JSON text from outside.

    Raises:
        ValueError: it is no JSON, or nested deeper than anything of ours.
    """
    if _is_deep(text):
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    return json.loads(text.decode())


def _is_deep(text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= _DEEPEST:
        return False
    level = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", text)):
        level += 1 if bracket[0] in b"[{" else -1
        if level > _DEEPEST:
            return True
    return False
