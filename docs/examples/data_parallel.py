"""Data-parallel training on scikit-learn's digits: one program for any number of devices.

    python docs/examples/data_parallel.py                           # one device
    GPUFLOW_CPU_DEVICES=8 python docs/examples/data_parallel.py     # eight virtual ones
    gpuflow launch -n 4 docs/examples/data_parallel.py              # four processes

and on all GPUs of a process, or with GPUFLOW_PLATFORM=cuda_sim GPUFLOW_SIM_DEVICES=2 on two
simulated ones.

The losses are the same. What makes it data-parallel is one line, ``lax.pmean``.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

BATCH, RATE = 64, 0.2


def initial_weights():
    """Two layers; every process makes the same ones."""
    generator = np.random.default_rng(0)
    inner = generator.normal(0, 0.2, (64, 32)).astype(np.float32)
    outer = generator.normal(0, 0.2, (32, 10)).astype(np.float32)
    return {"inner": inner, "outer": outer}


def loss_of(weights, images, labels):
    hidden = jnp.tanh(images @ weights["inner"])
    scores = gf.nn.log_softmax(hidden @ weights["outer"])
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def step(weights, images, labels):
    """One step on this device's part of the batch."""
    loss, slopes = gf.value_and_grad(loss_of)(weights, images, labels)
    loss, slopes = lax.pmean((loss, slopes), "devices")  # write your own Horovod
    return gf.tree.map(lambda w, s: w - RATE * s, weights, slopes), loss


def train(steps):
    """The losses of all steps."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
    local, total = gf.local_device_count(), gf.device_count()
    first = gf.process_index() * local

    def own_parts(batch):
        """What this process's devices get of a batch: ``[local, BATCH / total, ...]``."""
        return batch.reshape(total, BATCH // total, *batch.shape[1:])[first : first + local]

    update = gf.pmap(step, axis_name="devices", in_axes=(None, 0, 0), out_axes=(None, 0))
    weights, losses = initial_weights(), []
    for number in range(steps):
        rows = np.arange(number * BATCH, (number + 1) * BATCH) % len(labels)
        weights, loss = update(weights, own_parts(images[rows]), own_parts(labels[rows]))
        losses.append(float(loss[0]))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--losses", help="a file for the losses")
    options = parser.parse_args()
    losses = train(options.steps)
    if gf.process_index() == 0:
        print(f"{gf.device_count()} devices: loss {losses[0]:.4f} before, {losses[-1]:.4f} after")
        if options.losses:
            np.savetxt(options.losses, losses, "%.9e")
