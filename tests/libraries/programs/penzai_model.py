"""penzai: named arrays, a model as data, and changes to it."""

import jax
import jax.numpy as jnp
from common import digits, show
from penzai import pz

POINTS, LABELS = digits()


def model():
    first = pz.nn.Linear.from_config(
        name="first",
        init_base_rng=jax.random.key(0),
        input_axes={"features": 16},
        output_axes={"hidden": 8},
    )
    second = pz.nn.Linear.from_config(
        name="second",
        init_base_rng=jax.random.key(1),
        input_axes={"hidden": 8},
        output_axes={"classes": 5},
    )
    built = pz.nn.Sequential([first, pz.nn.Elementwise(jax.nn.relu), second])
    x = pz.nx.wrap(jnp.asarray(POINTS)).tag("batch", "features")

    def loss_of(params, rest):
        scores = pz.bind_variables(rest, params)(x).unwrap("batch", "classes")
        logs = jax.nn.log_softmax(scores)
        return -jnp.mean(logs[jnp.arange(len(LABELS)), LABELS])

    rest, variables = pz.unbind_params(built, freeze=True)
    step = jax.jit(jax.value_and_grad(loss_of))
    losses = []
    for _ in range(5):
        loss, grads = step(variables, rest)
        variables = jax.tree.map(lambda p, g: p - 0.1 * g, variables, grads)
        losses.append(loss)
    return losses


def named():
    a = pz.nx.wrap(jnp.arange(6.0).reshape(2, 3)).tag("x", "y")
    b = pz.nx.wrap(jnp.arange(3.0)).tag("y")
    total = pz.nx.nmap(jnp.sum)((a * b).untag("y"))
    return total.unwrap("x"), (a + b).unwrap("y", "x")


if __name__ == "__main__":
    show({part.__name__: part() for part in (model, named)})
