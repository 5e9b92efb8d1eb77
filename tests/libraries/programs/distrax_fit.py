"""distrax: distributions, bijectors and a normalizing flow."""

import distrax
import jax
import jax.numpy as jnp
from common import show

KEY = jax.random.key(0)


def distributions():
    results = []
    for made in (
        distrax.Normal(0.5, 2.0),
        distrax.Laplace(0.5, 2.0),
        distrax.Gumbel(0.1, 1.2),
        distrax.Beta(2.0, 3.0),
        distrax.Gamma(2.0, 3.0),
        distrax.Uniform(-1.0, 1.0),
        distrax.LogStddevNormal(0.0, 0.3),
        distrax.Logistic(0.1, 1.0),
    ):
        sample, logprob = made.sample_and_log_prob(seed=KEY, sample_shape=(3,))
        results.append((sample, logprob, made.mean(), made.variance()))
    categorical = distrax.Categorical(logits=jnp.arange(4.0))
    mixture = distrax.MixtureSameFamily(
        distrax.Categorical(logits=jnp.zeros(2)), distrax.Normal(jnp.arange(2.0), jnp.ones(2))
    )
    joint = distrax.MultivariateNormalTri(jnp.zeros(2), jnp.array([[1.0, 0.0], [0.5, 2.0]]))
    divergence = distrax.Normal(0.0, 1.0).kl_divergence(distrax.Normal(1.0, 2.0))
    return (
        results,
        categorical.sample(seed=KEY, sample_shape=(5,)),
        categorical.entropy(),
        mixture.log_prob(0.3),
        joint.log_prob(jnp.ones(2)),
        joint.sample(seed=KEY),
        divergence,
    )


def bijectors():
    chain = distrax.Chain([distrax.Tanh(), distrax.ScalarAffine(0.1, 0.7)])
    own = distrax.Lambda(lambda x: jnp.exp(x) + 1.0)
    y, logdet = chain.forward_and_log_det(jnp.linspace(-1.0, 1.0, 5))
    spline = distrax.RationalQuadraticSpline(jnp.linspace(-1, 1, 13), -3.0, 3.0)
    return (
        y,
        logdet,
        own.forward(0.3),
        own.inverse(2.5),
        own.forward_log_det_jacobian(0.3),
        (spline.forward_and_log_det(jnp.linspace(-2.0, 2.0, 7))),
    )


def flow():
    data = jnp.exp(0.5 * jax.random.normal(KEY, (64,)) + 0.3)

    def loss_of(params):
        made = distrax.Transformed(
            distrax.Normal(0.0, 1.0),
            distrax.Chain([distrax.Lambda(jnp.exp), distrax.ScalarAffine(*params)]),
        )
        return -made.log_prob(data).mean()

    step = jax.jit(jax.value_and_grad(loss_of))
    params, losses = (jnp.array(0.0), jnp.array(1.0)), []
    for _ in range(10):
        loss, grads = step(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        losses.append(loss)
    return losses


if __name__ == "__main__":
    show({part.__name__: part() for part in (distributions, bijectors, flow)})
