"""Report of a process for ``gpuflow smi``: a file, written on request.

A process that was started with ``GPUFLOW_SMI=1`` has a thread that looks at a file's time twice a
second. While that is new, ``gpuflow smi`` runs, and the thread writes which arrays there are. The
folder is this user's alone; there are no signals, which programs may use, and no sockets.

Tests: tests/cli/test_smi.py.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.private_files import (
    folder_problem,
    parse_json,
    read_private,
    replace_file,
)
from gpuflow.profiler.memory import live_groups
from gpuflow.runtime.device import in_use
from gpuflow.version import __version__

PERIOD = 0.5  # seconds between two looks
_WATCHED = 4.0  # seconds for which a request holds
_BUSIEST = 0.05  # of the time that may go into looking at arrays
_MAX_GROUPS = 50
_MAX_CHARACTERS = 200  # of a command
_REQUEST = "watched"
# The fields of a file, from ``state_of_process``.
_FORM: dict[str, type | tuple[type, ...]] = {
    "pid": int,
    "command": str,
    "version": str,
    "time": (int, float),
    "devices": dict,
    "arrays": int,
    "bytes": int,
    "groups": list,
}


class FolderError(RuntimeError):
    """The folder may be written by others."""


def runtime_folder() -> Path:
    """The folder for files of running processes, made if need be.

    Raises:
        FolderError: it is not this user's alone.
        OSError: it cannot be made.
    """
    folder = config.environment.runtime_folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    problem = folder_problem(folder)
    if problem:
        raise FolderError(
            f"[smi] the folder of running processes must be this user's alone; got {folder}, "
            f"which {problem}. Fix: set XDG_RUNTIME_DIR or TMPDIR to a folder of your own."
        )
    return folder


def state_of_process() -> dict[str, Any]:
    """Contents of the file: the process, its devices' memory, and groups of its arrays."""
    groups = live_groups()
    drivers = {str(device): device.driver for device in list(in_use.devices)}
    return {
        "pid": os.getpid(),
        "command": " ".join(sys.argv)[:_MAX_CHARACTERS],
        "version": __version__,
        "time": time.time(),
        "devices": {name: driver.memory_stats() for name, driver in drivers.items()},
        "arrays": sum(group.count for group in groups),
        "bytes": sum(group.bytes for group in groups),
        "groups": [
            {
                "device": group.device,
                "type": group.type,
                "count": group.count,
                "bytes": group.bytes,
                "line": "" if group.line is None else str(group.line),
            }
            for group in groups[:_MAX_GROUPS]
        ],
    }


def start() -> None:
    """Begin to publish, now and in children that fork."""
    _begin()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_begin)


def _begin() -> None:
    try:
        folder = runtime_folder()
    except (OSError, FolderError) as error:
        print(f"gpuflow: GPUFLOW_SMI has no effect: {error}", file=sys.stderr)
        return
    path = folder / f"{os.getpid()}.json"
    atexit.register(_remove, path, os.getpid())
    threading.Thread(target=_publish, args=(folder, path), name="gpuflow smi", daemon=True).start()


def _remove(path: Path, pid: int) -> None:
    # Children inherit functions that run at exit.
    if os.getpid() == pid and state_in(path) is not None:
        path.unlink(missing_ok=True)


def _publish(folder: Path, path: Path) -> None:
    request, pause = folder / _REQUEST, PERIOD
    while not sys.is_finalizing():
        time.sleep(pause)
        pause = PERIOD
        with suppress(OSError):  # there was no request yet, or the folder is gone
            if time.time() - request.stat().st_mtime < _WATCHED:
                begun = time.perf_counter()
                if path.exists() and state_in(path) is None:
                    continue  # another user's file
                replace_file(path, json.dumps(state_of_process()).encode())
                pause = max(PERIOD, (time.perf_counter() - begun) / _BUSIEST)


# --- reader -------------------------------------------------------------------------------------


def request(folder: Path) -> None:
    """Ask all processes to write, for some seconds.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / _REQUEST
    path.touch(mode=0o600)
    os.utime(path)


def processes(folder: Path) -> list[Mapping[str, Any]]:
    """Return the reports of processes, by id; files of ended processes are removed.

    Files of another form, whatever their names, are neither read nor removed.
    """
    states = []
    for path in sorted(folder.glob("*.json"), key=lambda path: (len(path.name), path.name)):
        state = state_in(path)
        if state is None:
            continue
        if _is_running(state["pid"]):
            states.append(state)
        else:
            path.unlink(missing_ok=True)
    return states


def state_in(path: Path) -> Mapping[str, Any] | None:
    """Return the report of a process from its file; None if the file is invalid."""
    with suppress(OSError, ValueError):
        state = parse_json(read_private(path))
        has_form = isinstance(state, dict) and state.keys() == _FORM.keys()
        if has_form and all(isinstance(state[name], kind) for name, kind in _FORM.items()):
            is_named = state["pid"] > 0 and path.name == f"{state['pid']}.json"
            return state if is_named else None
    return None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's has the number
        return False
    return True
