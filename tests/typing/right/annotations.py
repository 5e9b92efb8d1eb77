"""Functions that say ArrayLike and DTypeLike, as libraries do."""

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import Array
from gpuflow.typing import ArrayLike, DTypeLike


def scaled(x: ArrayLike, factor: ArrayLike = 1.0, dtype: DTypeLike = jnp.float32) -> Array:
    return jnp.asarray(x, dtype) * factor


def is_array(x: object) -> bool:
    return isinstance(x, Array)


print(scaled(1), scaled(np.ones(2), 2), scaled(jnp.ones(2), np.float32(3)))
print(scaled(True, dtype="f2"))
print(is_array(scaled(1)), jnp.issubdtype(jnp.float32, jnp.floating), jnp.float32(1) + jnp.ones(2))
