"""Groups of real processes for tests: started with timeouts, and all ended in any case."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 60.0


@dataclass
class Ended:
    """How one process of a group ended."""

    status: int
    output: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(**values: str) -> dict[str, str]:
    """The environment of a process: one thread, and nothing of a launcher around the tests."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "PMI_", "OMPI_", "MASTER_", "XLA_", "OPENBLAS_CORETYPE"))
    }
    paths = [str(ROOT), str(Path(__file__).parent)]
    variables |= {
        "PYTHONPATH": os.pathsep.join(paths),
        "GPUFLOW_NUM_THREADS": "1",
        "GPUFLOW_PLATFORM": "cpu",
        "TEST_OWNER": str(os.getpid()),
    }
    return variables | values


def start(command: list[str], values: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**(values or {})),
        start_new_session=True,
    )


def finish(processes: list[subprocess.Popen], timeout: float = TIMEOUT) -> list[Ended]:
    """Wait for all; whoever is not done in time is killed, with all its children."""
    deadline = time.monotonic() + timeout
    ended = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            ended.append(Ended(process.returncode, output))
    finally:
        for process in processes:
            kill_group(process)
    return ended


def kill_group(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_group(
    script: Path, size: int, *arguments: str, timeout: float = TIMEOUT, **values: str
) -> list[Ended]:
    """``python script rank size port arguments`` for each rank."""
    port = str(free_port())
    token = {"GPUFLOW_TOKEN": "of the tests", **values}
    processes = [
        start([sys.executable, str(script), str(rank), str(size), port, *arguments], token)
        for rank in range(size)
    ]
    return finish(processes, timeout)


def mpiexec() -> str | None:
    """The mpiexec beside this Python, or any other."""
    beside_python = Path(sys.executable).with_name("mpiexec")
    return str(beside_python) if beside_python.exists() else shutil.which("mpiexec")


def children_of(pid: int) -> list[int]:
    """Processes whose session is that of ``pid``: what a group left behind."""
    children = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                children.append(int(folder.name))
    return children


def left_behind() -> list[int]:
    """Processes that this one has started, whatever their sessions are: they have its mark."""
    mark = f"TEST_OWNER={os.getpid()}".encode()
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if mark in _read(path).split(b"\0")
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
