"""tinygp: Gaussian processes, dense and quasiseparable, fitted by gradient."""

import jax
import jax.numpy as jnp
import tinygp
from common import show

X = jnp.linspace(0.0, 5.0, 30)
Y = jnp.sin(X) + 0.1 * jax.random.normal(jax.random.key(0), (30,))


def dense():
    @jax.jit
    def loss_of(params):
        kernel = jnp.exp(params["amplitude"]) * tinygp.kernels.Matern52(jnp.exp(params["scale"]))
        return -tinygp.GaussianProcess(kernel, X, diag=0.1).log_probability(Y)

    params, losses = {"amplitude": jnp.array(0.0), "scale": jnp.array(0.0)}, []
    for _ in range(8):
        loss, grads = jax.value_and_grad(loss_of)(params)
        params = jax.tree.map(lambda p, g: p - 0.02 * g, params, grads)
        losses.append(loss)
    kernel = tinygp.kernels.ExpSquared(1.0) + 0.1 * tinygp.kernels.RationalQuadratic(alpha=1.5)
    process = tinygp.GaussianProcess(kernel, X, diag=0.1)
    conditioned = process.condition(Y, jnp.array([0.5, 2.5])).gp
    return losses, conditioned.loc, conditioned.variance, process.sample(jax.random.key(1))[:5]


def quasiseparable():
    kernel = tinygp.kernels.quasisep.Matern32(1.3) + tinygp.kernels.quasisep.SHO(2.0, 0.7)

    def loss_of(noise):
        return -tinygp.GaussianProcess(kernel, X, diag=noise).log_probability(Y)

    process = tinygp.GaussianProcess(kernel, X, diag=0.1)
    conditioned = process.condition(Y, jnp.array([0.5, 2.5])).gp
    return jax.jit(jax.value_and_grad(loss_of))(0.1), conditioned.loc


if __name__ == "__main__":
    show({part.__name__: part() for part in (dense, quasiseparable)})
