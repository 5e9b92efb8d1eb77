"""What it saves to sum gradients beside the backward pass: a data-parallel step on two processes.

    gpuflow launch -n 2 perf/overlap_ranks.py

An MLP of six layers of 1024 x 1024, batch 64 for each process. Each step is measured with sums that
run beside the backward pass and with sums behind it; as the machine's memory moves data, and with
links that take a given time for each sum besides, which is what a network would do: the processor
is free meanwhile. On a machine whose cores all compute, only such time can be saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline
from gpuflow.parallel.processes import distributed

LAYERS, SIZE, BATCH, ROUNDS = 6, 1024, 64, 15
DELAYS = (0.0, 0.004, 0.016)  # seconds for each sum of 4 MB; 4 ms are a link of 1 GB/s


def make_step() -> Callable[[], Any]:
    """The step of one process."""
    rng = np.random.default_rng(0)
    shape = (SIZE, SIZE)
    weights = [jnp.asarray(rng.standard_normal(shape, np.float32) / 32) for _ in range(LAYERS)]
    x = jnp.asarray(rng.standard_normal((1, BATCH, SIZE), np.float32))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    def step(weights: Any, x: Any) -> Any:
        value, slopes = gf.value_and_grad(loss)(weights, x)
        value, slopes = lax.pmean((value, slopes), "i")
        return [w - 0.1 * s for w, s in zip(weights, slopes, strict=True)], value

    mapped = gf.pmap(step, "i", in_axes=(None, 0), out_axes=(None, 0))
    return lambda: mapped(weights, x)[0][0].block_until_ready()


class SlowSums:
    """A communicator whose sums take longer: the processor sleeps."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.delay = inner, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        if data.nbytes >= 1 << 20:
            time.sleep(self.delay)
        return self.inner.all_reduce(data, op, out)


def main() -> None:
    distributed.initialize(overlap_sums=True)
    world: Any = distributed.world()
    world.inner = slow = SlowSums(world.inner)
    beside = make_step()
    beside()
    whole, pipeline.overlap_collectives = pipeline.overlap_collectives, lambda program: program
    behind = make_step()
    behind()
    pipeline.overlap_collectives = whole
    best: dict[tuple[str, float], float] = {}
    for _ in range(ROUNDS):
        for delay in DELAYS:
            for name, step in (("beside", beside), ("behind", behind)):
                slow.delay = delay
                world.barrier()
                start = time.perf_counter()
                step()
                elapsed = time.perf_counter() - start
                best[name, delay] = min(best.get((name, delay), elapsed), elapsed)
    if world.rank == 0:
        for delay in DELAYS:
            row = [f"{name} {1e3 * best[name, delay]:.1f} ms" for name in ("behind", "beside")]
            print(f"sums take {1e3 * delay:.0f} ms more: {', '.join(row)}", flush=True)


if __name__ == "__main__":
    main()
