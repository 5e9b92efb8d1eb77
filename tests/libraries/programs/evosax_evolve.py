"""evosax: evolution strategies on a test function."""

import jax
import jax.numpy as jnp
from common import show
from evosax.algorithms import CMA_ES, PSO, DifferentialEvolution, Open_ES, SimpleES


def evolve():
    results = []
    for algorithm in (CMA_ES, Open_ES, SimpleES, PSO, DifferentialEvolution):
        strategy = algorithm(population_size=16, solution=jnp.zeros(3))
        params = strategy.default_params
        key = jax.random.key(0)
        if algorithm in (PSO, DifferentialEvolution):
            population = jax.random.normal(key, (16, 3))
            state = strategy.init(key, population, jnp.sum(population**2, -1), params)
        else:
            state = strategy.init(key, jnp.ones(3), params)

        @jax.jit
        def step(state, key, strategy=strategy, params=params):
            population, state = strategy.ask(key, state, params)
            fitness = jnp.sum((population - 0.5) ** 2, -1)
            state, _ = strategy.tell(key, population, fitness, state, params)
            return state, fitness.min()

        for k in range(5):
            state, best = step(state, jax.random.key(k))
            results.append(best)
    return results


if __name__ == "__main__":
    show({"evolve": evolve()})
