"""A training loop of a few steps in which one rank goes wrong: ``faulty_program.py MODE``.

Started by ``gpuflow launch``, or as ``faulty_program.py RANK SIZE PORT MODE``.
"""

import os
import signal
import subprocess
import sys
import time

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import extend_axes
from gpuflow.core.communicator import Across

STEPS = 6
BAD_RANK, BAD_STEP = int(os.environ.get("TEST_BAD_RANK", "1")), 3


def go_wrong(mode: str) -> None:
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "raise":
        raise ValueError("the data of rank 1 are bad")
    elif mode == "exit":
        sys.exit(3)
    elif mode == "stall":
        time.sleep(1000)
    elif mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    if len(sys.argv) > 2:
        rank, size, port = map(int, sys.argv[1:4])
        gf.distributed.initialize(
            f"127.0.0.1:{port}",
            size,
            rank,
            initialization_timeout=float(os.environ.get("TEST_INITIALIZATION", "60")),
            heartbeat_timeout_seconds=float(os.environ.get("TEST_HEARTBEAT", "30")),
            collective_timeout=float(os.environ.get("TEST_COLLECTIVE", "60")),
        )
    else:
        gf.distributed.initialize()
    mode, rank = sys.argv[-1], gf.process_index()
    axis = Across("i")

    @gf.jit
    def step(x):
        return jnp.tanh(lax.psum(x, "i")), lax.pmax(x, "i")

    @gf.jit
    def turned(x):
        high = lax.pmax(x, "i")
        return jnp.tanh(lax.psum(x + 0 * high, "i")), high

    if mode == "children":  # a rank may have processes of its own
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    x = jnp.arange(4, dtype=jnp.float32) + rank
    with extend_axes((axis, gf.process_count()), aliases={"i": (axis,)}):
        for number in range(STEPS):
            bad = rank == BAD_RANK and number == BAD_STEP
            if bad:
                go_wrong(mode)
            if mode == "sleep" and number == BAD_STEP:
                print("sleeping", flush=True)
                time.sleep(1000)
            if bad and mode == "skip":
                continue
            x, _ = (turned if bad and mode == "order" else step)(x)
            x = x + rank
    print(f"rank {rank} is done: {np.asarray(x).tolist()}")
    restart = int(os.environ.get("GPUFLOW_RESTART", "0"))
    if mode == "once" and restart < 1 and rank == BAD_RANK:
        raise RuntimeError(f"attempt {restart} fails")


if __name__ == "__main__":
    main()
