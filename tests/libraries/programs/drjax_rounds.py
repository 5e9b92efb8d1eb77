"""DrJAX: rounds of federated averaging, and their derivative through the clients' steps."""

import drjax
import jax
import jax.numpy as jnp
import numpy as np
from common import show

RNG = np.random.default_rng(0)
POINTS = jnp.float32(RNG.normal(size=(4, 10, 3)))
LABELS = POINTS @ jnp.array([1.0, -2.0, 0.5]) + 0.1


def loss_of(weights, points, labels):
    return jnp.mean((points @ weights - labels) ** 2)


def local(weights, points, labels, rate):
    def step(weights, _):
        return weights - rate * jax.grad(loss_of)(weights, points, labels), None

    return jax.lax.scan(step, weights, None, length=3)[0]


@drjax.program(placements={"clients": 4})
def averaged(weights, rate, points, labels):
    placed = drjax.broadcast((weights, rate))
    found = drjax.map_fn(lambda pair, x, y: local(pair[0], x, y, pair[1]), (placed, points, labels))
    losses = drjax.map_fn(loss_of, (found, points, labels))
    shares = jnp.float32([1.0, 2.0, 3.0, 4.0])
    return drjax.reduce_weighted_mean(found, shares), drjax.reduce_mean(losses)


def rounds():
    weights = jnp.zeros(3)
    losses = []
    for _ in range(5):
        weights, loss = jax.jit(averaged)(weights, 0.05, POINTS, LABELS)
        losses.append(loss)
    return weights, losses


def derivatives():
    def loss_after(rate):
        return averaged(jnp.zeros(3), rate, POINTS, LABELS)[1]

    return jax.value_and_grad(loss_after)(0.05), jax.jvp(loss_after, (0.05,), (1.0,))


if __name__ == "__main__":
    show({part.__name__: part() for part in (rounds, derivatives)})
