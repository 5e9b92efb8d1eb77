"""jax-md: energies and forces, minimization, and simulations with and without neighbor lists."""

import jax
import jax.numpy as jnp
import numpy as np
from common import show
from jax_md import energy, minimize, quantity, simulate, space

SIDE = 6.0
POINTS = np.stack(np.meshgrid(*[np.arange(6.0)] * 2), -1).reshape(-1, 2)
POINTS = POINTS + 0.1 * np.random.default_rng(0).normal(size=POINTS.shape)


def points():
    return jnp.asarray(POINTS, float)


def energies():
    displacement, _ = space.periodic(SIDE)
    results = []
    for pair in (energy.soft_sphere_pair, energy.lennard_jones_pair, energy.morse_pair):
        total = pair(displacement)
        results += [total(points()), quantity.force(total)(points())]
    return results


def minima():
    displacement, shift = space.periodic(SIDE)
    init, apply = minimize.fire_descent(energy.soft_sphere_pair(displacement), shift)
    state = init(points())
    state = jax.lax.fori_loop(0, 20, lambda _, state: apply(state), state)
    return state.position


def with_neighbors():
    displacement, shift = space.periodic(SIDE)
    neighbor_fn, total = energy.lennard_jones_neighbor_list(
        displacement, SIDE, sigma=0.8, r_onset=1.5, r_cutoff=1.8, dr_threshold=0.3
    )
    neighbors = neighbor_fn.allocate(points())
    init, apply = simulate.nve(total, shift, 1e-3)
    state = init(jax.random.key(0), points(), kT=0.1, neighbor=neighbors)

    @jax.jit
    def step(state, neighbors):
        neighbors = neighbors.update(state.position)
        return apply(state, neighbor=neighbors), neighbors

    for _ in range(10):
        state, neighbors = step(state, neighbors)
    return state.position, state.velocity, total(state.position, neighbors)


def thermostats():
    displacement, shift = space.periodic(SIDE)
    total = energy.soft_sphere_pair(displacement)
    results = []
    for init, apply in (
        simulate.nvt_nose_hoover(total, shift, 1e-3, kT=0.2),
        simulate.nvt_langevin(total, shift, 1e-3, kT=0.2, gamma=0.1),
        simulate.brownian(total, shift, 1e-3, kT=0.2, gamma=0.1),
    ):
        state = init(jax.random.key(1), points())
        run = jax.jit(
            lambda state, apply=apply: jax.lax.fori_loop(0, 10, lambda _, s: apply(s), state)
        )
        results.append(run(state).position)
    return results


if __name__ == "__main__":
    parts = (energies, minima, with_neighbors, thermostats)
    show({part.__name__: part() for part in parts})
