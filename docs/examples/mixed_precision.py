"""A network in float16 with optax: loss scaling, accumulated gradients, averaged parameters.

    python docs/examples/mixed_precision.py

Parameters are float32, the network computes in float16. Gradients of four batches make an update,
a moving average of the parameters is evaluated, and a step that overflows changes nothing but the
scale of the loss. It needs optax (pip install --no-deps optax chex absl-py toolz).
"""

from __future__ import annotations

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import as_jax
from gpuflow import mixed_precision as mp

as_jax.install()

import optax  # noqa: E402  (it imports jax, which is gpuflow from here on)

POLICY = mp.get_policy("params=float32,compute=float16,output=float32")
OPTIMIZER = optax.MultiSteps(optax.adam(3e-3), every_k_schedule=4)
SIZES = (2, 32, 2)


def initial(key):
    """The state: parameters, their average, the optimizer's state and the scale of the loss."""
    keys = gf.random.split(key, len(SIZES) - 1)
    params = [
        {"w": gf.random.normal(key, (m, n)) / jnp.sqrt(m), "b": jnp.zeros(n)}
        for key, m, n in zip(keys, SIZES, SIZES[1:])
    ]
    scale = mp.DynamicLossScale(jnp.float32(2.0**24), period=100)
    return {"params": params, "average": params, "opt": OPTIMIZER.init(params), "scale": scale}


def logits_of(params, x):
    """f32[batch, 2]; what is in between is float16."""
    params, x = POLICY.cast_to_compute((params, x))
    for layer in params[:-1]:
        x = gf.nn.relu(x @ layer["w"] + layer["b"])
    return POLICY.cast_to_output(x @ params[-1]["w"] + params[-1]["b"])


@gf.jit
def step(state, x, y):
    """One batch; returns the next state, the loss, and whether it counted."""
    scale = state["scale"]

    def scaled(params):
        losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y)
        return scale.scale(losses.mean())

    loss, grads = gf.value_and_grad(scaled)(state["params"])
    grads = scale.unscale(grads)
    finite = mp.all_finite(grads)
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    average = optax.incremental_update(params, state["average"], step_size=0.02)
    new = {"params": params, "average": average, "opt": opt}
    old = {name: state[name] for name in new}
    chosen = mp.select_tree(finite, new, old)
    return {**chosen, "scale": scale.adjust(finite)}, scale.unscale(loss), finite


def batch_of(key, size=128):
    """Points of two rings."""
    turn, ring = gf.random.split(key)
    y = gf.random.bernoulli(ring, 0.5, (size,)).astype(jnp.int32)
    angle = gf.random.uniform(turn, (size,), maxval=2 * jnp.pi)
    radius = 1.0 + y
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], 1), y


def train(steps=800):
    """The losses, which steps counted, and the share that the average classifies rightly."""
    state, losses, counted = initial(gf.random.key(0)), [], []
    for key in gf.random.split(gf.random.key(1), steps):
        state, loss, finite = step(state, *batch_of(key))
        losses.append(float(loss))
        counted.append(bool(finite))
    x, y = batch_of(gf.random.key(2), 1000)
    right = (logits_of(state["average"], x).argmax(1) == y).mean()
    return losses, counted, float(right), state


def main():
    losses, counted, right, state = train()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {counted.count(False)} steps overflowed")
    print(f"scale {float(state['scale'].loss_scale):g}; the average is right in {right:.1%}")


if __name__ == "__main__":
    main()
