"""A cache of keys and values, written with dynamic slices and ``x.at``."""

from typing import NamedTuple

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array, lax, nn


class Cache(NamedTuple):
    keys: Array
    length: Array


@gf.jit
def extend(cache: Cache, new: Array) -> tuple[Cache, Array]:
    keys = lax.dynamic_update_slice(cache.keys, new[None], (cache.length, 0))
    mask = jnp.arange(keys.shape[0]) <= cache.length
    scores = jnp.where(mask, keys @ new, -jnp.inf)
    out = nn.softmax(scores) @ keys
    return Cache(keys, cache.length + 1), out


def first_row(cache: Cache) -> Array:
    return lax.dynamic_index_in_dim(cache.keys, 0, keepdims=False)


cache = Cache(jnp.zeros((4, 3)), jnp.int32(0))
for k in range(3):
    cache, out = extend(cache, jnp.full(3, float(k)))
    print(out.shape, int(cache.length))
print(first_row(cache), lax.top_k(jnp.arange(5.0), 2)[0], jnp.argmax(cache.keys))
