"""jumanji: environments that are stepped at random, inside of a loop and a vmap."""

import jax
import jax.numpy as jnp
import jumanji
from common import show

NAMES = ("Snake-v1", "Game2048-v1", "Knapsack-v1", "TSP-v1", "Maze-v0", "RubiksCube-v0")


def games():
    results = []
    for name in NAMES:
        env = jumanji.make(name)

        @jax.jit
        def run(key, env=env):
            first, second = jax.random.split(key)
            state, _ = env.reset(first)

            def step(state, key):
                action = env.action_spec.generate_value()
                limits = getattr(env.action_spec, "num_values", None)
                action = jax.random.randint(key, jnp.shape(action), 0, jnp.asarray(limits))
                state, timestep = env.step(state, action)
                leaves = [jnp.float32(leaf).sum() for leaf in jax.tree.leaves(timestep.observation)]
                return state, (action, timestep.reward, timestep.discount, leaves)

            return jax.lax.scan(step, state, jax.random.split(second, 8))[1]

        results.append(jax.vmap(run)(jax.random.split(jax.random.key(0), 3)))
    return jax.tree.map(jnp.float32, results)


if __name__ == "__main__":
    show({"games": games()})
