"""An optimizer in optax's manner: init and update, with a state of trees."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, tree

Tree = Any


class AdamState(NamedTuple):
    steps: Array
    mu: Tree
    nu: Tree


class Transformation(NamedTuple):
    init: Callable[[Tree], AdamState]
    update: Callable[[Tree, AdamState], tuple[Tree, AdamState]]


def adam(rate: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Transformation:
    def init(params: Tree) -> AdamState:
        zeros = tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(grads: Tree, state: AdamState) -> tuple[Tree, AdamState]:
        count = state.steps + 1
        mu = tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = tree.map(lambda v, g: b2 * v + (1 - b2) * g**2, state.nu, grads)
        c1, c2 = 1 - b1**count, 1 - b2**count
        updates = tree.map(lambda m, v: -rate * (m / c1) / (jnp.sqrt(v / c2) + eps), mu, nu)
        return updates, AdamState(count, mu, nu)

    return Transformation(init, update)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    return tree.map(jnp.add, params, updates)


def loss(params: dict[str, Array]) -> Array:
    return jnp.sum(params["w"] ** 2) + jnp.abs(params["b"])


optimizer = adam(0.1)
params = {"w": jnp.arange(3.0), "b": jnp.float32(1.0)}
state = optimizer.init(params)
for _ in range(3):
    updates, state = optimizer.update(gf.grad(loss)(params), state)
    params = apply_updates(params, updates)
print(params, state.steps)
