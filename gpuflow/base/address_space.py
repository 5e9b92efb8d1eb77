"""Room in the address space, before calls into libraries that end the process without it.

Tests: tests/runtime/test_bad_circumstances.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule

if TYPE_CHECKING:
    import resource
else:
    resource = LazyModule("resource")

_STATUS = Path("/proc/self/statm")  # its first field: pages of the address space (Linux)


def require_address_space(count: int, purpose: str) -> None:
    """Raise MemoryError if a limit of the address space leaves fewer than ``count`` bytes.

    Without a limit (``ulimit -v``), and on systems that do not report the size of a process,
    nothing is checked.

    Args:
        count: bytes.
        purpose: the feature that needs them, for the message.

    Raises:
        MemoryError: if there are fewer.
    """
    if sys.platform != "linux":
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    used = int(_STATUS.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    if limit - used < count:
        raise MemoryError(
            f"[memory] {purpose} needs {count >> 20} MB of address space; got {used >> 20} MB in "
            f"use and a limit of {limit >> 20} MB. Fix: ulimit -v {(used + 2 * count) >> 10}, or "
            "unlimited; pages of it that are not touched take no memory."
        )
