"""cond, switch, select and where."""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax


def double(x: Array) -> Array:
    return 2.0 * x


def half(x: Array) -> Array:
    return x / 2


@gf.jit
def choose(x: Array, k: Array) -> Array:
    y = lax.cond(x.sum() > 0, double, half, x)
    z = lax.switch(k, [double, half], y)
    return jnp.where(z > 1.0, z, 0.0) + lax.select(x > 0, x, -x)


print(choose(jnp.ones(3), jnp.int32(1)))
(rows,) = jnp.where(jnp.array([1, 0, 1]))
print(rows.tolist(), jnp.select([rows > 0], [rows], default=7))
