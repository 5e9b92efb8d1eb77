"""e3nn-jax: spherical harmonics, tensor products and a message passing network of irreps."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import show

RNG = np.random.default_rng(0)


def arrays():
    vectors = jnp.asarray(RNG.normal(size=(5, 3)), float)
    harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
    product = e3nn.tensor_product(harmonics, harmonics, filter_ir_out=["0e", "1o", "2e"])
    gated = e3nn.gate(e3nn.concatenate([harmonics.filter("0e"), harmonics]))
    turned = harmonics.transform_by_angles(0.3, 0.5, 0.7)
    radial = e3nn.bessel(jnp.linalg.norm(vectors, axis=1), 4, 2.0)
    gradient = jax.grad(lambda v: e3nn.spherical_harmonics("2e", v, normalize=True).array[0])
    return (
        harmonics.array,
        product.array,
        gated.array,
        turned.array,
        radial,
        gradient(vectors[0]),
        e3nn.Irrep("2e").D_from_angles(0.1, 0.2, 0.3),
        e3nn.clebsch_gordan(1, 1, 2),
    )


class Layer(nn.Module):
    target: e3nn.Irreps

    @nn.compact
    def __call__(self, features, positions, senders, receivers):
        edges = e3nn.spherical_harmonics(
            "0e + 1o + 2e", positions[receivers] - positions[senders], True
        )
        messages = e3nn.concatenate(
            [features[senders], e3nn.tensor_product(features[senders], edges)]
        ).regroup()
        messages = e3nn.flax.Linear(self.target)(messages)
        summed = e3nn.scatter_sum(messages, dst=receivers, output_size=len(positions))
        kept = e3nn.flax.Linear(self.target, force_irreps_out=True)(features)
        return e3nn.flax.Linear(self.target, force_irreps_out=True)(summed / 6.0) + kept


class Network(nn.Module):
    @nn.compact
    def __call__(self, positions, senders, receivers):
        features = e3nn.IrrepsArray("0e", jnp.ones((len(positions), 1)))
        for target in ("8x0e + 4x1o", "8x0e + 4x1o + 2x2e"):
            features = Layer(e3nn.Irreps(target))(features, positions, senders, receivers)
            features = e3nn.norm_activation(
                features, [jax.nn.silu, *[None] * (len(features.irreps) - 1)]
            )
        return 0.1 * e3nn.flax.Linear("0e")(features).array.mean()


def network():
    positions = jnp.asarray(RNG.normal(size=(6, 3)), float)
    senders, receivers = np.nonzero(~np.eye(6, dtype=bool))
    model = Network()
    params = model.init(jax.random.key(0), positions, senders, receivers)
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        def loss_of(params):
            energy = model.apply(params, positions, senders, receivers)
            forces = jax.grad(lambda p: model.apply(params, p, senders, receivers))(positions)
            return (energy - 1.0) ** 2 + jnp.mean(forces**2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(6):
        params, state, loss = step(params, state)
        losses.append(loss)
    return losses


if __name__ == "__main__":
    show({"arrays": arrays(), "network": network()})
