"""Cluster detection: rank, size and rendezvous address, from the launcher's variables.

Supported launchers: ``gpuflow launch``, ``torchrun``, Slurm's ``srun``, and the ``mpiexec`` of
MPICH, Open MPI and their derivatives.

Tests: tests/parallel/test_distributed.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuflow.base import variables
from gpuflow.base.records import record

Variables = Mapping[str, str]


@record
class Cluster:
    """Information from a launcher.

    Attributes:
        kind: the launcher: "launch", "torchrun", "slurm" or "mpi".
        rank, size: the rank of this process, and the number of processes.
        local_rank, local_size: the same on its machine; size 0 means unknown.
        address: ``host:port`` of the rendezvous, or None.
        token: the shared token of the group, or None.
    """

    kind: str
    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 0
    address: str | None = None
    token: str | None = None


def _integer(environ: Variables, name: str, minimum: int = 0) -> int:
    """The value of a variable of another launcher; ``minimum`` if it is not set."""
    text = environ.get(name, str(minimum))
    return variables.value_of(variables.integer(minimum), name, text)


def _launch(environ: Variables) -> Cluster | None:
    if not environ.get("GPUFLOW_PROCESS_ID") or not environ.get("GPUFLOW_NUM_PROCESSES"):
        return None
    return Cluster(
        "launch",
        variables.read(environ, "GPUFLOW_PROCESS_ID", 0),
        variables.read(environ, "GPUFLOW_NUM_PROCESSES", 1),
        variables.read(environ, "GPUFLOW_LOCAL_ID", 0),
        variables.read(environ, "GPUFLOW_LOCAL_SIZE", 0),
        environ.get("GPUFLOW_COORDINATOR"),
        environ.get("GPUFLOW_TOKEN"),
    )


def _torchrun(environ: Variables) -> Cluster | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(environ):
        return None
    # MASTER_PORT itself may be used by torchrun's store.
    port = _integer(environ, "MASTER_PORT") + 1
    run = (
        f"{environ.get('TORCHELASTIC_RUN_ID', '')} {environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    )
    return Cluster(
        "torchrun",
        _integer(environ, "RANK"),
        _integer(environ, "WORLD_SIZE", 1),
        _integer(environ, "LOCAL_RANK"),
        _integer(environ, "LOCAL_WORLD_SIZE"),
        f"{environ['MASTER_ADDR']}:{port}",
        environ.get("GPUFLOW_TOKEN") or _common("torchrun", run, environ["MASTER_PORT"]),
    )


def _slurm(environ: Variables) -> Cluster | None:
    if not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"} <= set(environ):
        return None
    if "SLURM_STEP_ID" not in environ and "SLURM_STEP_NODELIST" not in environ:
        return None  # in the job's script, outside of srun
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "localhost")
    job, step = _integer(environ, "SLURM_JOB_ID"), _integer(environ, "SLURM_STEP_ID")
    # Derived from the job: equal for all its processes, and different for other jobs.
    port = 61440 + (job + 7 * step) % 4096
    steps = "SLURM_STEP_NUM_TASKS" in environ
    here = re.match(r"\d+", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as "4(x2)"
    return Cluster(
        "slurm",
        _integer(environ, "SLURM_PROCID"),
        _integer(environ, "SLURM_STEP_NUM_TASKS" if steps else "SLURM_NTASKS", 1),
        _integer(environ, "SLURM_LOCALID"),
        int(here[0]) if here else 0,
        f"{first_host(nodes)}:{port}",
        environ.get("GPUFLOW_TOKEN") or _common("slurm", str(job), str(step)),
    )


_MPI = (  # rank, size, local rank, local size
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
)


def _mpi(environ: Variables) -> Cluster | None:
    for rank, size, local_rank, local_size in _MPI:
        if rank in environ and size in environ:
            local = _integer(environ, local_rank), _integer(environ, local_size)
            return Cluster("mpi", _integer(environ, rank), _integer(environ, size, 1), *local)
    return None


def _common(*texts: str) -> str:
    """A token from public data: it separates groups, but is not secret."""
    return hashlib.sha256("/".join(texts).encode()).hexdigest()


DETECTORS: dict[str, Callable[[Variables], Cluster | None]] = {
    "launch": _launch,
    "torchrun": _torchrun,
    "slurm": _slurm,
    "mpi": _mpi,
}


def detect(environ: Variables, method: str | None = None) -> Cluster | None:
    """Return the information of the first launcher that is detected, or of ``method``.

    Raises:
        ValueError: if there is no such method, or a launcher's variable has a bad value.
    """
    aliases = {"mpi4py": "mpi", "gpuflow": "launch"}
    name = aliases.get(method or "", method)
    if name is not None and name not in DETECTORS:
        raise ValueError(
            f"[distributed] cluster_detection_method must be one of {', '.join(DETECTORS)}; got "
            f"{method!r}. Fix: leave it out."
        )
    for known, detector in DETECTORS.items():
        cluster = detector(environ) if name in (None, known) else None
        if cluster is not None:
            return cluster
    return None


def visible_gpus(environ: Variables) -> list[str]:
    """The GPUs of this machine that we may use, in the form of CUDA_VISIBLE_DEVICES.

    It does not load the CUDA driver: a process that starts others must not hold a GPU.
    """
    if "CUDA_VISIBLE_DEVICES" in environ:
        named = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        return [name for name in named if name and name != "-1"]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(k) for k, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


def process_gpus(
    cluster: Cluster, local_device_ids: int | Sequence[int] | None, visible: Sequence[str]
) -> list[str] | None:
    """The GPUs of this process; None means all visible ones.

    ``gpuflow launch`` has assigned them already. With other launchers each process takes one.

    Raises:
        ValueError: if an id is not that of a visible GPU.
    """
    if local_device_ids is not None:
        is_one = isinstance(local_device_ids, int)
        numbers = [local_device_ids] if is_one else list(local_device_ids)
        if any(not 0 <= k < len(visible) for k in numbers) and visible:
            raise ValueError(
                f"[distributed] local_device_ids must be numbers below {len(visible)}, the GPUs "
                f"of this machine; got {local_device_ids}. Fix: leave it out."
            )
        return [visible[k] for k in numbers] if visible else None
    if cluster.kind == "launch" or cluster.local_size < 2 or len(visible) < 2:
        return None
    return [visible[cluster.local_rank % len(visible)]]


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list, such as ``gpu03`` of ``gpu[03-05,9],login``."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]*)\])?([^,]*)", nodes)
    if match is None:
        return nodes
    prefix, numbers, suffix = match.groups()
    first = re.split("[,-]", numbers)[0] if numbers else ""
    return f"{prefix}{first}{suffix}"
