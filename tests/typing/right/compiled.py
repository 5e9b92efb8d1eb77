"""jit with options, its stages, and methods."""

from functools import partial

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array


@partial(gf.jit, static_argnames=("axis",))
def total(x: Array, axis: int = 0) -> Array:
    return x.sum(axis)


@gf.jit(donate_argnums=0)
def update(x: Array, y: Array) -> Array:
    return x + y


class Model:
    def __init__(self, scale: float) -> None:
        self.scale = jnp.float32(scale)

    @partial(gf.jit, static_argnums=0)
    def __call__(self, x: Array) -> Array:
        return self.scale * x


lowered = total.lower(jnp.ones((2, 3)), axis=1)
print(total(jnp.ones((2, 3)), axis=1), update(jnp.ones(3), jnp.ones(3)), Model(2.0)(jnp.ones(2)))
print(len(lowered.compile().as_text()) > 0, gf.make_jaxpr(total)(jnp.ones((2, 3))))
struct = gf.eval_shape(total, gf.ShapeDtypeStruct((2, 3), jnp.float32))
print(struct.shape, struct.dtype)
with gf.disable_jit(), gf.debug_nans(True):
    print(total(jnp.ones((1, 1))))
