"""Creation and destruction of NCCL communicators, between processes and within one process.

Tests: tests/parallel/test_nccl_watch.py, tests/parallel/test_nccl_streams.py.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpuflow.base.config import collective_timeout
from gpuflow.base.errors import CommunicationError
from gpuflow.base.installation import pip_install
from gpuflow.base.records import record
from gpuflow.core.communicator import Communicator
from gpuflow.parallel.collectives.nccl import NcclCommunicator, named
from gpuflow.parallel.collectives.nccl_calls import Signs
from gpuflow.parallel.collectives.nccl_watch import Watch
from gpuflow.runtime.device import Device
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream


@record(frozen=False)
class _Process:
    """NCCL state of this process.

    Attributes:
        signs: information about the other processes.
        timeout: seconds that a collective may wait; None uses the environment's setting.
        watches: the watchdogs of all connected communicators.
    """

    signs: Signs = field(default_factory=Signs)
    timeout: float | None = None
    watches: list[Watch] = field(default_factory=list)


_process = _Process()


def join_group(signs: Signs, timeout: float) -> None:
    """Set the signs and the timeout of communicators that are connected later."""
    _process.signs, _process.timeout = signs, timeout


def leave_group(failed: bool) -> None:
    """Destroy all communicators. Afterwards, GPUs whose collectives failed can be synchronized.

    Args:
        failed: whether pending collectives are aborted instead of awaited.
    """
    for watch in _process.watches:
        watch.stop(failed)
    _process.watches.clear()
    _process.signs, _process.timeout = Signs(), None


def collectives() -> int:
    """Number of collectives that this process has given to NCCL."""
    return sum(watch.calls for watch in _process.watches)


def _new_watch() -> Watch:
    timeout = _process.timeout
    if timeout is None:
        timeout = collective_timeout()
    watch = Watch(timeout, _process.signs)
    if _process.timeout is None:  # a group of processes ends by leave_group
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
    _process.watches.append(watch)
    return watch


def _at_exit() -> None:
    """Free the communicators of a single process before CUDA shuts down."""
    leave_group(getattr(sys, "last_value", None) is not None)


def load_cupy() -> Any:
    """Import CuPy, which must have NCCL.

    Raises:
        CommunicationError: if CuPy or NCCL is not installed.
    """
    try:
        import cupy
        import cupy.cuda.nccl
    except ImportError as error:
        raise CommunicationError(
            f"[nccl] several GPUs need CuPy and NCCL; got: {error}. Fix: "
            f"{pip_install('cuda13')}, or its cuda12 for CUDA 12."
        ) from error
    if not cupy.cuda.nccl.available:
        raise CommunicationError(
            "[nccl] NCCL must be installed; got CuPy without it. Fix: pip install "
            "nvidia-nccl-cu13, or nvidia-nccl-cu12 for CUDA 12."
        )
    return cupy


def connect_nccl(world: Communicator, device: Device) -> NcclCommunicator:
    """Connect one GPU of each process.

    Args:
        world: the communicator of the processes, to agree on NCCL's unique id.
        device: this process's GPU.

    Raises:
        CommunicationError: if NCCL is not installed, or cannot connect the GPUs.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    side, watch = SideStream(device), _new_watch()
    location = f"rank {world.rank} of {world.size}"
    driver: Any = device.driver
    driver.api.activate()  # NCCL uses the current device
    unique = _agreed(world, nccl)
    watch.add(side)
    with (
        watch.pending_call(side, "connect", location, False),
        named(nccl, "nccl", f"connect {location}", watch.explained),
    ):
        comm = nccl.NcclCommunicator(world.size, unique, world.rank)
    return NcclCommunicator(comm, nccl, cupy, side, world.name, watch)


def connect_gpus(
    devices: Sequence[Device], world: Communicator | None = None, ranks: Sequence[int] = ()
) -> list[NcclCommunicator]:
    """A communicator for each of this process's GPUs, over as many GPUs of each process.

    Args:
        devices: this process's GPUs; each is used by a separate thread.
        world: the communicator of the processes (host memory); None if there is one process.
        ranks: the rank of each GPU among all; by default their order.

    Raises:
        CommunicationError: if NCCL is not installed, or cannot connect the GPUs.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    ranks = ranks or range(len(devices))
    size, comms = len(devices) * (1 if world is None else world.size), []
    sides, watch = [SideStream(device) for device in devices], _new_watch()
    location = f"ranks {list(ranks)} of {size}, {', '.join(map(str, devices))}"
    unique = nccl.get_unique_id() if world is None else _agreed(world, nccl)
    watch.add(sides[0])
    with (
        watch.pending_call(sides[0], "connect", location, False),
        named(nccl, "nccl", f"connect {location}", watch.explained),
    ):
        # Not initAll, which holds the GIL until all are connected.
        nccl.groupStart()  # otherwise the first communicator would wait for the second
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
    """NCCL's unique id of a group, broadcast by process 0."""
    unique_id = nccl.get_unique_id()
    is_bytes = isinstance(unique_id, bytes)  # a tuple of ints before CuPy 14
    numbers = np.frombuffer(unique_id, np.int8) if is_bytes else np.array(unique_id, np.int8)
    numbers = world.broadcast(numbers, 0)
    return numbers.tobytes() if is_bytes else tuple(numbers.tolist())
