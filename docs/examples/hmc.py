"""Hamiltonian Monte Carlo: hundreds of chains, each a loop of leapfrog steps inside a scan.

The target is Neal's: ten coordinates, normal, with standard deviations from 0.1 to 1 and the first
two correlated by 0.8. Means, variances and the correlation are known, so the chains can be judged.

    python docs/examples/hmc.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax

DIMENSION, CHAINS, DRAWS, WARMUP = 10, 256, 200, 50
STEP, LEAPFROGS = 0.08, 20
CORRELATION = 0.8
DEVIATIONS = np.linspace(1, 0.1, DIMENSION).astype(np.float32)


def log_density(x: Any) -> Any:
    """Up to a constant, of a vector f32[DIMENSION]."""
    z = x / DEVIATIONS
    pair = (z[0] ** 2 - 2 * CORRELATION * z[0] * z[1] + z[1] ** 2) / (1 - CORRELATION**2)
    return -0.5 * (pair + jnp.sum(z[2:] ** 2))


def transition(x: Any, key: Any) -> tuple[Any, tuple[Any, Any]]:
    """One step of a chain: the next place, again, and whether it is a new one.

    Source: Duane et al. 1987; Neal 2011, "MCMC using Hamiltonian dynamics", figure 2.
    """
    momentum_key, choice_key, length_key = gf.random.split(key, 3)
    momentum = gf.random.normal(momentum_key, (DIMENSION,))
    force = gf.grad(log_density)
    # Steps of one length would bring some coordinates back to where they were.
    length = STEP * gf.random.uniform(length_key, minval=0.7, maxval=1.3)

    def leapfrog(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        place, momentum = state
        momentum = momentum + 0.5 * length * force(place)
        place = place + length * momentum
        return place, momentum + 0.5 * length * force(place)

    new, new_momentum = lax.fori_loop(0, LEAPFROGS, leapfrog, (x, momentum))
    gain = log_density(new) - log_density(x)
    gain = gain + 0.5 * (jnp.sum(momentum**2) - jnp.sum(new_momentum**2))
    is_taken = jnp.log(gf.random.uniform(choice_key)) < gain
    x = jnp.where(is_taken, new, x)
    return x, (x, is_taken)


@gf.jit
def sampled(key: Any) -> tuple[Any, Any]:
    """Places f32[CHAINS, DRAWS, DIMENSION] and the share of new ones, by chain f32[CHAINS]."""

    def chain(key: Any) -> tuple[Any, Any]:
        start_key, key = gf.random.split(key)
        start = gf.random.normal(start_key, (DIMENSION,))
        _, (places, taken) = lax.scan(transition, start, gf.random.split(key, WARMUP + DRAWS))
        return places[WARMUP:], jnp.mean(taken[WARMUP:])

    return gf.vmap(chain)(gf.random.split(key, CHAINS))


def main() -> None:
    """Sample and print."""
    places, shares = sampled(gf.random.key(0))
    flat = np.asarray(places).reshape(-1, DIMENSION)
    deviations = flat.std(axis=0) / DEVIATIONS
    correlation = np.corrcoef(flat[:, 0], flat[:, 1])[0, 1]
    print(f"accepted {jnp.mean(shares):.3f}; means {np.abs(flat.mean(axis=0)).max():.3f} or less")
    print(f"deviations {deviations.min():.3f} to {deviations.max():.3f} of the true ones")
    print(f"correlation {correlation:.3f}, truly {CORRELATION}")


if __name__ == "__main__":
    main()
