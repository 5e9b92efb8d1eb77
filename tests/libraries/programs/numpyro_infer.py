"""numpyro: a regression by NUTS and by variational inference."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from common import digits, show
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

POINTS, LABELS = digits(count=32, size=3)


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale + 0.1), obs=y)


Y = POINTS @ jnp.array([1.0, -0.5, 0.2]) + 0.1 * LABELS


def markov():
    mcmc = MCMC(NUTS(model), num_warmup=5, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), POINTS, Y)
    samples = mcmc.get_samples()
    return samples["weights"], samples["scale"]


def variational():
    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    found = svi.run(jax.random.key(1), 25, POINTS, Y, progress_bar=False)
    draws = Predictive(guide, params=found.params, num_samples=4)(jax.random.key(2))
    return found.losses, draws["weights"]


if __name__ == "__main__":
    show({part.__name__: part() for part in (markov, variational)})
