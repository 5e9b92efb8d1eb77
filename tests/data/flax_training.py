"""Trains small networks with unmodified flax.linen and optax; prints what they compute as JSON.

It is a program of JAX. make_library_losses.py runs it on JAX, test_as_jax.py on gpuflow.
"""

import json

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization, traverse_util
from flax.training import common_utils
from flax.training.train_state import TrainState

STEPS = 25


class ConvolutionNetwork(nn.Module):
    """Two convolutions, batch normalization, dropout, a head."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.relu(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Conv(16, (3, 3), strides=(2, 2))(x)
        x = nn.gelu(x)
        x = nn.avg_pool(x, (2, 2), (2, 2), padding="SAME")
        x = x.reshape(x.shape[0], -1)
        x = nn.LayerNorm()(x)
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(4)(x)


class Block(nn.Module):
    """A block of a transformer."""

    @nn.compact
    def __call__(self, x, deterministic):
        y = nn.LayerNorm()(x)
        mask = nn.make_causal_mask(x[..., 0])
        attention = nn.MultiHeadDotProductAttention(num_heads=2, dropout_rate=0.1)
        x = x + attention(y, y, mask=mask, deterministic=deterministic)
        y = nn.Dense(32)(nn.RMSNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.silu(y))


class Language(nn.Module):
    """Embedding, two blocks, logits by the embedding."""

    def setup(self):
        self.embed = nn.Embed(11, 16)
        self.blocks = [nn.remat(Block, static_argnums=(2,))() for _ in range(2)]

    def __call__(self, tokens, deterministic=False):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, deterministic)
        return self.embed.attend(x)


class Recurrent(nn.Module):
    """A bidirectional LSTM and a GRU, by the lifted scan."""

    @nn.compact
    def __call__(self, x):
        forward, backward = nn.RNN(nn.LSTMCell(6)), nn.RNN(nn.LSTMCell(6))
        x = nn.Bidirectional(forward, backward)(x)
        x = nn.RNN(nn.GRUCell(6))(x)
        return nn.Dense(1)(x[:, -1])


class Residual(nn.Module):
    """A layer for ``nn.scan``: one set of parameters for each of its applications."""

    @nn.compact
    def __call__(self, x, _):
        return x + nn.tanh(nn.Dense(5)(x)), None


class Deep(nn.Module):
    """Four residual layers as one loop, and a layer over an ensemble by ``nn.vmap``."""

    @nn.compact
    def __call__(self, x):
        stack = nn.scan(
            Residual, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
        )
        x, _ = stack()(x, None)
        ensemble = nn.vmap(
            nn.Dense,
            in_axes=None,
            out_axes=0,
            axis_size=3,
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        return ensemble(1)(x).mean(axis=0)


class Normalized(nn.Module):
    """The other layers, once each."""

    @nn.compact
    def __call__(self, x):
        x = nn.ConvTranspose(6, (3, 3), strides=(2, 2))(x)
        x = nn.PReLU()(nn.GroupNorm(num_groups=3)(x))
        x = nn.InstanceNorm()(x)
        x = nn.DenseGeneral(features=(3, 2), axis=-1)(x)
        x = nn.Einsum((3, 2, 4), "...ab,abc->...c")(x)
        x = nn.WeightNorm(nn.Dense(4))(x)
        x = nn.SpectralNorm(nn.Dense(4))(x, update_stats=True)
        return nn.ConvLocal(3, (2, 2))(x).sum(axis=(1, 2))


class State(TrainState):
    """With the running statistics of batch normalization."""

    batch_stats: flax.core.FrozenDict


def images():
    """Images f32[64, 8, 8, 1] with a bright quarter, and which one it is."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 64)
    x = rng.normal(size=(64, 8, 8, 1))
    for k, label in enumerate(labels):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[k, row : row + 4, column : column + 4] += 1.0
    return x.astype(np.float32), labels.astype(np.int32)


def train_convolutions():
    x, labels = images()
    model = ConvolutionNetwork()
    variables = model.init(jax.random.key(0), x[:1], train=False)
    state = State.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.adamw(optax.cosine_decay_schedule(1e-2, STEPS)),
    )

    @jax.jit
    def step(state, key):
        def loss(params):
            logits, changed = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                x,
                train=True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), changed["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=stats), value

    losses = []
    for key in jax.random.split(jax.random.key(1), STEPS):
        state, value = step(state, key)
        losses.append(value)
    logits = model.apply({"params": state.params, "batch_stats": state.batch_stats}, x, train=False)
    accuracy = (logits.argmax(-1) == labels).mean()
    restored = serialization.from_bytes(state.params, serialization.to_bytes(state.params))
    same = jax.tree.map(
        lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), state.params, restored
    )
    assert all(jax.tree.leaves(same))
    return [*losses, accuracy]


def train_model(model, inputs, loss, rngs=None):
    """Losses of Adam from ``model.init``."""
    keys = {"params": jax.random.key(2), **(rngs or {})}
    variables = jax.jit(model.init)(keys, inputs)
    rest = {name: value for name, value in variables.items() if name != "params"}
    optimizer = optax.adam(1e-2)
    params = variables["params"]
    state = optimizer.init(params)

    @jax.jit
    def step(params, rest, state, key):
        def total(params):
            dropped = {name: key for name in rngs or {}}
            outputs, changed = model.apply(
                {"params": params, **rest}, inputs, rngs=dropped, mutable=list(rest)
            )
            return loss(outputs), changed

        (value, changed), grads = jax.value_and_grad(total, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), {**rest, **changed}, state, value

    losses = []
    for key in jax.random.split(jax.random.key(3), 10):
        params, rest, state, value = step(params, rest, state, key)
        losses.append(value)
    return losses


def train_language():
    tokens = np.random.default_rng(1).integers(0, 11, (4, 9)).astype(np.int32)

    def loss(logits):
        targets = common_utils.onehot(tokens[:, 1:], 11)
        return optax.softmax_cross_entropy(logits[:, :-1], targets).mean()

    return train_model(Language(), tokens, loss, {"dropout": jax.random.key(4)})


def train_recurrent():
    x = np.random.default_rng(2).normal(size=(5, 7, 3)).astype(np.float32)
    return train_model(Recurrent(), x, lambda y: ((y[:, 0] - x.sum((1, 2))) ** 2).mean())


def train_deep():
    x = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
    return train_model(Deep(), x, lambda y: ((y[:, 0] - np.sin(x[:, 0])) ** 2).mean())


def train_normalized():
    x = np.random.default_rng(4).normal(size=(3, 4, 4, 3)).astype(np.float32)
    return train_model(Normalized(), x, lambda y: (y**2).mean() - y.mean())


def tabulated():
    """The words of ``tabulate``, sorted: libraries differ in the order of a dict's keys."""
    text = ConvolutionNetwork().tabulate(
        jax.random.key(0),
        np.zeros((1, 8, 8, 1), np.float32),
        train=False,
        console_kwargs={"force_terminal": False, "width": 200},
        compute_flops=False,
    )
    for frame in "│┃━┏┓┗┛┡┩┳╇└┘┴─├┤┼┬┴":
        text = text.replace(frame, " ")
    return sorted(text.split())


def main():
    losses = {
        "convolutions": train_convolutions(),
        "language": train_language(),
        "recurrent": train_recurrent(),
        "deep": train_deep(),
        "normalized": train_normalized(),
    }
    network = ConvolutionNetwork()
    shapes = jax.eval_shape(
        lambda key: network.init(key, jnp.zeros((1, 8, 8, 1)), train=False), jax.random.key(0)
    )
    flat = traverse_util.flatten_dict(shapes, sep="/")
    print(
        json.dumps(
            {
                "jax": jax.__version__,
                "losses": {k: [float(value) for value in v] for k, v in losses.items()},
                "shapes": {name: list(leaf.shape) for name, leaf in sorted(flat.items())},
                "table": tabulated(),
            }
        )
    )


if __name__ == "__main__":
    main()
