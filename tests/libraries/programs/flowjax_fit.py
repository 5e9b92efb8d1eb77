"""flowjax: normalizing flows, fitted to data, and their samples and densities."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from common import show
from flowjax.bijections import Affine, RationalQuadraticSpline
from flowjax.distributions import Normal, Transformed
from flowjax.flows import coupling_flow, masked_autoregressive_flow
from flowjax.train import fit_to_data

X = np.random.default_rng(0).normal(size=(100, 2))
X = np.stack([X[:, 0], X[:, 0] ** 2 + 0.3 * X[:, 1]], -1)


def fitted():
    x = jnp.asarray(X, float)
    results = []
    for make in (coupling_flow, masked_autoregressive_flow):
        extra = {"transformer": RationalQuadraticSpline(knots=4, interval=3)}
        extra = {} if make is coupling_flow else extra
        flow = make(
            jr.key(0),
            base_dist=Normal(jnp.zeros(2)),
            flow_layers=2,
            nn_width=8,
            nn_depth=1,
            **extra,
        )
        flow, losses = fit_to_data(
            jr.key(1),
            flow,
            data=x,
            learning_rate=1e-2,
            max_epochs=3,
            batch_size=50,
            show_progress=False,
        )
        results += [losses, flow.log_prob(x[:5]), flow.sample(jr.key(2), (3,))]
    return results


def densities():
    normal = Transformed(Normal(jnp.zeros(3)), Affine(jnp.arange(3.0), jnp.array([1.0, 2.0, 3.0])))
    x = jnp.linspace(-1, 1, 3)
    return normal.log_prob(x), jax.grad(normal.log_prob)(x), normal.sample(jr.key(3), (2,))


if __name__ == "__main__":
    show({"fitted": fitted(), "densities": densities()})
