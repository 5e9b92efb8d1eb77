"""gpjax: a regression by a Gaussian process, fitted and asked for predictions."""

import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import show

RNG = np.random.default_rng(0)
X = jnp.asarray(np.sort(RNG.uniform(-3, 3, (30, 1)), 0), float)
Y = jnp.asarray(np.sin(2 * X) + 0.1 * RNG.normal(size=(30, 1)), float)


def regression():
    data = gpx.Dataset(X=X, y=Y)
    prior = gpx.gps.Prior(
        mean_function=gpx.mean_functions.Zero(), kernel=gpx.kernels.Matern52() + gpx.kernels.RBF()
    )
    posterior = prior * gpx.likelihoods.Gaussian()
    fitted, history = gpx.fit(
        model=posterior,
        objective=lambda p, d: -gpx.objectives.conjugate_mll(p, d),
        train_data=data,
        optim=optax.adam(1e-2),
        num_iters=20,
        key=jax.random.key(0),
        verbose=False,
    )
    latent = fitted.condition(data).predict(jnp.linspace(-3, 3, 5)[:, None])
    return history, latent.mean, latent.variance


def kernels():
    found = []
    for kind in (
        gpx.kernels.RBF,
        gpx.kernels.Matern32,
        gpx.kernels.RationalQuadratic,
        gpx.kernels.Periodic,
    ):
        kernel = kind()
        found.append(kernel.gram(X[:5]).as_matrix())
    return found


if __name__ == "__main__":
    show({"regression": regression(), "kernels": kernels()})
