"""Training that goes on from its newest checkpoint, however often its processes are killed.

    gpuflow launch -n 4 --max-restarts 3 docs/examples/restarts.py run_folder

The launcher starts the group again when a rank fails; the program finds its place in the folder,
which all ranks must see. The losses are those of a run that nothing has disturbed, to the last
bit: data and random numbers follow from the number of the step, and the rest is in the checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing, lax

BATCH, RATE = 64, 0.1


def initial_weights():
    """Two layers; every process makes the same ones."""
    inner, outer = gf.random.split(gf.random.key(0))
    return {
        "inner": gf.random.normal(inner, (8, 16)) / 3,
        "outer": gf.random.normal(outer, (16, 1)) / 4,
    }


def batch_of(number):
    """The batch of a step, which follows from its number."""
    x = gf.random.normal(gf.random.fold_in(gf.random.key(1), number), (BATCH, 8))
    return x, jnp.sin(x.sum(1, keepdims=True))


def step(weights, x, y):
    """One step on this device's part of the batch."""

    def loss_of(weights):
        return jnp.mean((jnp.tanh(x @ weights["inner"]) @ weights["outer"] - y) ** 2)

    loss, slopes = lax.pmean(gf.value_and_grad(loss_of)(weights), "devices")
    return gf.tree.map(lambda w, s: w - RATE * s, weights, slopes), loss


def train(folder: str, steps: int, before: Callable[[int], None] = lambda number: None):
    """The losses of all steps, those before a restart too; ``before`` is called with each."""
    local, total = gf.local_device_count(), gf.device_count()
    first = gf.process_index() * local
    update = gf.pmap(step, axis_name="devices", in_axes=(None, 0, 0), out_axes=(None, 0))

    def own_parts(batch):
        parts = batch.reshape(total, BATCH // total, *batch.shape[1:])
        return parts[first : first + local]

    with checkpointing.Manager(folder, keep=2) as manager:
        weights, losses = initial_weights(), np.zeros(0, np.float32)
        last = manager.latest_step()
        if last is not None:
            state = manager.restore()
            weights, losses = state["weights"], state["losses"]
        for number in range(len(losses), steps):
            before(number)
            x, y = batch_of(number)
            weights, loss = update(weights, own_parts(x), own_parts(y))
            losses = np.append(losses, np.float32(loss[0]))
            if gf.process_index() == 0:  # every rank has the whole state, one writes it
                manager.save(number, {"weights": weights, "losses": losses})
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of checkpoints, which all ranks see")
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    losses = train(options.folder, options.steps)
    if gf.process_index() == 0:
        print(f"loss {losses[0]:.4f} before, {losses[-1]:.4f} after {len(losses)} steps")
