"""Writes nn_values.json: what JAX makes of attention, initializers and activations.

usage: python make_nn_values.py   (in an environment with JAX 0.10)
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

# (query, key and value) and keyword arguments; "array" stands for random numbers of a shape.
ATTENTION = [
    ((2, 5, 4, 3), (2, 6, 4, 3), {}),
    ((5, 4, 3), (6, 2, 3), {"is_causal": True, "scale": 0.3}),
    ((2, 5, 4, 3), (2, 5, 1, 3), {"local_window_size": [1, 2]}),
    ((2, 5, 4, 3), (2, 5, 2, 3), {"local_window_size": 1, "is_causal": True}),
    ((2, 5, 4, 3), (2, 6, 2, 3), {"bias": [1, 4, 5, 6], "mask": [2, 1, 5, 6]}),
    ((2, 5, 4, 3), (2, 6, 4, 3), {"bias": [5, 6], "mask": [4, 1, 6]}),
    ((2, 5, 4, 3), (2, 6, 2, 3), {"query_seq_lengths": [3, 5], "key_value_seq_lengths": [6, 2]}),
]
INITIALIZERS = [
    ("zeros", None, (2, 3)),
    ("ones", None, (2, 3)),
    ("constant", {"value": -7}, (2, 3)),
    ("uniform", {"scale": 10.0}, (2, 3)),
    ("normal", {"stddev": 5.0}, (2, 3)),
    ("truncated_normal", {"stddev": 0.5, "lower": -1.0, "upper": 3.0}, (2, 3)),
    ("glorot_normal", {}, (3, 4)),
    ("glorot_uniform", {}, (2, 3, 4)),
    ("he_normal", {}, (3, 4)),
    ("he_uniform", {"in_axis": 0, "out_axis": 1}, (3, 4)),
    ("lecun_normal", {}, (3, 4)),
    ("lecun_uniform", {"batch_axis": 0}, (2, 3, 4)),
    ("variance_scaling", {"scale": 2.0, "mode": "fan_out", "distribution": "normal"}, (3, 4)),
    (
        "variance_scaling",
        {
            "scale": 2.0,
            "mode": "fan_geo_avg",
            "distribution": "uniform",
            "in_axis": [0, 1],
            "out_axis": 2,
        },
        (3, 2, 4),
    ),
    ("orthogonal", {"scale": 2.0}, (3, 4)),
    ("orthogonal", {"column_axis": 0}, (3, 4, 2)),
    ("delta_orthogonal", {}, (3, 2, 2)),
    ("delta_orthogonal", {}, (3, 2, 2, 4)),
]
COMPLEX = [("glorot_normal", {}, (3, 4)), ("glorot_uniform", {}, (3, 4)), ("normal", {}, (3, 4))]
ACTIVATIONS = [
    "hard_silu",
    "identity",
    "squareplus",
    "sparse_plus",
    "sparse_sigmoid",
    "log1mexp",
    "logmeanexp",
]


def operand(shape: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention() -> list:
    rows = []
    for query, key, options in ATTENTION:
        arguments = dict(options)
        if "bias" in arguments:
            arguments["bias"] = operand(arguments["bias"], 3)
        if "mask" in arguments:
            arguments["mask"] = operand(arguments["mask"], 4) > 0
        for name in arguments:
            if name.endswith("lengths"):
                arguments[name] = jnp.array(arguments[name], jnp.int32)
        if isinstance(arguments.get("local_window_size"), list):
            arguments["local_window_size"] = tuple(arguments["local_window_size"])
        arrays = [operand(shape, seed) for seed, shape in enumerate((query, key, key))]
        out, sums = jax.nn.dot_product_attention(*arrays, **arguments, return_residual=True)
        rows.append([query, key, options, np.ravel(out).tolist(), np.ravel(sums).tolist()])
    return rows


def initializers() -> list:
    rows = []
    for dtype, cases in (
        ("float32", INITIALIZERS),
        ("bfloat16", INITIALIZERS[:9]),
        ("complex64", COMPLEX),
    ):
        for name, options, shape in cases:
            initializer = getattr(jax.nn.initializers, name)
            init = initializer if options is None else initializer(**options)
            out = np.asarray(init(jax.random.key(3), shape, jnp.dtype(dtype)))
            wide = out.astype(np.complex64 if dtype == "complex64" else np.float32)
            parts = np.stack([wide.real.ravel(), wide.imag.ravel()]).ravel().tolist()
            rows.append([dtype, name, options, shape, parts])
    return rows


def main() -> None:
    x = np.linspace(-2.5, 3, 12).astype(np.float32)
    activations = []
    for name in ACTIVATIONS:
        positive = np.abs(x) if name == "log1mexp" else x
        function = getattr(jax.nn, name)
        slope = jax.grad(lambda v, function=function: jnp.sum(function(v)))(positive)
        values = [np.ravel(function(positive)).tolist(), slope.tolist()]
        activations.append([name, positive.tolist(), *values])
    values = {"attention": attention(), "initializers": initializers(), "activations": activations}
    text = json.dumps(values, separators=(",", ":"))
    (Path(__file__).parent / "nn_values.json").write_text(text)


main()
