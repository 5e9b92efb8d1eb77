"""Size limit of the kernel cache's folder: LRU eviction of entries.

The folder may also hold other files of the user. Only regular files whose names the cache writes
are counted and deleted.

Tests: tests/compiler/test_cache_size.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from gpuflow.base.records import record

# Younger entries are not deleted: another process may still write them, or be about to read them.
_RETAIN_SECONDS = 60.0
# Paths relative to the cache folder. A new kind of file must be added, or it is never evicted. By
# writer: kernels and api/block_tuning.py, targets/cpu/library/blas.py, targets/cpu/codegen/host.py,
# and in each folder unfinished files of private_files.replace_file.
_CACHE_FILE = re.compile(
    r"([0-9a-f]{2})/\1[0-9a-f]{62}\.(?:image|o|cubin|tuned|py|json)"
    r"|blas/lib\w*openblas[\w.-]*\.so[\d.]*"
    r"|processors/[0-9a-f]{64}\.json"
    r"|(?:[0-9a-f]{2}|blas|processors)/\.new-[a-z0-9_]{8}",
    re.ASCII,
)
_CACHE_SUBFOLDER = re.compile(r"[0-9a-f]{2}|blas|processors")
_EVICT_ABOVE, _EVICT_DOWN_TO = 1.0, 0.8  # fractions of the limit at which deletion starts, and ends


@record(frozen=False)
class _EntryFiles:
    """The files of one entry.

    Attributes:
        size: total bytes.
        last_used: time of the last read or write, in seconds since the epoch. Many file systems
            record reads only once a day.
        paths: paths of the files.
    """

    size: int = 0
    last_used: float = 0.0
    paths: list[str] = field(default_factory=list)


def trim(folder: Path, limit: int) -> int:
    """Delete the least recently used entries if the folder holds more than ``limit`` bytes.

    Files that other processes delete at the same time are not an error. It may run while other
    threads and processes read and write entries.

    Args:
        folder: the folder of a ``KernelCache``; it may be missing.
        limit: the limit in bytes.

    Returns:
        The bytes that it holds afterwards.
    """
    entries: dict[str, _EntryFiles] = {}
    for file, status in stored_files(folder):
        entry = entries.setdefault(file.name.split(".")[0] or file.name, _EntryFiles())
        entry.size += status.st_size
        entry.last_used = max(entry.last_used, status.st_atime, status.st_mtime)
        entry.paths.append(file.path)
    total = sum(entry.size for entry in entries.values())
    if total <= limit * _EVICT_ABOVE:
        return total
    latest_evictable = time.time() - _RETAIN_SECONDS
    for entry in sorted(entries.values(), key=lambda entry: entry.last_used):
        if total <= limit * _EVICT_DOWN_TO or entry.last_used > latest_evictable:
            break
        # Delete the .json first: without it, readers ignore the other files.
        for path in sorted(entry.paths, key=lambda path: not path.endswith(".json")):
            Path(path).unlink(missing_ok=True)
        total -= entry.size
    return total


def stored_files(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """The cache's files in a folder, each with its status; other files are skipped.

    Files that another process deletes during the walk are skipped too.
    """
    for subfolder in _scan(folder):
        if subfolder.is_dir(follow_symlinks=False) and _CACHE_SUBFOLDER.fullmatch(subfolder.name):
            for file in _scan(subfolder.path):
                if _CACHE_FILE.fullmatch(f"{subfolder.name}/{file.name}"):
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield file, status


def _scan(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    """The entries of a directory; none if it is missing."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from entries
