"""pgx: games played at random, inside of a loop and a vmap."""

import jax
import jax.numpy as jnp
import pgx
from common import show


def games():
    results = []
    for name in ("tic_tac_toe", "connect_four", "kuhn_poker", "2048"):
        env = pgx.make(name)

        @jax.jit
        def run(key, env=env):
            first, second = jax.random.split(key)
            state = env.init(first)

            def step(state, key):
                choose, move = jax.random.split(key)
                scores = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
                action = jax.random.categorical(choose, scores)
                state = env.step(state, action, move)
                seen = jnp.float32(state.observation)
                weights = jnp.cos(jnp.arange(seen.size, dtype=jnp.float32)).reshape(seen.shape)
                found = (seen * weights).sum(), state.rewards, state.terminated
                return state, (action, state.current_player, *found)

            return jax.lax.scan(step, state, jax.random.split(second, 12))[1]

        results.append(jax.vmap(run)(jax.random.split(jax.random.key(0), 4)))
    return jax.tree.map(jnp.float32, results)


if __name__ == "__main__":
    show({"games": games()})
