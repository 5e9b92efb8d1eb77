"""The parent of a launcher, which ends processes of a killed launcher.

``gpuflow launch`` forks: the child starts and watches the ranks, the parent waits for it. Each
notices when the other one is killed, and kills all processes that ranks have started, also those in
other sessions. Ranks themselves end with the launcher (``worker.die_with_parent``).

Source: Linux, prctl(2): PR_SET_CHILD_SUBREAPER; proc(5): /proc/pid/stat.

Tests: tests/parallel/test_faults.py, tests/experimental/test_host_arrays.py.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_FORWARDED = (signal.SIGINT, signal.SIGTERM)
_MAX_PASSES = 50  # over processes that were started while others were killed
_EMPTY_PASSES = 3  # without descendants, until none is left
_PASS_SECONDS = 0.02


def run_supervised(work: Callable[[], int]) -> int:
    """Run ``work()`` in a child, to which signals are forwarded; returns its status."""
    become_subreaper()
    sys.stdout.flush()
    sys.stderr.flush()
    # Signals wait until both processes have their handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        # The terminal's Ctrl-C comes to the parent only, which forwards it.
        os.setpgid(0, 0)
        os._exit(_status(work))
    before = {
        number: signal.signal(number, lambda got, frame: _send(child, got)) for number in _FORWARDED
    }
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    try:
        return _wait(child)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(work: Callable[[], int]) -> int:
    status = 1
    try:
        status = work()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    with suppress(OSError, ValueError):  # the reader may be gone
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def accept_signals() -> None:
    """Let signals come that were held back, once there are handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _send(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _wait(child: int) -> int:
    """The status of the child; processes that have lost their parents come here as well."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            break
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    kill_descendants()
    print(
        f"[launch] the launcher was ended by {signal.Signals(-code).name}; killed its processes.",
        file=sys.stderr,
        flush=True,
    )
    return 128 - code


def become_subreaper() -> None:
    """Let descendants whose parents end become children of this process (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill all descendants of this process, which are reparented to it."""
    become_subreaper()
    empty = 0
    for _ in range(_MAX_PASSES):
        found = descendants(os.getpid())
        # A process whose parent ends while /proc is read is missing from one picture.
        empty = 0 if found else empty + 1
        if empty == _EMPTY_PASSES:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PASS_SECONDS)


def descendants(pid: int) -> list[int]:
    """All running descendants of a process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            # The name, in brackets, may hold anything.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
