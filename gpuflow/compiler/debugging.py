"""Diagnostics of the compiler: GPUFLOW_DEBUG prints to stderr, GPUFLOW_DUMP writes files.

Levels: 1 compiles and cache misses, 2 the program after each pass, 3 KernelIR, 4 generated source,
5 driver programs.

Threads and processes may write to one dump folder at the same time.

Tests: tests/base/test_environment.py.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuflow.base.caches import cache
from gpuflow.base.config import config

_FILE_NAME = re.compile(r"([0-9]{4,})_.*\.txt")


def show(level: int, title: str, text: Callable[[], str]) -> None:
    """Print ``text()`` at this debug level or above; write it to the dump folder if there is one.

    Args:
        level: 1 to 5.
        title: a short title; it is part of the file's name.
        text: makes the text, only if it is shown or written.

    Raises:
        OSError: if the dump folder cannot be written.
    """
    environment = config.environment
    if environment.debug < level and not environment.dump:
        return
    body = text()
    if environment.debug >= level:
        print(f"[gpuflow] {title}\n{body}", file=sys.stderr)
    if environment.dump:
        _write(Path(environment.dump), title.replace(" ", "_").replace("/", "_"), body)


def _write(folder: Path, title: str, body: str) -> None:
    """Write a new file; existing files, of earlier runs or of other programs, stay."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for index in _unused_indices(folder):
            try:
                with open(folder / f"{index:04d}_{title}.txt", "x") as file:
                    file.write(body)
                return
            except FileExistsError:  # another process writes here too
                continue
    except OSError as error:
        raise OSError(
            error.errno,
            f"[config] GPUFLOW_DUMP must be a folder that can be written; got {folder} "
            f"({error.strerror}). Fix: export GPUFLOW_DUMP=/tmp/dump, or unset it.",
        ) from None


@cache
def _unused_indices(folder: Path) -> Iterator[int]:
    """An iterator of indices above those of the files of earlier runs, one for each folder."""
    used_indices = [
        match[1] for path in folder.iterdir() if (match := _FILE_NAME.fullmatch(path.name))
    ]
    return itertools.count(1 + max(map(int, used_indices), default=-1))
