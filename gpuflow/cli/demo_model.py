"""The network of the demo and its Adam step, in gpuflow and once more by hand in NumPy.

Tests: tests/cli/test_demo.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp

CLASSES = 10
LEARNING_RATE = 1e-3
DECAY_MEAN = 0.9
DECAY_SQUARE = 0.999
EPSILON = 1e-8

State = dict[str, Any]


def initial_state(key: Any, sizes: Sequence[int]) -> State:
    """Parameters of a perceptron with layers of `sizes`, and Adam's moments.

    Weights are normal with variance 2 / fan-in (He et al. 2015, eq. 10), biases zero.
    """
    params = []
    keys = gf.random.split(key, len(sizes) - 1)
    for layer_key, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True):
        weights = gf.random.normal(layer_key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5
        params.append({"w": weights, "b": jnp.zeros(fan_out)})
    return {
        "params": params,
        "mean": gf.tree_util.tree_map(jnp.zeros_like, params),
        "square": gf.tree_util.tree_map(jnp.zeros_like, params),
        # decay ** step: the divisor that removes Adam's bias of the first steps.
        "mean_left": jnp.ones(()),
        "square_left": jnp.ones(()),
    }


def logits(params: Any, images: Any) -> Any:
    """f32[batch, 10] from images f32[batch, 64]."""
    hidden = images
    for layer in params[:-1]:
        hidden = gf.nn.relu(hidden @ layer["w"] + layer["b"])
    return hidden @ params[-1]["w"] + params[-1]["b"]


def cross_entropy(params: Any, images: Any, labels: Any) -> Any:
    """Mean cross-entropy of the batch; labels are integers."""
    log_probabilities = gf.nn.log_softmax(logits(params, images))
    return -jnp.mean(jnp.sum(gf.nn.one_hot(labels, CLASSES) * log_probabilities, axis=-1))


def train_step(state: State, images: Any, labels: Any) -> tuple[State, Any]:
    """One step of Adam (Kingma and Ba 2015, algorithm 1); returns the new state and the loss."""
    loss, grads = gf.value_and_grad(cross_entropy)(state["params"], images, labels)
    tree_map = gf.tree_util.tree_map
    mean = tree_map(lambda m, g: DECAY_MEAN * m + (1 - DECAY_MEAN) * g, state["mean"], grads)
    square = tree_map(
        lambda s, g: DECAY_SQUARE * s + (1 - DECAY_SQUARE) * g * g, state["square"], grads
    )
    mean_left = state["mean_left"] * DECAY_MEAN
    square_left = state["square_left"] * DECAY_SQUARE

    def update(parameter: Any, m: Any, s: Any) -> Any:
        scale = jnp.sqrt(s / (1 - square_left)) + EPSILON
        return parameter - LEARNING_RATE * (m / (1 - mean_left)) / scale

    params = tree_map(update, state["params"], mean, square)
    new_state = {
        "params": params,
        "mean": mean,
        "square": square,
        "mean_left": mean_left,
        "square_left": square_left,
    }
    return new_state, loss


def accuracy(params: Any, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose largest logit is that of their label."""
    scores = np.asarray(gf.jit(logits)(params, images))
    return float(np.mean(scores.argmax(axis=-1) == labels))


def to_numpy(state: State) -> State:
    """A copy of the state in NumPy arrays."""
    return gf.tree_util.tree_map(lambda leaf: np.array(leaf), state)


def from_numpy(state: State) -> State:
    """A copy of the state on the default device."""
    return gf.tree_util.tree_map(jnp.array, state)


def numpy_train_step(
    state: State, images: np.ndarray, labels: np.ndarray
) -> tuple[State, np.floating]:
    """The same step with its derivatives written by hand."""
    params = state["params"]
    activations = [images]
    for layer in params[:-1]:
        activations.append(np.maximum(activations[-1] @ layer["w"] + layer["b"], 0))
    scores = activations[-1] @ params[-1]["w"] + params[-1]["b"]
    shifted = scores - scores.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    rows = np.arange(len(labels))
    loss = -log_probabilities[rows, labels].mean()

    # d loss / d scores = (softmax - one_hot) / batch, then backwards through the layers.
    error = np.exp(log_probabilities)
    error[rows, labels] -= 1
    error /= np.float32(len(labels))
    grads: list[Any] = [None] * len(params)
    for index in reversed(range(len(params))):
        grads[index] = {"w": activations[index].T @ error, "b": error.sum(axis=0)}
        if index > 0:
            error = (error @ params[index]["w"].T) * (activations[index] > 0)
    return _numpy_adam(state, grads), loss


def _numpy_adam(state: State, grads: list[Any]) -> State:
    mean_left = np.float32(state["mean_left"] * np.float32(DECAY_MEAN))
    square_left = np.float32(state["square_left"] * np.float32(DECAY_SQUARE))
    new: State = {
        "params": [],
        "mean": [],
        "square": [],
        "mean_left": mean_left,
        "square_left": square_left,
    }
    layers = zip(state["params"], state["mean"], state["square"], grads, strict=True)
    for layer, old_mean, old_square, grad in layers:
        params, mean, square = {}, {}, {}
        for name in ("w", "b"):
            mean[name] = DECAY_MEAN * old_mean[name] + (1 - DECAY_MEAN) * grad[name]
            square[name] = DECAY_SQUARE * old_square[name] + (1 - DECAY_SQUARE) * grad[name] ** 2
            scale = np.sqrt(square[name] / (1 - square_left)) + EPSILON
            params[name] = layer[name] - LEARNING_RATE * (mean[name] / (1 - mean_left)) / scale
        new["params"].append(params)
        new["mean"].append(mean)
        new["square"].append(square)
    return new
