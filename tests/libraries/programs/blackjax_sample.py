"""blackjax: Markov chains of several kinds, with adaptation."""

import blackjax
import jax
import jax.numpy as jnp
from common import show

KEY = jax.random.key(0)


def logdensity(x):
    return -0.5 * jnp.sum((x - jnp.array([1.0, -2.0])) ** 2 / jnp.array([1.0, 0.25]))


def chain(kernel, steps=20):
    @jax.jit
    def run(key):
        state = kernel.init(jnp.zeros(2))
        step = lambda state, key: (kernel.step(key, state)[0],) * 2  # noqa: E731
        return jax.lax.scan(step, state, jax.random.split(key, steps))[1].position

    return run(KEY)


def kernels():
    inverse = jnp.ones(2)
    return (
        chain(blackjax.nuts(logdensity, 0.3, inverse)),
        chain(blackjax.hmc(logdensity, 0.2, inverse, 5)),
        chain(blackjax.mala(logdensity, 0.1)),
        chain(blackjax.rmh(logdensity, blackjax.mcmc.random_walk.normal(0.3 * jnp.eye(2)))),
    )


def adapted():
    warmup = blackjax.window_adaptation(blackjax.nuts, logdensity)
    (state, parameters), _ = warmup.run(KEY, jnp.zeros(2), num_steps=50)
    return state.position, parameters["step_size"], parameters["inverse_mass_matrix"]


if __name__ == "__main__":
    show({part.__name__: part() for part in (kernels, adapted)})
