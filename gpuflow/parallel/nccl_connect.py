"""How GPUs come together over NCCL: those of several processes, and those of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import Communicator
from gpuflow.parallel.nccl import NcclCommunicator, named
from gpuflow.runtime.device import Device
from gpuflow.runtime.gpu_side_stream import SideStream


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
            f"[nccl] several GPUs need CuPy and NCCL; got: {error}. "
            'Fix: pip install "gpuflow[cuda13]" nvidia-nccl-cu13.'
        ) from error
    if not cupy.cuda.nccl.available:
        raise CommunicationError(
            "[nccl] NCCL must be installed; got CuPy without it. Fix: pip install nvidia-nccl-cu13."
        )
    return cupy


def connect_nccl(world: Communicator, device: Device) -> NcclCommunicator:
    """The communicator of one GPU of each process; the processes first agree over ``world``.

    Raises:
        CommunicationError: there is no NCCL, or it cannot connect them.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    with named(nccl, "nccl", f"connect rank {world.rank} of {world.size}"):
        own = nccl.get_unique_id()
        is_bytes = isinstance(own, bytes)  # a tuple of ints before CuPy 14
        numbers = np.frombuffer(own, np.int8) if is_bytes else np.array(own, np.int8)
        numbers = world.broadcast(numbers, 0)
        unique = numbers.tobytes() if is_bytes else tuple(numbers.tolist())
        comm = nccl.NcclCommunicator(world.size, unique, world.rank)
    return NcclCommunicator(comm, nccl, cupy, SideStream(device), world.name)


def connect_gpus(devices: Sequence[Device]) -> list[NcclCommunicator]:
    """A communicator for each of this process's GPUs; each is to be used by a thread of its own.

    Raises:
        CommunicationError: there is no NCCL, or it cannot connect them.
    """
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    with named(nccl, "nccl", f"connect {', '.join(map(str, devices))}"):
        comms = nccl.NcclCommunicator.initAll([device.local_hardware_id for device in devices])
    return [
        NcclCommunicator(comm, nccl, cupy, SideStream(device), "devices")
        for comm, device in zip(comms, devices, strict=True)
    ]
