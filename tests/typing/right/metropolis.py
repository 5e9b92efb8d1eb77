"""A sampler: chains under vmap, a loop under scan."""

from collections.abc import Callable

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax, random

LogDensity = Callable[[Array], Array]


def sample(key: Array, log_density: LogDensity, start: Array, count: int) -> Array:
    def step(state: tuple[Array, Array], key: Array) -> tuple[tuple[Array, Array], Array]:
        x, log_p = state
        first, second = random.split(key)
        proposal = x + 0.5 * random.normal(first, x.shape)
        log_q = log_density(proposal)
        accept = jnp.log(random.uniform(second)) < log_q - log_p
        x = jnp.where(accept, proposal, x)
        return (x, jnp.where(accept, log_q, log_p)), x

    _, samples = lax.scan(step, (start, log_density(start)), random.split(key, count))
    return samples


def normal(x: Array) -> Array:
    return -0.5 * (x**2).sum()


def chain(key: Array) -> Array:
    return sample(key, normal, jnp.zeros(2), 10)


chains = gf.jit(gf.vmap(chain))(random.split(random.key(0), 4))
print(chains.shape, chains.mean(axis=(0, 1)))
