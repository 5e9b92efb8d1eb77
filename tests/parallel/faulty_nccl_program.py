"""Processes whose collectives run on GPUs that do everything late, and what goes wrong with one.

``faulty_nccl_program.py rank size port mode``: ranks add up over a library that stands for NCCL,
whose collectives never end by themselves; rank 1 goes wrong in the third one.
"""

import os
import signal
import sys
import time

import numpy as np
from fake_nccl import FakeApi, FakeComm, FakeCupy, FakeNccl, device

import gpuflow as gf
from gpuflow.parallel.collectives import nccl_connect
from gpuflow.parallel.collectives.nccl import NcclCommunicator
from gpuflow.parallel.processes import distributed
from gpuflow.runtime.device import Platform, register_platform
from gpuflow.targets.cuda.runtime.driver.driver import GpuDriver
from gpuflow.targets.cuda.runtime.driver.side_stream import SideStream

BAD = 1


def go_wrong(mode):
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "raise":
        raise ValueError("the data of rank 1 are bad")
    if mode == "stall":
        time.sleep(15)


def main():
    rank, size, port = map(int, sys.argv[1:4])
    distributed.initialize(
        f"127.0.0.1:{port}", size, rank, collective_timeout=2.0, heartbeat_timeout_seconds=4
    )
    driver = GpuDriver(FakeApi())
    register_platform(Platform("late", lambda: 1, lambda _: driver))
    where = gf.local_devices(backend="late")[0]
    # The fake's own sockets wait for longer than a collective may take.
    distributed._state.links.timeout = 20.0
    under = FakeComm(nccl := FakeNccl(), distributed.world().inner)
    watch = nccl_connect._new_watch()
    comm = NcclCommunicator(under, nccl, FakeCupy, SideStream(where), "processes", watch)
    driver.api.activate()
    for step in range(4):
        if rank == BAD and step == 2:
            go_wrong(sys.argv[4])
        total = comm.all_reduce(device(np.ones(4, np.float32)), "sum")
        begun = time.monotonic()
        try:
            driver.synchronize()
        finally:
            print(f"waited {time.monotonic() - begun:.1f} s, aborted {under.aborted.is_set()}")
        assert np.array(total).tolist() == [size] * 4


if __name__ == "__main__":
    main()
