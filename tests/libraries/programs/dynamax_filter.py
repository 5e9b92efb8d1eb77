"""dynamax: hidden Markov models and linear Gaussian state spaces."""

import jax
from common import show
from dynamax.hidden_markov_model import CategoricalHMM, GaussianHMM
from dynamax.linear_gaussian_ssm import LinearGaussianSSM


def markov():
    hmm = GaussianHMM(3, 2)
    params, _ = hmm.initialize(jax.random.PRNGKey(0))
    states, emissions = hmm.sample(params, jax.random.PRNGKey(1), 40)
    posterior = hmm.smoother(params, emissions)
    path = hmm.most_likely_states(params, emissions)
    discrete = CategoricalHMM(2, 1, 4)
    start, props = discrete.initialize(jax.random.PRNGKey(2))
    _, tokens = discrete.sample(start, jax.random.PRNGKey(3), 30)
    _, logs = discrete.fit_em(start, props, tokens, num_iters=3, verbose=False)
    return states, posterior.marginal_loglik, posterior.smoothed_probs[:5], path, logs


def kalman():
    model = LinearGaussianSSM(2, 1)
    params, _ = model.initialize(jax.random.PRNGKey(0))
    _, emissions = model.sample(params, jax.random.PRNGKey(1), 20)
    posterior = model.smoother(params, emissions)
    gradient = jax.grad(lambda y: model.marginal_log_prob(params, y))(emissions)
    return posterior.smoothed_means[:5], posterior.marginal_loglik, gradient[:5]


if __name__ == "__main__":
    show({part.__name__: part() for part in (markov, kalman)})
