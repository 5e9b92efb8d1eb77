"""Entry point of processes of `gpuflow launch`: join the group, then run the script.

Tests: tests/experimental/test_host_arrays.py.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gpuflow.base import variables
from gpuflow.base.config import launcher_variables
from gpuflow.parallel.processes import distributed

PROGRESS_SECONDS = 0.25
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


def main(arguments: Sequence[str]) -> None:
    """Join the group and run ``arguments``: a program and its arguments."""
    said = launcher_variables()
    parent = variables.read(said, "GPUFLOW_LAUNCHER_PID", 0)
    if parent:
        die_with_parent(parent)
    run_program(arguments, said.get("GPUFLOW_WATCHDOG"))


def run_program(arguments: Sequence[str], progress_folder: str | None = None) -> None:
    """Initialize this process, and run a program as if Python had been given it.

    Args:
        arguments: the arguments of ``python``: a script, or ``-m`` and a module, and further ones.
        progress_folder: where the watchdog looks; None: there is none.
    """
    as_module = arguments[0] == "-m"
    program, *rest = arguments[1:] if as_module else arguments
    # Whole lines at once: mpiexec prefixes each chunk that arrives with the rank.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    # The launcher asks for all stacks by this signal, when nothing moves any more.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    distributed.initialize_by_launcher()
    if progress_folder:
        threading.Thread(target=_report, args=(Path(progress_folder),), daemon=True).start()
    sys.argv = [program, *rest]
    sys.path[0] = os.getcwd() if as_module else str(Path(program).resolve().parent)
    try:
        if as_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            distributed.fail(ended)
        raise


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when the launcher ends for any reason (Linux)."""
    try:
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it was gone already
        os._exit(1)


def _report(folder: Path) -> None:
    """Report progress to the watchdog: process id, and the number of started transfers."""
    path = folder / str(distributed.world().rank)
    fresh = path.with_suffix(".new")
    while True:
        fresh.write_text(f"{os.getpid()} {distributed.progress()}")
        fresh.replace(path)
        time.sleep(PROGRESS_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
