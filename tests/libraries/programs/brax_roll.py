"""brax: environments rolled out by a policy inside of a scan and a vmap."""

import jax
import jax.numpy as jnp
from brax import envs
from brax.training.agents.ppo import networks as ppo_networks
from common import show


def roll():
    results = []
    for name, backend in (
        ("fast", None),
        ("inverted_pendulum", "generalized"),
        ("reacher", "positional"),
    ):
        env = envs.get_environment(name, **({} if backend is None else {"backend": backend}))

        @jax.jit
        def run(key, env=env):
            state = env.reset(key)
            weights = jnp.cos(jnp.arange(env.observation_size * env.action_size))
            weights = weights.reshape(env.observation_size, env.action_size)

            def step(state, _):
                state = env.step(state, jnp.tanh(state.obs @ weights))
                return state, (state.obs, state.reward, state.done)

            return jax.lax.scan(step, state, None, 5)[1]

        results.append(jax.vmap(run)(jax.random.split(jax.random.key(0), 2)))
    return results


def policy():
    nets = ppo_networks.make_ppo_networks(
        4, 2, policy_hidden_layer_sizes=(8, 8), value_hidden_layer_sizes=(8,)
    )
    one, two, three = jax.random.split(jax.random.key(1), 3)
    params = (None, nets.policy_network.init(one))
    act = ppo_networks.make_inference_fn(nets)(params)
    obs = jnp.sin(jnp.arange(12.0)).reshape(3, 4)
    values = nets.value_network.apply(None, nets.value_network.init(two), obs)
    return act(obs, three), values


if __name__ == "__main__":
    show({"roll": roll(), "policy": policy()})
