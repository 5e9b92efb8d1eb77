"""The public functions ``initialize`` and ``shutdown``: join and leave a group of processes.

``initialize`` finds rank and size, connects all processes over sockets or MPI, starts heartbeats,
and registers the communicators of the group.

Tests: tests/parallel/test_distributed.py, tests/parallel/test_faults.py.
"""

from __future__ import annotations

import atexit
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpuflow.base import variables
from gpuflow.base.config import choose_gpus, config, cpu_count, launcher_variables
from gpuflow.base.errors import CommunicationError, check
from gpuflow.base.records import record
from gpuflow.core.communicator import HOSTS, PROCESSES, Communicator, serve
from gpuflow.parallel.collectives.checked import CheckedCommunicator
from gpuflow.parallel.collectives.mpi import MpiCommunicator, load_mpi
from gpuflow.parallel.collectives.nccl_calls import Signs
from gpuflow.parallel.collectives.nccl_connect import (
    collectives,
    connect_nccl,
    join_group,
    leave_group,
)
from gpuflow.parallel.collectives.overlapped import OverlappedCommunicator
from gpuflow.parallel.collectives.sockets import SocketCommunicator
from gpuflow.parallel.processes.detection import (
    Cluster,
    detect,
    process_gpus,
    visible_gpus,
)
from gpuflow.parallel.processes.heartbeats import Heartbeats
from gpuflow.parallel.processes.messages import is_loopback
from gpuflow.parallel.processes.rendezvous import join
from gpuflow.parallel.processes.transfers import VERDICT, Links
from gpuflow.runtime.device import device_counts, in_use, local_devices, set_process


@record(frozen=False)
class _State:
    """State that ``initialize`` creates.

    Attributes:
        world: the communicator of all processes.
        base: the innermost communicator of ``world``, without checks; it counts its calls.
        links: the socket connections; None over MPI.
        heartbeats: the failure detector; None over MPI.
        shutdown_timeout: seconds that process 0 waits for the others at exit.
        overlap: whether sums run in a thread; None decides by the number of cores and machines.
        by_launcher: whether ``gpuflow launch`` initialized the process, before its script.
        error: the error that ends the process, if Python itself does not report it.
    """

    world: OverlappedCommunicator | None = None
    base: Any = None
    links: Links | None = None
    heartbeats: Heartbeats | None = None
    shutdown_timeout: float = 300.0
    overlap: bool | None = None
    by_launcher: bool = False
    error: BaseException | None = None


_state = _State()


def is_initialized() -> bool:
    """Return whether ``initialize`` was called."""
    return _state.world is not None


def world() -> Communicator:
    """The communicator of all processes.

    Raises:
        CommunicationError: if this process is not part of a group.
    """
    if _state.world is None:
        raise CommunicationError(
            "[distributed] several processes must be initialized; got a single one. "
            "Fix: call distributed.initialize() first."
        )
    return _state.world


def progress() -> int:
    """Number of transfers of this process so far, by which stalled processes are detected."""
    links, base = _state.links, _state.base
    calls = links.calls if links is not None else getattr(base, "calls", 0)
    return calls + collectives()


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: float = 300,
    heartbeat_timeout_seconds: float = 100,
    shutdown_timeout_seconds: float = 300,
    coordinator_bind_address: str | None = None,
    slice_index: int | None = None,
    partition_index: int | None = None,
    *,
    collective_timeout: float | None = None,
    overlap_sums: bool | None = None,
) -> None:
    """Connect this process with the other processes of its group; call it before anything else.

    Missing arguments come from the launcher: ``gpuflow launch``, ``torchrun``, ``srun`` or
    ``mpiexec``. Processes of ``mpiexec`` communicate over MPI unless an address is given, others
    over sockets. All processes must have the same token in GPUFLOW_TOKEN; it is optional on
    loopback.

    Args:
        coordinator_address: ``host:port`` at which process 0 listens.
        num_processes: number of processes.
        process_id: index of this process, from 0.
        local_device_ids: ids of this process's GPUs; by default the GPU from the launcher, or the
            one with the process's local index. Unused on CPUs.
        cluster_detection_method: "launch", "torchrun", "slurm" or "mpi"; by default all are tried.
        initialization_timeout: maximum time to wait for other processes, in seconds.
        heartbeat_timeout_seconds: seconds without a heartbeat until a process counts as failed.
        shutdown_timeout_seconds: maximum wait of process 0 for others at exit, in seconds.
        coordinator_bind_address: address at which process 0 listens, if it differs from
            ``coordinator_address``.
        slice_index, partition_index: must be None: slices and partitions are not supported.
        collective_timeout: maximum time for which a collective waits for another process, in
            seconds; by default GPUFLOW_COLLECTIVE_TIMEOUT, or 300.
        overlap_sums: whether a thread sums gradients during the backward pass; by default on
            several machines, or with more cores than threads. GPUs always use a separate stream.

    Raises:
        RuntimeError: if it was already called, or arrays already exist.
        ValueError: if the arguments are inconsistent.
        CommunicationError: if the other processes are not ready in time or have another token, or
            the address is taken.
    """
    arguments = (coordinator_address, num_processes, process_id)
    if is_initialized():
        if _state.by_launcher and arguments == (None, None, None):
            if overlap_sums is not None and _state.world is not None:
                _state.world.beside = overlap_sums
            return
        raise RuntimeError(
            "[distributed] initialize must be called once; got a second call. "
            "Fix: call distributed.shutdown() between."
        )
    check(
        slice_index is None and partition_index is None,
        lambda: (
            "[distributed] slice_index and partition_index must be None: there are none; got "
            f"{slice_index} and {partition_index}. Fix: num_processes and process_id."
        ),
        ValueError,
    )
    check(
        not in_use.drivers,
        lambda: (
            "[distributed] initialize must be called before arrays are made; got devices in use. "
            "Fix: call it first in the program."
        ),
        RuntimeError,
    )
    environ = launcher_variables()
    cluster = _cluster(arguments, detect(environ, cluster_detection_method))
    gpus = process_gpus(cluster, local_device_ids, visible_gpus(environ))
    if gpus is not None:
        choose_gpus(gpus)
    timeout = collective_timeout
    if timeout is None:
        timeout = variables.read(environ, "GPUFLOW_COLLECTIVE_TIMEOUT", 300.0)
    _state.overlap = overlap_sums
    if cluster.address is None:
        _over_mpi(cluster, timeout)
    else:
        if cluster.rank == 0 and coordinator_bind_address:
            cluster = Cluster(**{**cluster.__dict__, "address": coordinator_bind_address})
        token = cluster.token or environ.get("GPUFLOW_TOKEN", "")
        check(
            bool(token) or is_loopback(cluster.address),
            lambda: (
                "[distributed] processes that connect over a network must share a secret; got "
                f"{cluster.address} and no GPUFLOW_TOKEN. Fix: export the same GPUFLOW_TOKEN for "
                "all of them."
            ),
            ValueError,
        )
        _over_sockets(cluster, token, initialization_timeout, heartbeat_timeout_seconds, timeout)
    _state.shutdown_timeout = shutdown_timeout_seconds
    atexit.register(_at_exit)


def _cluster(
    arguments: tuple[str | None, int | None, int | None], detected: Cluster | None
) -> Cluster:
    """Rank, size and address of this process: arguments take precedence over the launcher."""
    address, size, rank = arguments
    if detected is None:
        names = ("coordinator_address", "num_processes", "process_id")
        missing = [name for name, value in zip(names, arguments, strict=True) if value is None]
        check(
            not missing,
            lambda: (
                f"[distributed] without a launcher {', '.join(missing)} must be given; got none. "
                "Fix: start with gpuflow launch -n 2 script.py, or "
                'initialize("127.0.0.1:9871", 2, process_id).'
            ),
            ValueError,
        )
        detected = Cluster("arguments", 0, 1)
    size = detected.size if size is None else int(size)
    rank = detected.rank if rank is None else int(rank)
    check(
        size >= 1 and 0 <= rank < size,
        lambda: (
            f"[distributed] process_id must be from 0 to num_processes - 1; got {rank} of {size}. "
            "Fix: number the processes from 0."
        ),
        ValueError,
    )
    meeting = address or detected.address
    return Cluster(
        detected.kind, rank, size, detected.local_rank, detected.local_size, meeting, detected.token
    )


def _over_sockets(
    cluster: Cluster, token: str, initialization: float, heartbeat: float, timeout: float
) -> None:
    assert cluster.address is not None
    group = join(
        cluster.address, cluster.rank, cluster.size, token, device_counts(), initialization
    )
    links = Links(cluster.rank, group.peers, timeout)
    heartbeats = Heartbeats(group, heartbeat, links.fail, collectives)
    links.differs = heartbeats.differ
    heartbeats.start()
    # VERDICT: broken socket transfers wait as long for rank 0's reason.
    join_group(Signs(lambda: links.failure, heartbeats.behind, VERDICT), timeout)
    _state.links, _state.heartbeats = links, heartbeats
    here = sum(peer.family == socket.AF_UNIX for peer in group.peers.values()) + 1
    _begin(SocketCommunicator(links, tuple(range(cluster.size))), group.devices, here)


def _over_mpi(cluster: Cluster, timeout: float) -> None:
    check(
        cluster.kind == "mpi" or cluster.size == 1 or "mpi" in cluster.kind,
        lambda: (
            f"[distributed] the processes of {cluster.kind} must have a coordinator; got no "
            'coordinator_address. Fix: initialize("127.0.0.1:9871").'
        ),
        ValueError,
    )
    base = MpiCommunicator(load_mpi().COMM_WORLD, timeout)
    join_group(Signs(), timeout)  # no failure signs: if a rank fails, MPI's launcher ends the rest
    counts = device_counts()
    names = sorted(counts)
    table = base.all_gather(np.array([counts[name] for name in names], np.int64))
    _begin(base, tuple(dict(zip(names, map(int, row), strict=True)) for row in table), base.here)


def _begin(base: Any, devices: tuple[dict[str, int], ...], here: int) -> None:
    """Register the communicators of the group.

    Args:
        base: the communicator of the processes.
        devices: for each process its number of devices by platform.
        here: number of processes on this machine.
    """
    _state.base = base
    spare = cpu_count() >= here * (config.environment.num_threads + 1)
    beside = here < base.size or spare if _state.overlap is None else _state.overlap
    _state.world = OverlappedCommunicator(
        CheckedCommunicator(base) if config.environment.check else base, beside
    )
    set_process(base.rank, base.size, devices)
    on_gpus = local_devices()[0].platform == "cuda" and base.size > 1
    # GPU data use NCCL between GPUs; host data use the connections of the processes.
    serve(HOSTS, _state.world)
    serve(PROCESSES, connect_nccl(base, local_devices()[0]) if on_gpus else _state.world)


def initialize_by_launcher() -> None:
    """Call ``initialize`` before a script, which may call it again without arguments."""
    initialize()
    _state.by_launcher = True


def shutdown() -> None:
    """Leave the group; process 0 waits until all other processes have left."""
    _leave(None)
    atexit.unregister(_at_exit)


def _leave(error: str | None) -> None:
    heartbeats, failed = _state.heartbeats, error is not None
    if heartbeats is not None and error is not None:
        heartbeats.tell_error(error)  # first: aborting communicators may take seconds
    try:
        leave_group(failed)
    finally:
        if heartbeats is not None:
            heartbeats.leave(_state.shutdown_timeout, failed)
    if _state.links is not None:
        _state.links.close()
    if _state.world is not None:
        _state.world.worker.stop()
        serve(PROCESSES, None)
        serve(HOSTS, None)
        set_process(0, 1, ({},))
    _state.world = _state.base = _state.links = _state.heartbeats = None
    _state.by_launcher = False


def fail(error: BaseException) -> None:
    """Set the error that is sent to other processes at exit; Python does not report SystemExit."""
    _state.error = error


def _at_exit() -> None:
    """Leave the group at exit; if an error ends the process, send it to the others."""
    error: Any = getattr(sys, "last_value", None) or _state.error
    text = None if error is None else f"{type(error).__name__}: {error}"
    uses_mpi = isinstance(_state.base, MpiCommunicator)
    if uses_mpi and text is not None:
        # MPI_Finalize would wait for the others, which wait for this process.
        with suppress(Exception):
            sys.stderr.flush()
            sys.stdout.flush()
        code = getattr(error, "code", 1)
        load_mpi().COMM_WORLD.Abort(code if isinstance(code, int) else 1)
    _leave(None if text is None else text.splitlines()[0][:500])
