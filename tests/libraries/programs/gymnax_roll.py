"""gymnax: environments rolled out inside of a scan and a vmap."""

import gymnax
import jax
import jax.numpy as jnp
from common import show


def roll():
    results = []
    for name in ("CartPole-v1", "Pendulum-v1", "Catch-bsuite"):
        env, params = gymnax.make(name)

        @jax.jit
        def run(key, env=env, params=params):
            first, second = jax.random.split(key)
            _, state = env.reset(first, params)

            def step(carry, key):
                action = env.action_space(params).sample(key)
                obs, state, reward, done, *_ = env.step(key, carry, action, params)
                return state, (obs, reward, done)

            return jax.lax.scan(step, state, jax.random.split(second, 12))[1]

        results.append(jax.vmap(run)(jax.random.split(jax.random.key(0), 3)))
    return jax.tree.map(jnp.float32, results)


if __name__ == "__main__":
    show({"roll": roll()})
