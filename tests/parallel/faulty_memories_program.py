"""Two simulated GPUs in each of two processes, of which the last one goes wrong in a step.

``faulty_memories_program.py rank size port mode``, run by test_faults.py.
"""

import os
import signal
import sys

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def main():
    rank, size, port = map(int, sys.argv[1:4])
    gf.distributed.initialize(f"127.0.0.1:{port}", size, rank, collective_timeout=60)
    mode = sys.argv[4]

    def look(index, x):
        if index == gf.device_count() - 1 and x[0] > 1:
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("the data of the last device are bad")
        return x

    def f(x):
        shape = gf.ShapeDtypeStruct(x.shape, x.dtype)
        own = lax.axis_index("i")
        return lax.psum(gf.pure_callback(look, shape, own, x, vmap_method="sequential"), "i")

    step = gf.pmap(f, "i")
    x = step(np.ones((2, 3), np.float32) / 4)
    np.testing.assert_array_equal(x, np.ones((2, 3)))
    print("a step is done", flush=True)
    print(jnp.sum(step(x + 1)))


if __name__ == "__main__":
    main()
