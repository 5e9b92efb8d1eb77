"""Trains a perceptron with unmodified optax; prints the losses of each recipe as JSON.

It is a program of JAX. make_library_losses.py runs it on JAX, test_as_jax.py on gpuflow.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 40
BATCH = 64
CLASSES = 10


def digits():
    """Images f32[512, 64] around one center per class, and their labels."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(CLASSES, 64))
    labels = rng.integers(0, CLASSES, 512)
    images = centers[labels] + 0.7 * rng.normal(size=(512, 64))
    return images.astype(np.float32), labels.astype(np.int32)


def initial_params(key):
    params = []
    sizes = (64, 32, CLASSES)
    for layer_key, fan_in, fan_out in zip(jax.random.split(key, 2), sizes[:-1], sizes[1:]):
        weights = jax.random.normal(layer_key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5
        params.append({"w": weights, "b": jnp.zeros(fan_out)})
    return params


def logits(params, images):
    hidden = jax.nn.relu(images @ params[0]["w"] + params[0]["b"])
    return hidden @ params[1]["w"] + params[1]["b"]


def integer_cross_entropy(scores, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def smoothed_cross_entropy(scores, labels):
    targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)
    return optax.softmax_cross_entropy(scores, targets).mean()


def binary_cross_entropy(scores, labels):
    return optax.sigmoid_binary_cross_entropy(scores, jax.nn.one_hot(labels, CLASSES)).mean()


def focal(scores, labels):
    return optax.sigmoid_focal_loss(scores, jax.nn.one_hot(labels, CLASSES), gamma=1.5).mean()


def huber(scores, labels):
    return optax.huber_loss(scores, jax.nn.one_hot(labels, CLASSES), delta=0.5).mean()


def squared(scores, labels):
    return optax.l2_loss(scores, jax.nn.one_hot(labels, CLASSES)).mean()


def log_cosh(scores, labels):
    return optax.log_cosh(scores, jax.nn.one_hot(labels, CLASSES)).mean()


def hinge(scores, labels):
    return optax.hinge_loss(scores, 2.0 * jax.nn.one_hot(labels, CLASSES) - 1.0).mean()


def cosine(scores, labels):
    return optax.cosine_distance(scores, jax.nn.one_hot(labels, CLASSES), epsilon=1e-6).mean()


def divergence(scores, labels):
    targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.2)
    return optax.kl_divergence(jax.nn.log_softmax(scores), targets).mean()


def matrices_only(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def recipes():
    """Name: optimizer and loss."""
    warm = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 10, STEPS, 1e-4)
    steps = optax.piecewise_constant_schedule(0.05, {15: 0.5, 30: 0.2})
    halving = optax.exponential_decay(2e-2, 10, 0.5, staircase=True)
    joined = optax.join_schedules(
        [optax.linear_schedule(0.0, 1e-2, 8), optax.cosine_decay_schedule(1e-2, 32)], [8]
    )
    adamw = optax.adamw(warm, weight_decay=1e-2, mask=matrices_only)
    groups = {"slow": optax.sgd(1e-2), "fast": optax.adam(3e-3)}
    labels = [{"w": "fast", "b": "slow"}, {"w": "slow", "b": "fast"}]
    return {
        "adamw": (optax.chain(optax.clip_by_global_norm(1.0), adamw), integer_cross_entropy),
        "adam": (optax.adam(joined), smoothed_cross_entropy),
        "sgd": (optax.sgd(steps, momentum=0.9, nesterov=True), integer_cross_entropy),
        "rmsprop": (optax.rmsprop(1e-3, momentum=0.9, centered=True), binary_cross_entropy),
        "adagrad": (optax.adagrad(5e-2), focal),
        "adadelta": (optax.adadelta(1.0), squared),
        "lion": (optax.lion(1e-3, weight_decay=1e-2), log_cosh),
        "lamb": (optax.lamb(1e-2), integer_cross_entropy),
        "lars": (optax.lars(1e-1), integer_cross_entropy),
        "adafactor": (optax.adafactor(1e-2, min_dim_size_to_factor=8), integer_cross_entropy),
        "nadam": (optax.nadam(3e-3), hinge),
        "radam": (optax.radam(3e-3), huber),
        "adamax": (optax.adamax(3e-3), divergence),
        "adabelief": (optax.adabelief(3e-3), cosine),
        "yogi": (optax.yogi(3e-3), integer_cross_entropy),
        "noise": (optax.noisy_sgd(2e-2, eta=1e-3, key=3), integer_cross_entropy),
        "groups": (optax.multi_transform(groups, labels), integer_cross_entropy),
        "accumulated": (
            optax.MultiSteps(optax.adam(halving), 2).gradient_transformation(),
            integer_cross_entropy,
        ),
        "adaptive_clip": (
            optax.chain(optax.adaptive_grad_clip(0.05), optax.clip(0.1), optax.sgd(0.5)),
            integer_cross_entropy,
        ),
        "injected": (
            optax.inject_hyperparams(optax.adamw)(learning_rate=halving),
            integer_cross_entropy,
        ),
        "lookup": (optax.apply_if_finite(optax.amsgrad(3e-3), 2), integer_cross_entropy),
    }


def train(optimizer, loss):
    images, labels = digits()
    params = initial_params(jax.random.PRNGKey(1))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, batch, targets):
        value, grads = jax.value_and_grad(lambda p: loss(logits(p, batch), targets))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for number in range(STEPS):
        rows = slice(number * BATCH % 512, number * BATCH % 512 + BATCH)
        params, state, value = step(params, state, images[rows], labels[rows])
        losses.append(value)
    return [float(value) for value in losses]


def main():
    losses = {name: train(*recipe) for name, recipe in recipes().items()}
    print(json.dumps({"jax": jax.__version__, "losses": losses}))


if __name__ == "__main__":
    main()
