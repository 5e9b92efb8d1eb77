"""`gpuflow launch`: one process per GPU, or several on the CPU, as one group.

Tests: tests/cli/test_launch.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from gpuflow.base import variables
from gpuflow.base.config import child_environment, config, launcher_variables
from gpuflow.base.installation import pip_install
from gpuflow.cli.launch_group import GRACE_SECONDS, Group, Start
from gpuflow.cli.launch_keeper import accept_signals, run_supervised
from gpuflow.cli.launch_output import Output, make_folder, say
from gpuflow.cli.problems import CommandError
from gpuflow.cli.worker import run_program
from gpuflow.parallel.processes.detection import detect, visible_gpus
from gpuflow.parallel.processes.messages import new_token, split_address

_DESCRIPTION = """
Starts the program in several processes. Each calls gpuflow.distributed.initialize(), which
assigns its rank. Under srun, mpiexec and torchrun it only initializes the process.
"""
# Set for each process unless they are set already: cores are shared.
_THREAD_VARIABLES = (
    "GPUFLOW_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def add_parser(commands: Any) -> None:
    """Adds the subcommand to argparse's subparsers."""
    parser = commands.add_parser(
        "launch", help="start a program in several processes", description=_DESCRIPTION
    )
    add = parser.add_argument
    add("-n", "--procs", help="processes on this machine (default: one per GPU)")
    add("--nnodes", default=1, help="machines; run the command on each")
    add("--node-rank", default=0, help="the index of this machine, from 0")
    add("--coordinator", metavar="HOST:PORT", help="a free port of machine 0")
    add("--mpi", action="store_true", help="start with mpiexec, and communicate over MPI")
    add("--max-restarts", default=0, metavar="K", help="restart at most K times after a failure")
    add("--log-dir", type=Path, metavar="D", help="store each rank's output in D/rank-K.log")
    add(
        "--watchdog",
        default=0,
        metavar="S",
        help="if no rank makes progress for S seconds, print all stacks and end",
    )
    add(
        "--grace",
        default=GRACE_SECONDS,
        metavar="S",
        help="seconds until ranks that do not end are killed (default: %(default)g)",
    )
    add("-m", "--module", action="store_true", help="run a module, like python -m")
    add("script", help="a Python file, or with -m the name of a module")
    add("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    parser.example = "gpuflow launch -n 4 train.py"
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the program; returns 0, or the status of the process that failed first."""
    _check_program(options)
    said = launcher_variables()
    if _is_started(said):
        run_program(_program(options))
        return 0
    _check(options, said)
    return run_supervised(lambda: _launch(options, said))


def _is_started(said: Mapping[str, str]) -> bool:
    """Whether another launcher has started this process.

    Raises:
        CommandError: a variable holds something else than it should.
    """
    try:
        variables.read(said, "GPUFLOW_COLLECTIVE_TIMEOUT", 300.0)
        return detect(said) is not None
    except ValueError as error:
        raise CommandError(str(error)) from None


def _launch(options: argparse.Namespace, said: Mapping[str, str]) -> int:
    """The launcher itself, in a separate process."""
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, frame: signals.append(got))
    accept_signals()
    return _run_attempts(options, said, signals)


def _program(options: argparse.Namespace) -> list[str]:
    """The arguments of ``python``."""
    return [*(["-m"] if options.module else []), options.script, *options.arguments]


def _check_program(options: argparse.Namespace) -> None:
    if options.module:
        package = options.script.partition(".")[0]
        # Finding a package imports nothing; finding a module in it would import the package.
        here = package and PathFinder.find_spec(package, [os.getcwd()])
        if not here and not (package and importlib.util.find_spec(package)):
            raise CommandError(
                f"-m must be followed by a module; found no {options.script}. Fix: start it in the "
                "folder of the module, or install the module"
            )
    elif not Path(options.script).is_file():
        raise CommandError(
            f"the script must be a file; got {options.script}. Fix: give a path to a .py file, or "
            "-m and a module"
        )


def _check(options: argparse.Namespace, said: Mapping[str, str]) -> None:
    if options.procs is None:
        options.procs = max(1, len(_gpus(said)))
    options.procs = _integer("-n", options.procs, 1)
    options.nnodes = _integer("--nnodes", options.nnodes, 1)
    options.node_rank = _integer("--node-rank", options.node_rank, 0)
    options.max_restarts = _integer("--max-restarts", options.max_restarts, 0)
    options.watchdog = _seconds("--watchdog", options.watchdog)
    options.grace = _seconds("--grace", options.grace)
    if options.node_rank >= options.nnodes:
        raise CommandError(
            f"--node-rank must be from 0 to {options.nnodes - 1}; "
            f"got {options.node_rank}. Fix: number the machines from 0"
        )
    if options.nnodes > 1 and options.mpi:
        raise CommandError("--mpi starts on one machine. Fix: mpiexec --hosts ... gpuflow launch")
    if options.coordinator:
        try:
            split_address(options.coordinator)
        except ValueError as error:
            raise CommandError(str(error)) from None
    elif options.nnodes > 1:
        raise CommandError(
            "several machines need a coordinator. Fix: --coordinator HOST:PORT, a free port of "
            "machine 0"
        )
    if options.nnodes > 1 and "GPUFLOW_TOKEN" not in said:
        raise CommandError(
            "several machines must share a secret. Fix: export GPUFLOW_TOKEN=... on each"
        )
    if options.mpi:
        _mpiexec()
    if options.log_dir is not None:
        make_folder(options.log_dir)


def _run_attempts(options: argparse.Namespace, said: Mapping[str, str], signals: list[int]) -> int:
    for attempt in range(options.max_restarts + 1):
        output = Output(options.log_dir)
        starts = _mpi_start(options) if options.mpi else _rank_starts(options, said, attempt)
        if attempt:
            for start in starts:
                output.note(start.rank or 0, f"[launch] restart {attempt}")
        status = Group(starts, output, options.watchdog, signals, options.grace).run()
        if status == 0 or signals:
            return status
        if attempt < options.max_restarts:
            say(f"restart {attempt + 1} of {options.max_restarts}.")
    return status


def _rank_starts(options: argparse.Namespace, said: Mapping[str, str], attempt: int) -> list[Start]:
    """One process for each rank of this machine."""
    count = options.procs
    address = options.coordinator or f"127.0.0.1:{_free_port()}"
    gpus, token = _gpus(said), said.get("GPUFLOW_TOKEN") or new_token()
    command = (sys.executable, "-m", "gpuflow.cli.worker", *_program(options))
    starts = []
    for local in range(count):
        rank = options.node_rank * count + local
        environment = {
            "GPUFLOW_PROCESS_ID": str(rank),
            "GPUFLOW_NUM_PROCESSES": str(count * options.nnodes),
            "GPUFLOW_LOCAL_ID": str(local),
            "GPUFLOW_LOCAL_SIZE": str(count),
            "GPUFLOW_COORDINATOR": address,
            "GPUFLOW_TOKEN": token,
            "GPUFLOW_RESTART": str(attempt),
        }
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[local % len(gpus)]
        starts.append(Start(rank, command, child_environment(environment, _defaults(count))))
    return starts


def _mpi_start(options: argparse.Namespace) -> list[Start]:
    """The command of mpiexec, which starts the ranks and prefixes output by rank."""
    command = (
        _mpiexec(),
        "-prepend-rank",
        "-n",
        str(options.procs),
        sys.executable,
        "-m",
        "gpuflow.cli.worker",
        *_program(options),
    )
    environment = child_environment({}, _defaults(options.procs))
    return [Start(None, command, environment)]


def _mpiexec() -> str:
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise CommandError(f"--mpi needs mpiexec. Fix: {pip_install('mpi')}")
    return mpiexec


def _integer(option: str, text: object, least: int) -> int:
    """The value of an option.

    Raises:
        CommandError: it is not an integer, or below ``least``.
    """
    if not str(text).isdecimal() or int(str(text)) < least:
        raise CommandError(
            f"{option} must be an integer of at least {least}; got {text}. Fix: {option} {least}"
        )
    return int(str(text))


def _seconds(option: str, text: object) -> float:
    """The value of an option.

    Raises:
        CommandError: it is not a number, or below 0.
    """
    try:
        value = float(str(text))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CommandError(f"{option} must be seconds, 0 or more; got {text}. Fix: {option} 30")
    return value


def _threads(count: int) -> dict[str, str]:
    """Each rank's share of the cores."""
    cores = len(os.sched_getaffinity(0))
    return dict.fromkeys(_THREAD_VARIABLES, str(max(1, cores // count)))


def _defaults(count: int) -> dict[str, str]:
    """Default environment variables of each rank."""
    return {**_threads(count), "GPUFLOW_TRACEBACK_FILTERING": "quiet_remove_frames"}


def _gpus(said: Mapping[str, str]) -> list[str]:
    """The GPUs that ranks may have."""
    return visible_gpus(said) if config.environment.platform in ("", "cuda") else []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
