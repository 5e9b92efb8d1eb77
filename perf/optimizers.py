"""Optimizers and the training step, in one source for every framework with JAX's names.

See models.py for the conventions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

LEARNING_RATE = 1e-3


def adam_state(params: Any) -> dict[str, Any]:
    """Parameters (a tree of NumPy arrays) with Adam's moments and powers of its two rates."""
    one = np.ones((), np.float32)
    return {
        "params": params,
        "m": map_arrays(np.zeros_like, params),
        "v": map_arrays(np.zeros_like, params),
        "left": one,
        "left2": one.copy(),
    }


def adam(jax: Any, jnp: Any, state: dict[str, Any], grads: Any) -> dict[str, Any]:
    """One Adam update of all parameters (Kingma and Ba 2015, algorithm 1)."""
    tree_map = jax.tree_util.tree_map
    m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
    left, left2 = state["left"] * 0.9, state["left2"] * 0.999

    def update(p: Any, m: Any, v: Any) -> Any:
        return p - LEARNING_RATE * (m / (1 - left)) / (jnp.sqrt(v / (1 - left2)) + 1e-8)

    params = tree_map(update, state["params"], m, v)
    return {"params": params, "m": m, "v": v, "left": left, "left2": left2}


def sgd_state(params: Any) -> dict[str, Any]:
    """Parameters (a tree of NumPy arrays) with their momentum."""
    return {"params": params, "momentum": map_arrays(np.zeros_like, params)}


def sgd(jax: Any, jnp: Any, state: dict[str, Any], grads: Any) -> dict[str, Any]:
    """One update by gradient descent with momentum 0.9."""
    tree_map = jax.tree_util.tree_map
    momentum = tree_map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = tree_map(lambda p, m: p - LEARNING_RATE * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}


def clip_by_global_norm(jax: Any, jnp: Any, grads: Any, limit: float = 1.0) -> Any:
    """Gradients scaled down to a common norm of at most `limit` (Pascanu et al. 2013)."""
    squares = [jnp.sum(g * g) for g in jax.tree_util.tree_leaves(grads)]
    norm = jnp.sqrt(sum(squares))
    scale = limit / jnp.maximum(norm, limit)
    return jax.tree_util.tree_map(lambda g: g * scale, grads)


def many_params(count: int = 100) -> list[np.ndarray]:
    """Parameters of various shapes, matrices and vectors in turn."""
    generator = np.random.default_rng(7)
    shapes = [(48 + k, 32) if k % 2 == 0 else (48 + k,) for k in range(count)]
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def map_arrays(function: Callable[[Any], Any], values: Any) -> Any:
    """`function` of every array in nested lists and dicts."""
    if isinstance(values, dict):
        return {name: map_arrays(function, value) for name, value in values.items()}
    if isinstance(values, list):
        return [map_arrays(function, value) for value in values]
    return function(values)


def training_step(
    jax: Any, jnp: Any, loss: Callable[..., Any], update: Callable[..., Any]
) -> Callable[..., Any]:
    """The step (state, *data) -> (state, loss), not yet compiled.

    Args:
        jax, jnp: the framework.
        loss: one of the functions (jax, jnp, params, *data) above.
        update: `adam` or `sgd`.
    """

    def step(state: Any, *data: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return loss(jax, jnp, params, *data)

        value, grads = jax.value_and_grad(loss_of)(state["params"])
        return update(jax, jnp, state, grads), value

    return step
