"""A network, its loss, and plain gradient descent."""

from collections.abc import Sequence

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, nn, random

Params = list[tuple[Array, Array]]


def init(key: Array, sizes: Sequence[int]) -> Params:
    keys = random.split(key, len(sizes) - 1)
    return [
        (random.normal(k, (n, m)) / jnp.sqrt(n), jnp.zeros(m))
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def predict(params: Params, x: Array) -> Array:
    for weights, bias in params[:-1]:
        x = nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def loss(params: Params, x: Array, y: Array) -> Array:
    return ((predict(params, x) - y) ** 2).mean()


@gf.jit
def step(params: Params, x: Array, y: Array, rate: float) -> tuple[Params, Array]:
    value, grads = gf.value_and_grad(loss)(params, x, y)
    params = gf.tree.map(lambda p, g: p - rate * g, params, grads)
    return params, value


params = init(random.key(0), [3, 8, 1])
x = random.normal(random.key(1), (16, 3))
y = x.sum(axis=1, keepdims=True)
for _ in range(3):
    params, value = step(params, x, y, 0.1)
    print(float(value))
