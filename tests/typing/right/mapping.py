"""vmap, in all its ways."""

from functools import partial

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax


def dot(x: Array, y: Array) -> Array:
    return (x * y).sum()


def normalized(x: Array) -> Array:
    return x / lax.psum(x, "batch")


@partial(gf.vmap, in_axes=(0, None))
def scaled(x: Array, factor: float) -> Array:
    return factor * x


matrix = gf.vmap(gf.vmap(dot, in_axes=(None, 0)), in_axes=(0, None))(jnp.eye(3), jnp.ones((2, 3)))
print(matrix.shape, scaled(jnp.ones(4), 2.0)[1])
print(gf.vmap(normalized, axis_name="batch")(jnp.arange(1.0, 4.0)).dtype)
print(jnp.vectorize(dot, signature="(n),(n)->()")(jnp.ones((2, 3)), jnp.ones(3)))
