"""equinox: modules, filtered transformations, layers with state, and its own loops and checks."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from common import digits, show

POINTS, LABELS = digits()


def training():
    model = eqx.nn.MLP(16, 5, 32, 2, activation=jax.nn.gelu, key=jr.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_value_and_grad
    def loss_of(model, x, y):
        scores = jax.vmap(model)(x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean()

    @eqx.filter_jit
    def step(model, state, x, y):
        loss, grads = loss_of(model, x, y)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for _ in range(20):
        model, state, loss = step(model, state, POINTS, LABELS)
        losses.append(loss)
    return losses


class Convolutional(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key):
        one, two = jr.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=one)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.2)
        self.head = eqx.nn.Linear(16, 5, key=two)

    def __call__(self, x, state, key):
        x = self.conv(x.reshape(1, 4, 4))
        x, state = self.norm(x, state)
        x = self.dropout(jax.nn.relu(x).ravel(), key=key)
        return self.head(x), state


def stateful():
    model, state = eqx.nn.make_with_state(Convolutional)(jr.key(1))

    @eqx.filter_jit
    def step(model, state, keys):
        @eqx.filter_value_and_grad(has_aux=True)
        def loss_of(model, state):
            batch = jax.vmap(model, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
            scores, state = batch(jnp.asarray(POINTS), state, keys)
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, LABELS)
            return losses.mean(), state

        (loss, state), grads = loss_of(model, state)
        grads = jax.tree.map(lambda g: -0.2 * g, grads)
        return eqx.apply_updates(model, grads), state, loss

    losses = []
    for k in range(8):
        model, state, loss = step(model, state, jr.split(jr.key(k), len(POINTS)))
        losses.append(loss)
    return losses


def recurrent():
    cell = eqx.nn.GRUCell(16, 8, key=jr.key(2))
    attention = eqx.nn.MultiheadAttention(2, 8, key=jr.key(3))

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(modules):
        cell, attention = modules
        _, states = jax.lax.scan(lambda h, x: (cell(x, h),) * 2, jnp.zeros(8), POINTS[:12])
        return jnp.sum(attention(states, states, states) ** 2)

    return [jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(gradient((cell, attention)))]


def loops():
    def total(x, kind):
        def body(carry):
            count, value = carry
            return count + 1, jnp.sin(value) + x

        _, out = (
            eqxi.while_loop(
                lambda carry: carry[0] < 7, body, (0, x), max_steps=16, kind=kind, checkpoints=3
            )
            if kind == "checkpointed"
            else eqxi.while_loop(lambda carry: carry[0] < 7, body, (0, x), max_steps=16, kind=kind)
        )
        return jnp.sum(out)

    x = jnp.linspace(0.1, 0.5, 4)
    results = [total(x, "lax")]
    for kind in ("checkpointed", "bounded"):
        results.append(jax.jit(jax.grad(total), static_argnums=1)(x, kind))
        results.append(jax.vmap(lambda v, kind=kind: jax.grad(total)(v, kind))(x))
    return results


def checks():
    """Errors that are raised when a program runs."""

    @eqx.filter_jit
    def positive(x):
        return eqx.error_if(x, x < 0, "x must be positive") * 2

    raised = 0
    try:
        positive(jnp.array(-1.0))
    except Exception as error:
        raised = int("x must be positive" in str(error))
    return positive(jnp.array(3.0)), raised


def transformations():
    def f(x, flag):
        return jnp.where(flag, jnp.sin(x), x) * 2

    vmapped = eqx.filter_vmap(f, in_axes=(0, None))(jnp.arange(3.0), True)
    jacobian = eqx.filter_jacrev(lambda x: jnp.outer(x, x))(jnp.arange(2.0))
    closed = eqx.filter_closure_convert(lambda x: x * jnp.arange(3.0), jnp.array(1.0))
    custom = eqx.filter_custom_vjp(lambda x: x**2)
    custom.def_fwd(lambda perturbed, x: (x**2, x))
    custom.def_bwd(lambda residuals, grad, perturbed, x: 3 * residuals * grad)
    unvmapped = jax.vmap(lambda x: x + eqxi.unvmap_max(x))(jnp.arange(3))
    outside = eqxi.noinline(lambda x: x * 3)(jnp.array(2.0))
    tree = eqx.tree_at(lambda pair: pair[0], (1.0, 2.0), 5.0)
    two = jnp.array(2.0)
    return vmapped, jacobian, closed(two), jax.grad(custom)(two), unvmapped, outside, tree


if __name__ == "__main__":
    assert np.isfinite(POINTS).all()
    parts = (training, stateful, recurrent, loops, checks, transformations)
    show({part.__name__: part() for part in parts})
