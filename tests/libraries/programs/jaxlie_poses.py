"""jaxlie: rotations and poses, and a least squares fit on their manifold."""

import jax
import jax.numpy as jnp
import jaxlie
import numpy as np
from common import show

RNG = np.random.default_rng(0)


def groups():
    results = []
    for kind in (jaxlie.SO2, jaxlie.SO3, jaxlie.SE2, jaxlie.SE3):
        tangent = jnp.asarray(RNG.normal(size=(3, kind.tangent_dim)), float)
        element = jax.vmap(kind.exp)(tangent)
        product = element @ element.inverse() @ element
        point = jnp.asarray(RNG.normal(size=kind.space_dim), float)
        sampled = kind.sample_uniform(jax.random.key(0))
        results += [
            element.parameters(),
            product.log(),
            kind.exp(tangent[0]).adjoint(),
            kind.exp(tangent[0]) @ point,
            sampled.as_matrix(),
            jax.jacfwd(lambda t, kind=kind, point=point: kind.exp(t) @ point)(tangent[0]),
        ]
    return results


def fit():
    target = jaxlie.SE3.exp(jnp.array([0.3, -0.2, 0.5, 0.4, 0.1, -0.6]))
    points = jnp.asarray(RNG.normal(size=(8, 3)), float)
    seen = jax.vmap(target.apply)(points)

    @jax.jit
    def step(pose):
        def loss_of(pose):
            return jnp.mean((jax.vmap(pose.apply)(points) - seen) ** 2)

        loss, grads = jaxlie.manifold.value_and_grad(loss_of)(pose)
        return jaxlie.manifold.rplus(pose, jax.tree.map(lambda g: -0.3 * g, grads)), loss

    pose, losses = jaxlie.SE3.identity(), []
    for _ in range(15):
        pose, loss = step(pose)
        losses.append(loss)
    return losses, pose.log()


if __name__ == "__main__":
    show({"groups": groups(), "fit": fit()})
