"""Systems and builds of Python that gpuflow supports.

Tests: tests/base/test_system.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

_SYSTEM = "linux"


def check_system() -> None:
    """Refuse a Python without the global interpreter lock; warn about systems that are not Linux.

    Raises:
        ImportError: if threads run at once (a free-threaded build, without ``PYTHON_GIL=1``).

    Warns:
        RuntimeWarning: if the system is not Linux.
    """
    # Donation counts references, and caches are filled without locks: both need the global
    # interpreter lock.
    is_gil_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # from 3.13
    if is_gil_enabled is not None and not is_gil_enabled():
        raise ImportError(
            "[import] gpuflow needs Python's global interpreter lock; got a free-threaded Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} that runs without it. Fix: start Python "
            "with PYTHON_GIL=1, or use a build that is not free-threaded."
        )
    if sys.platform != _SYSTEM:
        warnings.warn(
            f"[import] gpuflow supports Linux; got {sys.platform!r}, where no test has run. Fix: "
            "use Linux: on Windows in WSL 2, on macOS in a container or virtual machine.",
            RuntimeWarning,
            stacklevel=2,
        )
