"""Writes sorting_values.json: what JAX 0.10 makes of sorting and cumulative expressions.

Run by hand: python tests/data/make_sorting_values.py. The tests read the file and need no JAX.
"""

import json

import jax
import jax.numpy as jnp
from jax import lax
from make_surface_data import FOLDER, described

OPERANDS = {
    "s": "jnp.array([0.0, -0.0, 1.0, jnp.nan, -1.0, -jnp.inf, jnp.inf, -0.0, 0.0])",
    "z": "jnp.array([-0.0, 0.0, -0.0, 2.0, 2.0])",
    "ties": "jnp.array([1.0, 1.0, 3.0, 3.0, 3.0, 3.0, 2.0])",
    "zeros": "jnp.array([1.5, 0.0, 3.0, 0.0, 2.0])",
    "m": "jnp.array([[2.0, -1.0, 0.5, 4.0], [0.25, 3.0, -2.0, 1.0], [1.0, 1.0, 1.0, -4.0]])",
    "i8": "jnp.array([3, 1, -128, 127, 3], jnp.int8)",
    "u32": "jnp.array([3, 1, 2**31, 2**32 - 1, 3], jnp.uint32)",
    "h": "jnp.array([3.0, 1.0, -100.0, 7.0, 100.0], jnp.float16)",
    "c": "jnp.array([1 + 2j, complex('nan+1j'), 1 + 1j, complex(1, float('nan')), 0.5 - 1j])",
    "c2": "jnp.array([1 + 2j, 0.5 - 1j, 1 + 3j, -1j])",
    "inf": "jnp.array([-jnp.inf, -jnp.inf, 1.0, jnp.inf, 2.0])",
}

CUMULATIVE = [
    f"lax.{name}({text})"
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    for text in ("s", "z", "m, 1", "m, axis=0, reverse=True", "h", "c2", "inf", "jnp.zeros((0, 2))")
] + [f"lax.{name}(i8)" for name in ("cumsum", "cumprod", "cummax", "cummin")]

GRADIENTS = [
    f"jax.grad(lambda x: jnp.sum(lax.{name}(x, 0, {reverse}) * jnp.arange(1.0, 8.0)[:len(x)]))({v})"
    for name, v in (
        ("cumsum", "zeros"),
        ("cumprod", "zeros"),
        ("cummax", "ties"),
        ("cummin", "ties"),
        ("cumlogsumexp", "ties"),
    )
    for reverse in (False, True)
]

SORTING = [
    "lax.sort(s)",
    "lax.sort(c)",
    "lax.sort(u32)",
    "lax.sort(m, 0)",
    "lax.sort((s, jnp.arange(9)))",
    "lax.sort((m, -m), dimension=0)",
    "lax.sort((i8, s[:5], jnp.arange(5)), num_keys=2)",
    "lax.sort((c, jnp.arange(5)))",
    "lax.sort_key_val(h, i8)",
    "lax.top_k(s, 9)",
    "lax.top_k(m, 2)",
    "lax.top_k(m, 2, axis=0)",
    "lax.top_k(i8, 3)",
    "lax.top_k(u32, 5)",
    "lax.top_k(h, 0)",
    "jax.grad(lambda x: jnp.sum(jnp.sort(x, 0) * x))(m)",
    "jax.grad(lambda x: jnp.sum(lax.sort((x, x * x), dimension=1)[1] * jnp.arange(4.0)))(m)",
    "jax.grad(lambda x: jnp.sum(lax.top_k(x, 2)[0] * x[:, :2]))(m)",
    "jax.vmap(lambda a: lax.sort((a, jnp.arange(3)), num_keys=1), in_axes=1)(m)",
    "jax.vmap(lambda a: lax.top_k(a, 2)[1], in_axes=1, out_axes=1)(m)",
    "jax.vmap(jnp.searchsorted)(jnp.sort(m), m[:, ::-1])",
]

if __name__ == "__main__":
    space = {"jax": jax, "jnp": jnp, "lax": lax}
    space.update({name: eval(text, space) for name, text in OPERANDS.items()})
    families = {"cumulative": CUMULATIVE + GRADIENTS, "sorting": SORTING}
    stored = {
        family: {line: described(eval(line, space)) for line in lines}
        for family, lines in families.items()
    }
    text = json.dumps({"operands": OPERANDS, **stored}, indent=0)
    (FOLDER / "sorting_values.json").write_text(text + "\n")
