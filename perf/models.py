"""Models in one source for every framework with JAX's names.

Functions take a JAX-like module (with `nn`, `lax`, `tree_util`) and a NumPy-like one. Parameters
and data come from NumPy's generator as NumPy arrays, so that they are equal everywhere;
`device_tree` hands them to a framework. Benchmarks time these models, tests count their steps.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

EPSILON = 1e-5


def device_tree(jax: Any, jnp: Any, values: Any) -> Any:
    """The tree's NumPy arrays as arrays of the framework."""
    return jax.tree_util.tree_map(jnp.asarray, values)


def _normal(generator: np.random.Generator, *shape: int, fan_in: int | None = None) -> np.ndarray:
    """Normal numbers, scaled to keep the variance of a sum of `fan_in` terms."""
    values = generator.standard_normal(shape, dtype=np.float32)
    return values / np.float32((fan_in or shape[0]) ** 0.5)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


# --- losses ------------------------------------------------------------------------------------


def one_hot_cross_entropy(jax: Any, jnp: Any, scores: Any, labels: Any) -> Any:
    """Mean cross-entropy; labels f32[batch, classes] are distributions."""
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(scores) * labels, axis=-1))


def integer_cross_entropy(jax: Any, jnp: Any, scores: Any, labels: Any) -> Any:
    """Mean cross-entropy; labels i32[batch] are classes."""
    logs = jax.nn.log_softmax(scores)
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))


def squared_error(jax: Any, jnp: Any, predicted: Any, wanted: Any) -> Any:
    """Mean squared error."""
    difference = predicted - wanted
    return jnp.mean(difference * difference)


# --- perceptron --------------------------------------------------------------------------------

LAYER_SIZES = (784, 512, 512, 10)
BATCH_SIZE = 128


def mlp_params(sizes: tuple[int, ...] = LAYER_SIZES) -> list[dict[str, np.ndarray]]:
    """Weights f32[in, out] and biases f32[out] of each layer."""
    generator = np.random.default_rng(0)
    return [
        {"w": _normal(generator, fan_in, fan_out), "b": _zeros(fan_out)}
        for fan_in, fan_out in itertools.pairwise(sizes)
    ]


def mlp_batch(count: int = BATCH_SIZE, features: int = 784) -> tuple[np.ndarray, np.ndarray]:
    """Images f32[count, features] and one-hot labels f32[count, 10]."""
    generator = np.random.default_rng(count)
    images = generator.random((count, features), dtype=np.float32)
    labels = np.eye(10, dtype=np.float32)[generator.integers(0, 10, count)]
    return images, labels


def mlp(jax: Any, jnp: Any, params: Any, images: Any) -> Any:
    """Scores f32[batch, classes] of a perceptron with ReLU."""
    hidden = images
    for layer in params[:-1]:
        hidden = jax.nn.relu(hidden @ layer["w"] + layer["b"])
    return hidden @ params[-1]["w"] + params[-1]["b"]


def mlp_loss(jax: Any, jnp: Any, params: Any, images: Any, labels: Any) -> Any:
    """Cross-entropy of the perceptron, labels one-hot."""
    return one_hot_cross_entropy(jax, jnp, mlp(jax, jnp, params, images), labels)


def mlp_integer_loss(jax: Any, jnp: Any, params: Any, images: Any, labels: Any) -> Any:
    """Cross-entropy of the perceptron, labels integers."""
    return integer_cross_entropy(jax, jnp, mlp(jax, jnp, params, images), labels)


# --- transformer block -------------------------------------------------------------------------


def transformer_params(width: int = 256) -> dict[str, np.ndarray]:
    """Parameters of one block: attention, two normalizations, and a perceptron four times as wide.

    Attention's matrices are f32[width, width] and have no biases, as in Vaswani et al. 2017.
    """
    generator = np.random.default_rng(1)
    inner = 4 * width
    return {
        "query": _normal(generator, width, width),
        "key": _normal(generator, width, width),
        "value": _normal(generator, width, width),
        "output": _normal(generator, width, width),
        "scale1": _ones(width),
        "offset1": _zeros(width),
        "scale2": _ones(width),
        "offset2": _zeros(width),
        "up": _normal(generator, width, inner),
        "up_bias": _zeros(inner),
        "down": _normal(generator, inner, width),
        "down_bias": _zeros(width),
    }


def transformer_batch(
    count: int = 8, length: int = 128, width: int = 256
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets f32[count, length, width]."""
    generator = np.random.default_rng(2)
    shape = (count, length, width)
    inputs = generator.standard_normal(shape, dtype=np.float32)
    return inputs, generator.standard_normal(shape, dtype=np.float32)


def layernorm(jnp: Any, x: Any, scale: Any, offset: Any) -> Any:
    """Normalization over the last axis (Ba et al. 2016, equation 4)."""
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    return centered / jnp.sqrt(variance + EPSILON) * scale + offset


def attention(jax: Any, jnp: Any, params: Any, x: Any, heads: int) -> Any:
    """Causal self-attention of x f32[batch, length, width] (Vaswani et al. 2017, equation 1)."""
    batch, length, width = x.shape
    depth = width // heads

    def split(name: str) -> Any:
        return jnp.swapaxes((x @ params[name]).reshape(batch, length, heads, depth), 1, 2)

    scores = split("query") @ jnp.swapaxes(split("key"), 2, 3) / depth**0.5
    positions = jnp.arange(length)
    visible = positions[:, None] >= positions[None, :]
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
    mixed = jnp.swapaxes(weights @ split("value"), 1, 2).reshape(batch, length, width)
    return mixed @ params["output"]


def transformer_block(jax: Any, jnp: Any, params: Any, x: Any, heads: int = 4) -> Any:
    """One block with the normalizations before attention and perceptron."""
    normed = layernorm(jnp, x, params["scale1"], params["offset1"])
    x = x + attention(jax, jnp, params, normed, heads)
    normed = layernorm(jnp, x, params["scale2"], params["offset2"])
    inner = jax.nn.gelu(normed @ params["up"] + params["up_bias"])
    return x + inner @ params["down"] + params["down_bias"]


def transformer_loss(jax: Any, jnp: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Squared error of one block."""
    return squared_error(jax, jnp, transformer_block(jax, jnp, params, inputs), targets)


# --- convolutional network ---------------------------------------------------------------------


def cnn_params(channels: tuple[int, ...] = (1, 32, 64), classes: int = 10) -> dict[str, Any]:
    """Two 3 x 3 convolutions with batch normalization, for images 28 x 28, and a dense layer."""
    generator = np.random.default_rng(3)
    blocks = [
        {
            "kernel": _normal(generator, after, before, 3, 3, fan_in=9 * before),
            "scale": _ones(after),
            "offset": _zeros(after),
        }
        for before, after in itertools.pairwise(channels)
    ]
    features = channels[-1] * 7 * 7
    return {"blocks": blocks, "w": _normal(generator, features, classes), "b": _zeros(classes)}


def cnn_batch(count: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Images f32[count, 1, 28, 28] and labels i32[count]."""
    generator = np.random.default_rng(4)
    images = generator.random((count, 1, 28, 28), dtype=np.float32)
    return images, generator.integers(0, 10, count).astype(np.int32)


def batchnorm(jnp: Any, x: Any, scale: Any, offset: Any) -> Any:
    """Normalization of x f32[batch, channels, height, width] over all but the channels.

    Source: Ioffe and Szegedy 2015, algorithm 1.
    """
    mean = jnp.mean(x, axis=(0, 2, 3), keepdims=True)
    variance = jnp.mean((x - mean) * (x - mean), axis=(0, 2, 3), keepdims=True)
    normed = (x - mean) / jnp.sqrt(variance + EPSILON)
    return normed * scale[:, None, None] + offset[:, None, None]


def max_pool(jax: Any, x: Any) -> Any:
    """The maximum of every 2 x 2 pixels."""
    window = (1, 1, 2, 2)
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, window, "VALID")


def cnn(jax: Any, jnp: Any, params: Any, images: Any) -> Any:
    """Scores f32[batch, classes]."""
    x = images
    for block in params["blocks"]:
        x = jax.lax.conv_general_dilated(x, block["kernel"], (1, 1), "SAME")
        x = jax.nn.relu(batchnorm(jnp, x, block["scale"], block["offset"]))
        x = max_pool(jax, x)
    return x.reshape(x.shape[0], -1) @ params["w"] + params["b"]


def cnn_loss(jax: Any, jnp: Any, params: Any, images: Any, labels: Any) -> Any:
    """Cross-entropy of the convolutional network, labels integers."""
    return integer_cross_entropy(jax, jnp, cnn(jax, jnp, params, images), labels)


# --- recurrent network -------------------------------------------------------------------------


def gru_params(features: int = 64, units: int = 128) -> dict[str, np.ndarray]:
    """Matrices of the three gates side by side: reset, update, candidate."""
    generator = np.random.default_rng(5)
    return {
        "w": _normal(generator, features, 3 * units),
        "u": _normal(generator, units, 3 * units),
        "b": _zeros(3 * units),
    }


def gru_batch(
    length: int = 32, count: int = 16, features: int = 64, units: int = 128
) -> tuple[np.ndarray, np.ndarray]:
    """A sequence f32[length, count, features] and targets f32[count, units]."""
    generator = np.random.default_rng(6)
    sequence = generator.standard_normal((length, count, features), dtype=np.float32)
    return sequence, generator.standard_normal((count, units), dtype=np.float32)


def gru_loss(jax: Any, jnp: Any, params: Any, sequence: Any, targets: Any) -> Any:
    """Squared error of the last state of a gated recurrent unit (Cho et al. 2014, section 2.3)."""
    units = params["u"].shape[0]

    def step(hidden: Any, x: Any) -> Any:
        inside = x @ params["w"] + params["b"]
        outside = hidden @ params["u"]
        reset = jax.nn.sigmoid(inside[:, :units] + outside[:, :units])
        update = jax.nn.sigmoid(inside[:, units : 2 * units] + outside[:, units : 2 * units])
        candidate = jnp.tanh(inside[:, 2 * units :] + reset * outside[:, 2 * units :])
        return update * hidden + (1 - update) * candidate, None

    start = jnp.zeros((sequence.shape[1], units), sequence.dtype)
    last, _ = jax.lax.scan(step, start, sequence)
    return squared_error(jax, jnp, last, targets)
