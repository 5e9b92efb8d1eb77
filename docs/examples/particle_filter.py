"""A particle filter beside the Kalman filter, which knows the answer.

A hidden number walks at random and is measured with noise. The bootstrap filter (Gordon, Salmond
and Smith 1993) moves a thousand guesses, weighs them by each measurement and draws them anew; the
loop over measurements is a scan. For this linear model Kalman's filter (1960) gives the exact
means and the exact likelihood.

    python docs/examples/particle_filter.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

PERSISTENCE, WALK, NOISE = 0.95, 0.5, 1.0
STEPS, PARTICLES, RUNS = 100, 1000, 32


def measurements(seed: int = 0) -> np.ndarray:
    """f32[STEPS], of a walk that begins at 0."""
    random, hidden, values = np.random.default_rng(seed), 0.0, []
    for _ in range(STEPS):
        hidden = PERSISTENCE * hidden + WALK * random.normal()
        values.append(hidden + NOISE * random.normal())
    return np.array(values, np.float32)


def drawn_anew(key: Any, particles: Any, weights: Any) -> Any:
    """As many particles, each in proportion to its weight (systematic resampling)."""
    ends = jnp.cumsum(weights)
    places = (jnp.arange(PARTICLES) + gf.random.uniform(key)) / PARTICLES
    # The last end may be rounded to below 1.
    return particles[jnp.minimum(jnp.searchsorted(ends, places), PARTICLES - 1)]


def filtered(key: Any, values: Any) -> tuple[Any, Any]:
    """The means f32[STEPS] of the hidden number, and the logarithm of the likelihood."""

    def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        particles, log_likelihood = carry
        key, value = inputs
        walk, choice = gf.random.split(key)
        particles = PERSISTENCE * particles + WALK * gf.random.normal(walk, (PARTICLES,))
        logs = -0.5 * ((value - particles) / NOISE) ** 2
        weights = gf.nn.softmax(logs)
        gain = gf.nn.logsumexp(logs) - math.log(PARTICLES * NOISE * math.sqrt(2 * math.pi))
        particles = drawn_anew(choice, particles, weights)
        return (particles, log_likelihood + gain), jnp.mean(particles)

    start = (jnp.zeros(PARTICLES), jnp.float32(0))
    (_, log_likelihood), means = lax.scan(step, start, (gf.random.split(key, STEPS), values))
    return means, log_likelihood


@gf.jit
def filtered_often(key: Any, values: Any) -> tuple[Any, Any]:
    """RUNS filters with random numbers of their own: f32[RUNS, STEPS] and f32[RUNS]."""
    return gf.vmap(filtered, in_axes=(0, None))(gf.random.split(key, RUNS), values)


def kalman(values: np.ndarray) -> tuple[np.ndarray, float]:
    """The exact means f64[STEPS], and the exact logarithm of the likelihood."""
    mean = variance = log_likelihood = 0.0
    means = []
    for value in values.astype(float):
        mean, variance = PERSISTENCE * mean, PERSISTENCE**2 * variance + WALK**2
        spread, error = variance + NOISE**2, value - mean
        log_likelihood -= 0.5 * (math.log(2 * math.pi * spread) + error**2 / spread)
        mean, variance = mean + variance / spread * error, variance * NOISE**2 / spread
        means.append(mean)
    return np.array(means), log_likelihood


def main() -> None:
    """Filter and print."""
    values = measurements()
    means, logs = filtered_often(gf.random.key(0), values)
    exact_means, exact = kalman(values)
    worst = np.abs(np.mean(means, axis=0) - exact_means).max()
    print(f"log likelihood {jnp.mean(logs):.2f} +- {jnp.std(logs):.2f} a run, exactly {exact:.2f}")
    print(f"means of {RUNS} runs differ from the exact ones by at most {worst:.3f}")


if __name__ == "__main__":
    main()
