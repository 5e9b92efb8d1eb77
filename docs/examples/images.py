"""A blurred, noisy image becomes sharp again: gradient descent on what it should have been.

Blur is a convolution, by FFT. The image sought is one that blurs to what is seen, and has few
edges: the sum of absolute differences of neighbors, its total variation, is kept small. The
picture, images.png, has the image, what is seen of it, and what was found.

    python docs/examples/images.py [folder]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from pictures import save_png

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.example_libraries import optimizers

SIDE, BLUR, NOISE = 96, 2.0, 0.02
SMOOTHNESS = 4e-3  # how much an edge costs

init_state, update_state, params_of = optimizers.adam(2e-2)


def scene(side: int = SIDE) -> np.ndarray:
    """Brightness f32[side, side], from 0 to 1: a disc, a frame and a wedge."""
    y, x = (np.mgrid[:side, :side] + 0.5) / side
    image = np.full((side, side), 0.1)
    image[(x - 0.3) ** 2 + (y - 0.35) ** 2 < 0.2**2] = 0.9
    frame = np.maximum(abs(x - 0.72), abs(y - 0.3))
    image[(frame > 0.09) & (frame < 0.16)] = 0.7
    image[(y > 0.62) & (y < 0.92) & (abs(x - 0.5) < (y - 0.6))] = 0.5
    return image.astype(np.float32)


def blurred(image: Any) -> Any:
    """An image f32[side, side] after a Gaussian blur, whose borders are joined."""
    frequencies = 2 * jnp.pi * jnp.fft.fftfreq(len(image))
    response = jnp.exp(-0.5 * (BLUR * frequencies) ** 2)
    spectrum = jnp.fft.fft2(image) * response[:, None] * response
    return jnp.fft.ifft2(spectrum).real


def variation(image: Any) -> Any:
    """The sum of differences between neighbors.

    Source: Rudin, Osher and Fatemi 1992, rounded off at 0, where it has no slope.
    """
    down, right = jnp.roll(image, -1, 0) - image, jnp.roll(image, -1, 1) - image
    return jnp.sum(jnp.sqrt(down**2 + right**2 + 1e-4))


def loss(image: Any, seen: Any) -> Any:
    """How far the blurred image is from what is seen, and how many edges it has."""
    return 0.5 * jnp.sum((blurred(image) - seen) ** 2) + SMOOTHNESS * variation(image)


@gf.jit
def sharpened(seen: Any, steps: int = 150) -> Any:
    """The image f32[side, side] that is found; all steps are one program."""

    def step(state: Any, number: Any) -> tuple[Any, None]:
        return update_state(number, gf.grad(loss)(params_of(state), seen), state), None

    return params_of(lax.scan(step, init_state(seen), jnp.arange(steps))[0])


def observed(image: Any, seed: int = 0) -> Any:
    """What is seen of an image."""
    return blurred(image) + NOISE * gf.random.normal(gf.random.key(seed), image.shape)


def decibels(image: Any, truth: Any) -> float:
    """The ratio of signal to noise at the peak, which is 1."""
    return float(-10 * jnp.log10(jnp.mean((image - truth) ** 2)))


def picture(side: int = SIDE) -> np.ndarray:
    """Brightness f32[side, 3 * side]: the truth, what is seen, what is found."""
    truth = scene(side)
    seen = observed(truth)
    return np.concatenate([truth, np.asarray(seen), np.asarray(sharpened(seen))], 1).clip(0, 1)


def main(folder: str = ".") -> None:
    """Sharpen, draw and print."""
    truth = scene()
    seen = observed(truth)
    before, after = decibels(seen, truth), decibels(sharpened(seen), truth)
    save_png(Path(folder) / "images.png", picture())
    print(f"{before:.1f} dB as it is seen, {after:.1f} dB sharpened; the picture is images.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
