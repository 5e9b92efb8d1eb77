"""One process of a group that bench_parallel.py measures; rank 0 prints seconds as JSON.

Cases take turns, and the least of many calls counts: on a machine with few cores the processes of a
group are often not running at the same time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.parallel.collectives.mpi import MpiCommunicator
from gpuflow.parallel.processes import distributed

COUNT = 1 << 20  # float32
ROUNDS, CALLS = 20, 20


def cases(world: Any) -> dict[str, Callable[[], Any]]:
    """What is measured: each does one all-reduce of ``COUNT`` numbers."""
    x, out = np.ones(COUNT, np.float32), np.empty(COUNT, np.float32)
    program = gf.pmap(lambda v: lax.psum(v, "i"), "i", out_axes=None)
    row = jnp.asarray(x)[None]
    found: dict[str, Callable[[], Any]] = {}
    if isinstance(world.inner, MpiCommunicator):
        from mpi4py import MPI

        found["all-reduce of mpi4py"] = lambda: MPI.COMM_WORLD.Allreduce(x, out)
    found["all-reduce"] = lambda: world.all_reduce(x, "sum")
    found["all-reduce in a program"] = lambda: program(row).block_until_ready()
    return found


def main() -> None:
    distributed.initialize()
    world = distributed.world()
    best: dict[str, float] = {}
    measured = cases(world)
    for _ in range(ROUNDS):
        for name, call in measured.items():
            call()
            for _ in range(CALLS):
                world.barrier()
                start = time.perf_counter()
                call()
                elapsed = time.perf_counter() - start
                best[name] = min(best.get(name, elapsed), elapsed)
    if world.rank == 0:
        print(json.dumps(best), flush=True)


if __name__ == "__main__":
    main()
