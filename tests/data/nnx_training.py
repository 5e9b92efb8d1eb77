"""Trains small networks with unmodified flax.nnx and optax; prints what they compute as JSON.

It is a program of JAX. make_library_losses.py runs it on JAX, test_as_jax.py on gpuflow.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

STEPS = 20


class ConvolutionNetwork(nnx.Module):
    """A convolution, batch normalization, dropout, a head."""

    def __init__(self, *, rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(8 * 4 * 4, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.max_pool(x, (2, 2), (2, 2))
        return self.head(self.drop(x.reshape(x.shape[0], -1)))


def images():
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 8, 8, 1)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(random.integers(0, 4, 32))


def train_convolutions():
    """nnx.jit, nnx.value_and_grad with metrics, evaluation mode."""
    model = ConvolutionNetwork(rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    x, labels = images()

    def loss_of(model):
        logits = model(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, logits

    @nnx.jit
    def step(model, optimizer, metrics):
        (loss, logits), grads = nnx.value_and_grad(loss_of, has_aux=True)(model)
        metrics.update(loss=loss, logits=logits, labels=labels)
        optimizer.update(model, grads)
        return loss

    losses = [step(model, optimizer, metrics) for _ in range(STEPS)]
    computed = metrics.compute()
    model.eval()
    mean = model.norm.mean.get_value().sum()
    return [*losses, computed["accuracy"], computed["loss"], loss_of(model)[0], mean]


class Deep(nnx.Module):
    """Equal layers, made by nnx.vmap and run by nnx.scan, with nnx.remat."""

    def __init__(self, *, rngs):
        @nnx.split_rngs(splits=4)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def layers(rngs):
            return nnx.Linear(6, 6, rngs=rngs)

        self.layers = layers(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return nnx.remat(lambda layer, x: nnx.tanh(layer(x)))(layer, x)

        return forward(x, self.layers)


def train_deep():
    model = Deep(rngs=nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((16, 6)), jnp.float32)

    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda m: ((m(x) - jnp.roll(x, 1)) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    return [step(model, optimizer) for _ in range(STEPS)]


class Recurrent(nnx.Module):
    """Embedding, attention, a recurrent layer."""

    def __init__(self, *, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.cell = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs))
        self.head = nnx.Linear(8, 11, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + self.attention(x, mask=nnx.make_causal_mask(tokens)))
        return self.head(self.cell(x))


def train_recurrent():
    """The functional style: nnx.split and nnx.merge around jax.jit and jax.grad."""
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 11, (4, 9)))
    graph, params, rest = nnx.split(Recurrent(rngs=nnx.Rngs(2)), nnx.Param, ...)
    transform = optax.adamw(1e-2)
    state = transform.init(params)

    @jax.jit
    def step(params, state):
        def loss_of(params):
            logits = nnx.merge(graph, params, rest, copy=True)(tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(STEPS):
        params, state, loss = step(params, state)
        losses.append(loss)
    return losses


class Counted(nnx.Module):
    """Two layers, and how often they were called."""

    def __init__(self, *, rngs):
        self.first = nnx.Linear(64, 16, rngs=rngs)
        self.second = nnx.Linear(16, 4, rngs=rngs)
        self.calls = nnx.Variable(jnp.asarray(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.second(nnx.relu(self.first(x.reshape(x.shape[0], -1))))


def train_refs():
    """Variables that are jax.Refs: plain jax.jit changes them."""
    with nnx.var_defaults(ref=True):
        model = Counted(rngs=nnx.Rngs(3))
    x, labels = images()

    @jax.jit
    def step(model):
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def loss_of(params):
            logits = nnx.merge(graph, params, rest)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        values = jax.tree.map(lambda ref: ref[...], params)
        loss, grads = jax.value_and_grad(loss_of)(values)
        jax.tree.map(lambda ref, g: jax.ref.addupdate(ref, ..., -0.1 * g), params, grads)
        return loss

    losses = [step(model) for _ in range(STEPS)]
    return [*losses, model.calls[...]]


class Discriminator(nnx.Module):
    """Spectral normalization of a convolution and of a head, which changes their parameters."""

    def __init__(self, *, rngs):
        conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.conv = nnx.SpectralNorm(conv, n_steps=2, rngs=rngs)
        self.head = nnx.SpectralNorm(nnx.Linear(4 * 8 * 8, 4, rngs=rngs), rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.leaky_relu(self.conv(x)).reshape(x.shape[0], -1))


def train_spectral():
    """nnx.SpectralNorm gives its variables to functions of jax.numpy, in jit and outside of it."""
    model = Discriminator(rngs=nnx.Rngs(4))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    x, labels = images()

    def loss_of(model):
        logits = model(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    losses = [loss_of(model), *[step(model, optimizer) for _ in range(STEPS)]]
    model.eval()
    sigmas = [layer.batch_stats["kernel", "sigma"][...] for layer in (model.conv, model.head)]
    return [*losses, loss_of(model), *sigmas]


def main():
    losses = {
        "convolutions": train_convolutions(),
        "deep": train_deep(),
        "recurrent": train_recurrent(),
        "refs": train_refs(),
        "spectral": train_spectral(),
    }
    model = nnx.eval_shape(lambda: ConvolutionNetwork(rngs=nnx.Rngs(0)))
    state = nnx.to_flat_state(nnx.state(model))
    shapes = {"/".join(map(str, path)): leaf.get_value().shape for path, leaf in state}
    print(
        json.dumps(
            {
                "jax": jax.__version__,
                "losses": {k: [float(value) for value in v] for k, v in losses.items()},
                "shapes": {name: list(shape) for name, shape in sorted(shapes.items())},
            }
        )
    )


if __name__ == "__main__":
    main()
