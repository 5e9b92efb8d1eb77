"""The folder of the kernel cache, which must be private, because its code is executed.

A user who can write to the folder can run code in this process. So a folder that belongs to another
user, or that others may write to, is refused; the process then uses a temporary one.

Tests: tests/compiler/test_cache_folder.py.
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

    The result is the same path until the process ends, so it is safe to hold.

    Warns:
        CacheWarning: once, if the configured folder is refused.
    """
    configured = config.environment.cache_folder
    return None if configured is None else _verified_or_temporary(Path(configured))


@cache
def _verified_or_temporary(folder: Path) -> Path | None:
    """``folder`` if it is private; else a temporary one, or None if there cannot be one."""
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
    """A new private folder that is deleted when the process ends; None if that fails."""
    try:
        folder = tempfile.mkdtemp(prefix="gpuflow-")  # of mode 0700
    except OSError:
        return None
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner_pid: int) -> None:
    # A forked child runs this handler too, but the folder belongs to its parent.
    if os.getpid() == owner_pid:
        shutil.rmtree(folder, ignore_errors=True)
