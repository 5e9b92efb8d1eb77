"""What the compiler shows on request: GPUFLOW_DEBUG prints to stderr, GPUFLOW_DUMP writes files.

Levels: 1 compiles and cache misses, 2 the program after each pass, 3 KernelIR, 4 generated source,
5 driver programs.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from gpuflow.base.config import config

_numbers = itertools.count()


def show(level: int, title: str, text: Callable[[], str]) -> None:
    """Print ``text()`` at this debug level or above; write it to the dump folder if there is one.

    Args:
        level: 1 to 5.
        title: one word or a few; with a number it names the file.
        text: makes the text, only if somebody wants it.
    """
    environment = config.environment
    if environment.debug < level and not environment.dump:
        return
    body = text()
    if environment.debug >= level:
        print(f"[gpuflow] {title}\n{body}", file=sys.stderr)
    if environment.dump:
        name = title.replace(" ", "_").replace("/", "_")
        _write(Path(environment.dump), f"{next(_numbers):04d}_{name}.txt", body)


def _write(folder: Path, name: str, body: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body)
    except OSError as error:
        raise OSError(
            error.errno,
            f"[config] GPUFLOW_DUMP must be a folder that can be written; got {folder} "
            f"({error.strerror}). Fix: export GPUFLOW_DUMP=/tmp/dump, or unset it.",
        ) from None
