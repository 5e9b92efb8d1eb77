"""Loops: scan, fori_loop, while_loop, map, associative_scan."""

import gpuflow.numpy as jnp
from gpuflow import Array, lax


def step(carry: Array, x: Array) -> tuple[Array, Array]:
    carry = 0.9 * carry + x
    return carry, carry.sum()


def with_tree(carry: dict[str, Array], x: Array) -> tuple[dict[str, Array], None]:
    return {"a": carry["a"] + x, "n": carry["n"] + 1}, None


last, sums = lax.scan(step, jnp.zeros(3), jnp.ones((5, 3)))
print(last.shape, sums.shape)
total, _ = lax.scan(step, 0.0, jnp.arange(4.0), unroll=2)
print(total.ndim)
tree, nothing = lax.scan(with_tree, {"a": jnp.zeros(2), "n": jnp.int32(0)}, jnp.ones((4, 2)))
print(tree["a"].T, nothing)


def body(k: int, x: Array) -> Array:
    return x + k


print(lax.fori_loop(0, 10, body, jnp.zeros(2)).sum())
print(lax.fori_loop(0, 10, body, 0.0).sum())
print(lax.while_loop(lambda x: x.sum() < 10.0, lambda x: x * 2.0, jnp.ones(3)).max())
print(lax.map(jnp.sin, jnp.arange(3.0)).shape)
print(lax.associative_scan(jnp.add, jnp.arange(5.0))[-1])
