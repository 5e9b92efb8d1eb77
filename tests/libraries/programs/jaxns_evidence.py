"""JAXNS: a model with priors, and its evidence by nested sampling."""

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow_probability.substrates.jax as tfp
from common import show
from jaxns.core import NestedSampler
from jaxns.model import Model
from jaxns.priors import Prior

distributions = tfp.distributions
POINTS = jnp.linspace(0.0, 1.0, 6)
OBSERVED = jnp.asarray(np.float32([0.15, 0.32, 0.83, 1.08, 1.52, 1.77]))


def log_likelihood(points, observed, width):
    intercept = Prior(distributions.Normal(loc=0.0, scale=1.0), name="intercept").realise()
    slope = Prior(distributions.Uniform(low=-1.0, high=4.0), name="slope").realise()
    expected = intercept + slope * points
    return distributions.Normal(expected, width).log_prob(observed).sum()


MODEL = Model(prior_model=log_likelihood)
ARGUMENTS = (POINTS, OBSERVED, jnp.asarray(0.3))


def densities():
    keys = jax.random.split(jax.random.PRNGKey(0), 5)
    units = jax.vmap(lambda key: MODEL.sample_U(key, args=ARGUMENTS))(keys)
    likelihood = jax.vmap(lambda u: MODEL.log_likelihood(u, args=ARGUMENTS))
    priors = jax.vmap(lambda u: MODEL.log_prior(u, args=ARGUMENTS))
    return units, likelihood(units), priors(units)


def evidence():
    sampler = NestedSampler(MODEL, max_samples=400, root_allocation_degree=20)
    state = sampler.run(jax.random.PRNGKey(1), args=ARGUMENTS)
    return state.expected_log_Z_mean, state.expected_log_Z_uncert


if __name__ == "__main__":
    show({part.__name__: part() for part in (densities, evidence)})
