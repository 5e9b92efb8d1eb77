"""checkpoint, named scopes, stop_gradient, callbacks, debug."""

from functools import partial

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax


@gf.checkpoint
def layer(x: Array, w: Array) -> Array:
    return jnp.tanh(x @ w)


@partial(gf.remat, policy=gf.checkpoint_policies.dots_saveable)
def other(x: Array, w: Array) -> Array:
    return jnp.tanh(x @ w)


def host(x: np.ndarray) -> np.ndarray:
    return np.asarray(x) * 2


@gf.named_call
def loss(w: Array, x: Array) -> Array:
    with gf.named_scope("layers"):
        x = other(layer(x, w), lax.stop_gradient(w))
    gf.debug.print("mean {m}", m=x.mean())
    return x.sum()


print(gf.grad(loss)(jnp.eye(2), jnp.ones((1, 2))))
print(gf.pure_callback(host, gf.ShapeDtypeStruct((2,), np.float32), jnp.ones(2, jnp.float32)))
