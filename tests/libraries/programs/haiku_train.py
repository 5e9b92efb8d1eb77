"""dm-haiku: transformed functions with parameters, state and random keys."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import digits, show

POINTS, LABELS = digits()


def network(x, is_training):
    x = hk.Linear(32)(x)
    x = hk.BatchNorm(True, True, 0.9)(x, is_training)
    x = hk.dropout(hk.next_rng_key(), 0.1, jax.nn.relu(x)) if is_training else jax.nn.relu(x)
    x = hk.LayerNorm(-1, True, True)(x)
    return hk.nets.MLP([16, 5])(x)


def train():
    model = hk.transform_with_state(network)
    params, state = model.init(jax.random.PRNGKey(0), POINTS, True)
    optimizer = optax.sgd(0.1, 0.9)
    opt_state = optimizer.init(params)

    @jax.jit
    def step(params, state, opt_state, key):
        def loss_of(params):
            scores, new = model.apply(params, state, key, POINTS, True)
            return optax.softmax_cross_entropy_with_integer_labels(scores, LABELS).mean(), new

        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state_ = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), new, opt_state_, loss

    losses = []
    for k in range(15):
        params, state, opt_state, loss = step(params, state, opt_state, jax.random.PRNGKey(k))
        losses.append(loss)
    return losses


def sequences():
    def f(x):
        core = hk.LSTM(8)
        outs, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        attended = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling())(
            outs, outs, outs
        )
        images = hk.Conv2D(3, 3)(x.reshape(-1, 4, 4, 1))
        return attended.sum() + hk.max_pool(images, 2, 2, "SAME").sum()

    model = hk.without_apply_rng(hk.transform(f))
    x = jnp.asarray(POINTS[:24].reshape(6, 4, 16))
    params = model.init(jax.random.PRNGKey(1), x)
    grads = jax.jit(jax.grad(model.apply))(params, x)

    def scan(x):
        linear = hk.Linear(1)
        linear(x[0])
        return hk.scan(lambda c, v: (c + linear(v).sum(), c), 0.0, x)

    scanned = hk.transform(scan)
    first = scanned.init(jax.random.PRNGKey(2), x[:, 0])
    outs = scanned.apply(first, None, x[:, 0])
    names = [len(name) for name in hk.data_structures.to_mutable_dict(params)]
    sizes = np.cumsum(names)
    return model.apply(params, x), [jnp.linalg.norm(g) for g in jax.tree.leaves(grads)], outs, sizes


if __name__ == "__main__":
    show({part.__name__: part() for part in (train, sequences)})
