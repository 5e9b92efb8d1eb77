"""Trees: registered classes, paths, flattening."""

from dataclasses import dataclass
from typing import NamedTuple

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, tree
from gpuflow.flatten_util import ravel_pytree


@gf.tree_util.register_dataclass
@dataclass
class Layer:
    weights: Array
    bias: Array

    def __call__(self, x: Array) -> Array:
        return x @ self.weights + self.bias


class State(NamedTuple):
    layer: Layer
    step: Array


def loss(layer: Layer, x: Array) -> Array:
    return layer(x).sum()


layer = Layer(jnp.ones((2, 3)), jnp.zeros(3))
grads: Layer = gf.grad(loss)(layer, jnp.ones(2))
state = State(layer, jnp.int32(0))
leaves, structure = tree.flatten(state)
again: State = tree.unflatten(structure, leaves)
print(again.layer.bias.shape, grads.weights.max(), len(tree.leaves(state)))
for path, leaf in tree.leaves_with_path(state):
    print(gf.tree_util.keystr(path), leaf.shape)
flat, unravel = ravel_pytree(state)
print(flat.size, unravel(flat))
doubled: State = tree.map(lambda x: 2 * x, state)
print(tree.reduce(lambda total, x: total + x.size, doubled, 0), tree.all({"a": True}))
