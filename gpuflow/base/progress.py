"""Progress of builds on a terminal: the program, the number of kernels, and the time.

It is shown once builds that follow each other have taken two seconds in all. It needs a terminal at
stderr, and rich.

Tests: tests/base/test_progress.py.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from types import ModuleType
from typing import Any

AFTER_SECONDS = 2.0
MIN_SECONDS = 0.2  # a build that ends before is not shown, however long others took


class building:
    """``with building(equations):`` shows the block's progress, if it takes long.

    Nested builds belong to the outer one. Cost of a short one on a terminal: a thread
    that waits, 0.1 ms.

    Args:
        equations: the number of equations of the program.
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
            self._timer = threading.Timer(_state.seconds_to_wait(), self._show)
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, *exception: object) -> None:
        if self._timer is None:
            return
        _state.add_build()
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
        others = _state.builds
        before = f", after {others} others in {_state.seconds:.1f} s" if others else ""
        return f"building a program of {self._equations:,} operations{kernels}{before}"

    def _show(self) -> None:
        rich = _load_rich()
        with self._lock:
            if rich is None or self._timer is None:
                return
            columns = (
                rich.progress.SpinnerColumn(),
                rich.progress.TextColumn("{task.description}"),
                rich.progress.TimeElapsedColumn(),
            )
            console = rich.console.Console(file=sys.stderr)
            self._shown = rich.progress.Progress(*columns, console=console, transient=True)
            self._shown.add_task(self._text(), total=None)
            self._shown.start()


class _State:
    """The current build that a terminal shows, and the builds just before it."""

    def __init__(self) -> None:
        self.current: building | None = None
        self.builds = 0
        self.seconds = 0.0
        self._started = self._ended = -math.inf

    def seconds_to_wait(self) -> float:
        """The seconds that a build that starts now may take before it is shown."""
        self._started = time.monotonic()
        if self._started - self._ended > AFTER_SECONDS:  # the program has run meanwhile
            self.builds, self.seconds = 0, 0.0
        return max(AFTER_SECONDS - self.seconds, MIN_SECONDS)

    def add_build(self) -> None:
        """Count the current build, which ends."""
        self._ended = time.monotonic()
        self.builds, self.seconds = self.builds + 1, self.seconds + self._ended - self._started
        self.current = None


_state = _State()


def kernel_built() -> None:
    """Count a kernel for the current build, if there is one."""
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
