"""A convolutional network tells discs, squares and crosses apart, wherever they stand.

Images of 16 x 16 are drawn on the device, batch by batch, with noise. Two convolutions with pooling
find parts, a maximum over all places forgets where they are, and a dense layer votes.

    python docs/examples/cnn.py
"""

from __future__ import annotations

from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.example_libraries import optimizers

SIDE, KINDS, NOISE, BATCH = 16, ("disc", "square", "cross"), 0.3, 64
CHANNELS = (1, 8, 16)

init_state, update_state, params_of = optimizers.adam(1e-2)


def draw(key: Any) -> tuple[Any, Any]:
    """One image f32[SIDE, SIDE, 1], and its kind: a size and a place are drawn too."""
    kind_key, size_key, place_key, noise_key = gf.random.split(key, 4)
    kind = gf.random.randint(kind_key, (), 0, len(KINDS))
    size = gf.random.uniform(size_key, (), minval=3.0, maxval=5.0)
    middle = gf.random.uniform(place_key, (2, 1, 1), minval=5.0, maxval=SIDE - 6.0)
    y, x = jnp.abs(jnp.mgrid[:SIDE, :SIDE] - middle)
    shapes = [
        x * x + y * y <= size * size,
        jnp.maximum(x, y) <= 0.85 * size,
        (jnp.minimum(x, y) <= 1.0) & (jnp.maximum(x, y) <= size),
    ]
    image = jnp.stack(shapes)[kind] + NOISE * gf.random.normal(noise_key, (SIDE, SIDE))
    return image[..., None], kind


@gf.jit
def batch_of(key: Any) -> tuple[Any, Any]:
    """Images f32[BATCH, SIDE, SIDE, 1] and kinds i32[BATCH]."""
    return gf.vmap(draw)(gf.random.split(key, BATCH))


def initial_params(key: Any) -> dict[str, Any]:
    """Kernels of 3 x 3, by He's rule, and the dense layer."""
    *kernel_keys, dense_key = gf.random.split(key, len(CHANNELS))
    scale = gf.nn.initializers.he_normal()
    convolutions = [
        {"kernel": scale(key, (3, 3, inputs, outputs)), "bias": jnp.zeros(outputs)}
        for key, inputs, outputs in zip(kernel_keys, CHANNELS, CHANNELS[1:])
    ]
    return {"convolutions": convolutions, "dense": scale(dense_key, (CHANNELS[-1], len(KINDS)))}


def logits_of(params: dict[str, Any], images: Any) -> Any:
    """f32[batch, kinds] of images f32[batch, height, width, 1] of any size."""
    x = images
    for layer in params["convolutions"]:
        x = lax.conv_general_dilated(
            x, layer["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = gf.nn.relu(x + layer["bias"])
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.max((1, 2)) @ params["dense"]


def loss(params: dict[str, Any], images: Any, kinds: Any) -> Any:
    """Cross-entropy."""
    log_shares = gf.nn.log_softmax(logits_of(params, images))
    return -jnp.mean(jnp.sum(log_shares * gf.nn.one_hot(kinds, len(KINDS)), -1))


@gf.jit
def train_step(number: Any, state: Any, images: Any, kinds: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), images, kinds)
    return update_state(number, grads, state), value


@gf.jit
def share_right(params: dict[str, Any], images: Any, kinds: Any) -> Any:
    """The share of images whose kind is found."""
    return jnp.mean(jnp.argmax(logits_of(params, images), -1) == kinds)


def train(steps: int = 150) -> tuple[Any, list[float]]:
    """Parameters, and the losses of all steps; no image is seen twice."""
    state, losses = init_state(initial_params(gf.random.key(0))), []
    for number, key in enumerate(gf.random.split(gf.random.key(1), steps)):
        state, value = train_step(number, state, *batch_of(key))
        losses.append(value)
    return params_of(state), [float(value) for value in losses]


def main() -> None:
    """Train and print."""
    params, losses = train()
    unseen = [batch_of(key) for key in gf.random.split(gf.random.key(2), 10)]
    right = sum(float(share_right(params, *batch)) for batch in unseen) / len(unseen)
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.3f}; right in {right:.1%} of unseen images")


if __name__ == "__main__":
    main()
