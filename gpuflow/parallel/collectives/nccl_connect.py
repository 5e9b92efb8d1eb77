"""How GPUs come together over NCCL: those of several processes, and those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpuflow.base.config import collective_timeout
from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record
from gpuflow.core.communicator import Communicator
from gpuflow.parallel.collectives.nccl import NcclCommunicator, named
from gpuflow.parallel.collectives.nccl_calls import Signs
from gpuflow.parallel.collectives.nccl_watch import Watch
from gpuflow.runtime.device import Device
from gpuflow.targets.cuda.driver.side_stream import SideStream


@record(frozen=False)
class _Process:
    """What this process knows of its group.

    Attributes:
        signs: of the other processes.
        timeout: seconds that a collective waits; None: as the environment says.
        watches: of all communicators that were connected.
    """

    signs: Signs = field(default_factory=Signs)
    timeout: float | None = None
    watches: list[Watch] = field(default_factory=list)


_process = _Process()


def join_group(signs: Signs, timeout: float) -> None:
    """What ends collectives of communicators that are connected later."""
    _process.signs, _process.timeout = signs, timeout


def leave_group(failed: bool) -> None:
    """Stop to look after communicators; GPUs whose collectives failed can be waited for again.

    Args:
        failed: collectives that are under way are aborted instead of waited for.
    """
    for watch in _process.watches:
        watch.stop(failed)
    _process.watches.clear()
    _process.signs, _process.timeout = Signs(), None


def collectives() -> int:
    """How many collectives this process has given to NCCL."""
    return sum(watch.calls for watch in _process.watches)


def _new_watch() -> Watch:
    timeout = _process.timeout
    if timeout is None:
        timeout = collective_timeout()
    watch = Watch(timeout, _process.signs)
    _process.watches.append(watch)
    return watch


def load_cupy() -> Any:
    """CuPy with NCCL.

    Raises:
        CommunicationError: CuPy or NCCL is not installed.
    """
    try:
        import cupy
        import cupy.cuda.nccl
    except ImportError as error:
        raise CommunicationError(
            f"[nccl] several GPUs need CuPy and NCCL; got: {error}. Fix: "
            'pip install "gpuflow[cuda13]", or "gpuflow[cuda12]" for CUDA 12.'
        ) from error
    if not cupy.cuda.nccl.available:
        raise CommunicationError(
            "[nccl] NCCL must be installed; got CuPy without it. Fix: pip install "
            "nvidia-nccl-cu13, or nvidia-nccl-cu12 for CUDA 12."
        )
    return cupy


def connect_nccl(world: Communicator, device: Device) -> NcclCommunicator:
    """The communicator of one GPU of each process; the processes first agree over ``world``.

    Raises:
        CommunicationError: there is no NCCL, or it cannot connect them.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    side, watch = SideStream(device), _new_watch()
    place = f"rank {world.rank} of {world.size}"
    driver: Any = device.driver
    driver.api.activate()  # NCCL takes the current one
    unique = _agreed(world, nccl)
    watch.add(side)
    with (
        watch.inside(side, "connect", place),
        named(nccl, "nccl", f"connect {place}", watch.explained),
    ):
        comm = nccl.NcclCommunicator(world.size, unique, world.rank)
    return NcclCommunicator(comm, nccl, cupy, side, world.name, watch)


def connect_all_gpus(
    world: Communicator, devices: Sequence[Device], ranks: Sequence[int]
) -> list[NcclCommunicator]:
    """A communicator for each of this process's GPUs, over as many GPUs of each process.

    Args:
        world: of the processes, for data in the host's memory.
        devices: this process's GPUs; each is to be used by a thread of its own.
        ranks: of these GPUs among all.

    Raises:
        CommunicationError: there is no NCCL, or it cannot connect them.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    size, comms = world.size * len(devices), []
    sides, watch = [SideStream(device) for device in devices], _new_watch()
    place, unique = f"ranks {list(ranks)} of {size}", _agreed(world, nccl)
    watch.add(sides[0])
    with (
        watch.inside(sides[0], "connect", place),
        named(nccl, "nccl", f"connect {place}", watch.explained),
    ):
        nccl.groupStart()  # else the first would wait for the second
        try:
            for device, rank in zip(devices, ranks, strict=True):
                with cupy.cuda.Device(device.local_hardware_id):
                    comms.append(nccl.NcclCommunicator(size, unique, rank))
        finally:
            nccl.groupEnd()
    return [
        NcclCommunicator(comm, nccl, cupy, side, "devices", watch)
        for comm, side in zip(comms, sides, strict=True)
    ]


def _agreed(world: Communicator, nccl: Any) -> Any:
    """The name of a group of GPUs, made by process 0."""
    unique_id = nccl.get_unique_id()
    is_bytes = isinstance(unique_id, bytes)  # a tuple of ints before CuPy 14
    numbers = np.frombuffer(unique_id, np.int8) if is_bytes else np.array(unique_id, np.int8)
    numbers = world.broadcast(numbers, 0)
    return numbers.tobytes() if is_bytes else tuple(numbers.tolist())


def connect_gpus(devices: Sequence[Device]) -> list[NcclCommunicator]:
    """A communicator for each of this process's GPUs; each is to be used by a thread of its own.

    Raises:
        CommunicationError: there is no NCCL, or it cannot connect them.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    watch = _new_watch()
    with named(nccl, "nccl", f"connect {', '.join(map(str, devices))}"):
        comms = nccl.NcclCommunicator.initAll([device.local_hardware_id for device in devices])
    return [
        NcclCommunicator(comm, nccl, cupy, SideStream(device), "devices", watch)
        for comm, device in zip(comms, devices, strict=True)
    ]
