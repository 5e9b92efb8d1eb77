"""Refs, and functions of them."""

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import Array


@gf.jit
def accumulate(ref: gf.Ref, x: Array) -> Array:
    ref[...] = ref[...] + x
    ref.addupdate(x, 0)
    return ref[0]


ref = gf.new_ref(jnp.zeros(3))
print(accumulate(ref, jnp.float32(2.0)), ref[1:], ref.shape, ref.dtype)
frozen = gf.freeze(ref)
print(frozen.sum())
