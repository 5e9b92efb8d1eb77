"""A variational autoencoder finds out that images of a spot have two coordinates.

It sees images of 12 x 12 with a soft spot at a random place, and passes each through two normal
numbers, whose means and deviations the encoder gives. The decoder draws the image from a sample of
them. The loss is the evidence's lower bound with its sign changed: how badly the image comes back,
and how far the numbers are from standard normal ones. The picture, vae.png, is what the decoder
makes of a grid of numbers: all places, in order.

    python docs/examples/vae.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pictures import save_png

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import optimizers, stax

SIDE, LATENT, HIDDEN, BATCH = 12, 2, 64, 128
SPREAD, DEVIATION = 1.5, 0.1  # of the spot, in pixels; of a pixel, as the decoder is believed

init_encoder, encode = stax.serial(
    stax.Dense(HIDDEN), stax.Tanh, stax.Dense(HIDDEN), stax.Tanh, stax.Dense(2 * LATENT)
)
init_decoder, decode = stax.serial(
    stax.Dense(HIDDEN), stax.Tanh, stax.Dense(HIDDEN), stax.Tanh, stax.Dense(SIDE**2)
)
init_state, update_state, params_of = optimizers.adam(3e-3)


@gf.jit
def batch_of(key: Any) -> tuple[Any, Any]:
    """Images f32[BATCH, SIDE**2], and the places of their spots f32[BATCH, 2]."""
    places = gf.random.uniform(key, (BATCH, 2), minval=2.0, maxval=SIDE - 3.0)
    pixels = jnp.arange(SIDE)
    rows, columns = jnp.exp(-((pixels - places.T[..., None]) ** 2) / (2 * SPREAD**2))
    return (rows[:, :, None] * columns[:, None, :]).reshape(BATCH, -1), places


def encoded(params: Any, images: Any) -> tuple[Any, Any]:
    """Means and logarithms of variances of the numbers of each image, f32[batch, LATENT]."""
    return jnp.split(encode(params[0], images), 2, axis=-1)


def loss(params: Any, images: Any, key: Any) -> Any:
    """The negative evidence lower bound of an image, up to a constant.

    Source: Kingma and Welling 2014, "Auto-encoding variational Bayes", equation 10.
    """
    means, log_variances = encoded(params, images)
    # A sample as a function of the parameters, so that gradients pass through it.
    numbers = means + jnp.exp(0.5 * log_variances) * gf.random.normal(key, means.shape)
    error = jnp.sum((decode(params[1], numbers) - images) ** 2, -1) / (2 * DEVIATION**2)
    distance = 0.5 * jnp.sum(means**2 + jnp.exp(log_variances) - 1 - log_variances, -1)
    return jnp.mean(error + distance)


@gf.jit
def train_step(number: Any, state: Any, images: Any, key: Any) -> tuple[Any, Any]:
    """One step of Adam; the loss before it."""
    value, grads = gf.value_and_grad(loss)(params_of(state), images, key)
    return update_state(number, grads, state), value


def train(steps: int = 1000) -> tuple[Any, list[float]]:
    """Parameters of encoder and decoder, and the losses of all steps."""
    encoder_key, decoder_key, data_key = gf.random.split(gf.random.key(0), 3)
    _, encoder = init_encoder(encoder_key, (-1, SIDE**2))
    _, decoder = init_decoder(decoder_key, (-1, LATENT))
    state, losses = init_state((encoder, decoder)), []
    for number, key in enumerate(gf.random.split(data_key, steps)):
        images_key, sample_key = gf.random.split(key)
        state, value = train_step(number, state, batch_of(images_key)[0], sample_key)
        losses.append(value)
    return params_of(state), [float(value) for value in losses]


def explained(params: Any) -> float:
    """Of the variance of the spots' places, what a quadratic in the two numbers tells."""
    images, places = batch_of(gf.random.key(1))
    a, b = np.asarray(encoded(params, images)[0], float).T
    terms = np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], -1)
    places = np.asarray(places, float)
    rest = places - terms @ np.linalg.lstsq(terms, places, rcond=None)[0]
    return float(1 - rest.var() / (places - places.mean(0)).var())


def picture(params: Any, count: int = 12) -> np.ndarray:
    """Brightness f64[count * SIDE, count * SIDE]: images of a grid of numbers."""
    line = jnp.linspace(-1.8, 1.8, count)
    grid = jnp.stack(jnp.meshgrid(line, line), -1).reshape(-1, LATENT)
    images = np.asarray(decode(params[1], grid)).reshape(count, count, SIDE, SIDE)
    return images.transpose(0, 2, 1, 3).reshape(count * SIDE, count * SIDE).clip(0, 1)


def main(folder: str = ".") -> None:
    """Train, draw and print."""
    params, losses = train()
    save_png(Path(folder) / "vae.png", picture(params))
    print(f"loss {losses[0]:.0f} -> {losses[-1]:.1f}")
    print(f"two numbers tell {explained(params):.1%} of where a spot is; the picture is vae.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
