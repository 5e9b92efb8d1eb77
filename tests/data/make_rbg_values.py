"""Writes rbg_values.json with what JAX 0.10 draws from keys of rbg: run it under JAX."""

import json
import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

# ``k`` is a key of the implementation, ``ks`` are three of them.
EXPRESSIONS = [
    "k", "random.split(k)", "random.split(k, (2, 3))", "random.fold_in(k, 3)",
    "random.fold_in(k, 2**31 + 5)", "random.bits(k, (5,), 'uint8')",
    "random.bits(k, (5,), 'uint16')", "random.bits(k, (3, 3))", "random.bits(k)",
    "random.uniform(k, (5,))", "random.normal(k, (3, 2))", "random.normal(k, (5,), 'float16')",
    "random.uniform(k, (5,), 'bfloat16')", "random.randint(k, (5,), 0, 100)",
    "random.permutation(k, 6)", "random.categorical(k, jnp.zeros(5))",
    "random.bernoulli(k, 0.3, (5,))", "random.gamma(k, 2.0, (3,))",
    "random.choice(k, 10, (3,), replace=False)", "random.truncated_normal(k, -1, 1, (3,))",
    "jax.vmap(lambda k: random.bits(k, (2,)))(ks)", "jax.vmap(random.bits)(ks)",
    "jax.vmap(jax.vmap(random.bits))(random.split(k, (2, 2)))", "jax.vmap(random.split)(ks)",
    "jax.vmap(random.fold_in)(ks, jnp.arange(3))",
    "jax.vmap(random.fold_in, (None, 0))(k, jnp.arange(3))",
    "jax.vmap(random.fold_in, (0, None))(ks, 3)",
    "jax.vmap(lambda k: random.normal(k, (2,)))(ks)",
    "lax.map(lambda k: random.bits(k, (2,)), ks)",
    "lax.scan(lambda c, _: tuple(random.split(c)), k, None, length=3)[1]",
    "lax.fori_loop(0, 3, lambda i, k: random.fold_in(k, i), k)",
    "lax.cond(True, lambda k: random.fold_in(k, 1), lambda k: k, k)",
    "ks[1]", "ks[::-2]", "ks[jnp.array([2, 0])]", "jnp.concatenate([ks, ks])", "jnp.stack([k, k])",
    "jnp.where(jnp.array([True, False, True]), ks, k)", "jnp.broadcast_to(k, (2, 2))",
    "random.split(k, (2, 3)).T", "ks.at[0].set(k)", "jnp.roll(ks, 1)", "jnp.repeat(ks, 2)",
    "lax.dynamic_slice(ks, (1,), (2,))", "lax.dynamic_update_slice(ks, ks[:1], (2,))",
    "jnp.zeros_like(ks)", "jnp.ones((2,), k.dtype)", "ks == ks[1]", "ks != ks[1]",
]  # fmt: skip


def value(out):
    is_key = jnp.issubdtype(out.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(out) if is_key else out)
    exact = array.astype(np.float64 if array.dtype.kind in "fV" else array.dtype)
    return {"dtype": str(out.dtype), "shape": list(out.shape), "values": exact.ravel().tolist()}


def main():
    values = {}
    for implementation in ("rbg", "unsafe_rbg"):
        k = jax.random.key(7, impl=implementation)
        names = {"jax": jax, "jnp": jnp, "lax": jax.lax, "random": jax.random, "k": k}
        names["ks"] = jax.random.split(k, 3)
        values[implementation] = {text: value(eval(text, names)) for text in EXPRESSIONS}
    path = Path(__file__).with_name("rbg_values.json")
    path.write_text(json.dumps({"jax": jax.__version__, "values": values}) + "\n")


main()
