"""The folder of the kernel cache, which must be private, because its code is executed.

A user who can write to the folder can run code in this process. So a folder that belongs to another
user, or that others may write to, is refused; the process then uses a temporary one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.errors import CacheWarning
from gpuflow.base.private_files import folder_problem
from gpuflow.base.util import warn


def cache_folder() -> Path | None:
    """The folder of this process's kernel cache; None if nothing is stored.

    Warns:
        CacheWarning: once, if the configured folder is refused.
    """
    configured = config.environment.cache_folder
    return None if configured is None else _checked(Path(configured))


@cache
def _checked(folder: Path) -> Path | None:
    with suppress(OSError):  # reported when the cache writes to the folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    problem = folder_problem(folder)
    if not problem:
        return folder
    warn(
        "[cache] the kernel cache folder must be writable by this user only, because gpuflow runs "
        f"the code in it; {folder} {problem}. Kernels of this process are not stored. Fix: chmod "
        f"700 {folder} if no other user wrote to it, or set GPUFLOW_CACHE_DIR to another folder.",
        CacheWarning,
    )
    return _temporary_folder()


def _temporary_folder() -> Path | None:
    try:
        folder = tempfile.mkdtemp(prefix="gpuflow-")  # of mode 0700
    except OSError:
        return None
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, process: int) -> None:
    # A forked child runs this handler too, but the folder belongs to its parent.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
