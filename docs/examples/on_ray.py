"""Data-parallel training whose processes are started by Ray, on the machines that it has.

    pip install "ray>=2.40"
    python docs/examples/on_ray.py [processes]              # a cluster of this machine alone
    RAY_ADDRESS=auto python docs/examples/on_ray.py 16      # one that runs already

Ray decides where processes run, and starts them; from there they are a group as any other: process
0 listens, the others connect, and what they share goes between them, not through Ray. All that it
takes is an address, a number for each, and a secret that they have in common.
"""

from __future__ import annotations

import secrets
import socket
import sys
from typing import Any

import numpy as np
import ray

BATCH, RATE, STEPS = 64, 0.1, 40


@ray.remote(num_cpus=1)
class Process:
    """One process of the group."""

    def address(self) -> str:
        """``host:port`` on which this process can listen."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def train(self, address: str, count: int, number: int) -> list[float]:
        """Join the group, and train; the losses of all steps."""
        import gpuflow as gf

        gf.distributed.initialize(address, count, number)
        losses = train(gf.process_index(), gf.device_count())
        gf.distributed.shutdown()
        return losses


def train(index: int, count: int) -> list[float]:
    """The losses of a network that learns the sine of a sum, on one device each."""
    import gpuflow as gf
    import gpuflow.numpy as jnp
    from gpuflow import lax

    def loss_of(weights: dict[str, Any], x: Any) -> Any:
        hidden = jnp.tanh(x @ weights["inner"])
        return jnp.mean((hidden @ weights["outer"] - jnp.sin(2 * x.sum(1, keepdims=True))) ** 2)

    def step(weights: dict[str, Any], x: Any) -> Any:
        loss, slopes = lax.pmean(gf.value_and_grad(loss_of)(weights, x), "devices")
        return gf.tree.map(lambda w, s: w - RATE * s, weights, slopes), loss

    update = gf.pmap(step, axis_name="devices", in_axes=(None, 0), out_axes=(None, 0))
    inner, outer = gf.random.split(gf.random.key(0))
    weights = {
        "inner": gf.random.normal(inner, (2, 32)),
        "outer": gf.random.normal(outer, (32, 1)) / 6,
    }
    rng, losses = np.random.default_rng(1), []
    for _ in range(STEPS):
        # All draw the same batch, and each takes its part.
        batch = rng.uniform(-1, 1, (BATCH, 2)).astype(np.float32)
        weights, loss = update(weights, np.array_split(batch, count)[index][None])
        losses.append(float(loss[0]))
    return losses


def main(count: int = 2) -> None:
    """Start the processes, wait for them and print."""
    ray.init(
        include_dashboard=False,
        runtime_env={"env_vars": {"GPUFLOW_TOKEN": secrets.token_hex(16)}},
    )
    processes = [Process.remote() for _ in range(count)]
    address = ray.get(processes[0].address.remote())
    results = ray.get(
        [process.train.remote(address, count, number) for number, process in enumerate(processes)]
    )
    ray.shutdown()
    first = results[0]
    print(f"{count} processes, loss {first[0]:.4f} -> {first[-1]:.4f}")
    print(f"the same in all: {all(losses == first for losses in results)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
