"""What a terminal shows of builds that take long: which program, how many kernels, since when.

Nothing is shown in the first two seconds, nor where stderr is no terminal, nor without rich.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

AFTER_SECONDS = 2.0


class building:
    """``with building(equations):`` tells of the block, if it takes long.

    Builds inside of builds belong to the outer one. Cost of a short one on a terminal: a thread
    that waits, 0.1 ms.

    Args:
        equations: how many the program has that is built.
    """

    def __init__(self, equations: int) -> None:
        self._equations = equations
        self._kernels = 0
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._shown: Any = None

    def __enter__(self) -> None:
        if _state.current is None and sys.stderr is not None and sys.stderr.isatty():
            _state.current = self
            self._timer = threading.Timer(AFTER_SECONDS, self._show)
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *exception: object) -> None:
        if self._timer is None:
            return
        _state.current = None
        self._timer.cancel()
        with self._lock:
            self._timer = None
            if self._shown is not None:
                self._shown.stop()

    def add_kernel(self) -> None:
        """Count a kernel that was built."""
        with self._lock:
            self._kernels += 1
            if self._shown is not None:
                self._shown.update(0, description=self._text())

    def _text(self) -> str:
        kernels = f", {self._kernels} kernels so far" if self._kernels else ""
        return f"building a program of {self._equations:,} operations{kernels}"

    def _show(self) -> None:
        rich = _load_rich()
        with self._lock:
            if rich is None or self._timer is None:
                return
            columns = (
                rich.progress.SpinnerColumn(), rich.progress.TextColumn("{task.description}"),
                rich.progress.TimeElapsedColumn(),
            )  # fmt: skip
            console = rich.console.Console(file=sys.stderr)
            self._shown = rich.progress.Progress(*columns, console=console, transient=True)
            self._shown.add_task(self._text(), total=None)
            self._shown.start()


class _State:
    """The build under way that a terminal is told of."""

    current: building | None = None


_state = _State()


def kernel_built() -> None:
    """Count a kernel for the build under way, if there is one to tell of."""
    current = _state.current
    if current is not None:
        current.add_kernel()


def _load_rich() -> ModuleType | None:
    try:
        import rich
        import rich.console
        import rich.progress
    except ImportError:
        return None
    return rich
