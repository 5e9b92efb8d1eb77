"""Writes random_values.json, promotion.json and jaxprs.json from an installed JAX 0.10.

Run by hand: python tests/data/make_surface_data.py. The tests read the files and need no JAX.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import nn, random

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxpr_programs import programs

FOLDER = Path(__file__).parent

# Each case: (name, arguments of the function after the key). Evaluated with PRNGKey(1337).
RANDOM_CASES = [
    ("split", {"num": 2}),
    ("split", {"num": 3}),
    ("split", {"num": [2, 2]}),
    ("fold_in", {"data": 0}),
    ("fold_in", {"data": 123456789}),
    ("bits", {"shape": [5], "dtype": "uint8"}),
    ("bits", {"shape": [5], "dtype": "uint16"}),
    ("bits", {"shape": [3, 3], "dtype": "uint32"}),
    ("uniform", {"shape": []}),
    ("uniform", {"shape": [7]}),
    ("uniform", {"shape": [2, 3], "minval": -3.0, "maxval": 5.0}),
    ("uniform", {"shape": [9], "dtype": "float16"}),
    ("uniform", {"shape": [9], "dtype": "bfloat16"}),
    ("uniform", {"shape": [0]}),
    ("normal", {"shape": []}),
    ("normal", {"shape": [17]}),
    ("normal", {"shape": [4, 5]}),
    ("normal", {"shape": [9], "dtype": "float16"}),
    ("normal", {"shape": [9], "dtype": "bfloat16"}),
    ("normal", {"shape": [3], "dtype": "complex64"}),
    ("bernoulli", {"p": 0.3, "shape": [20]}),
    ("randint", {"shape": [9], "minval": 0, "maxval": 10}),
    ("randint", {"shape": [9], "minval": -1000000000, "maxval": 2000000000}),
    ("randint", {"shape": [9], "minval": 5, "maxval": 5}),
    ("randint", {"shape": [9], "minval": 0, "maxval": 256, "dtype": "uint8"}),
    ("randint", {"shape": [9], "minval": -128, "maxval": 127, "dtype": "int8"}),
    ("randint", {"shape": [9], "minval": 0, "maxval": 1000000, "dtype": "uint32"}),
    ("exponential", {"shape": [9]}),
    ("gumbel", {"shape": [9]}),
    ("laplace", {"shape": [9]}),
    ("logistic", {"shape": [9]}),
    ("cauchy", {"shape": [9]}),
    ("rademacher", {"shape": [9]}),
    ("truncated_normal", {"lower": -1.0, "upper": 2.0, "shape": [9]}),
    ("categorical", {"logits": [[0.0, 1.0, 2.0], [3.0, 0.0, -1.0]], "shape": [4, 2]}),
    ("choice", {"a": 12, "shape": [6]}),
    ("choice", {"a": 12, "shape": [2, 3], "replace": False}),
    ("choice", {"a": [[1, 2, 3], [4, 5, 6]], "shape": [2], "replace": False, "axis": 1}),
    ("choice", {"a": [[1, 2, 3], [4, 5, 6]], "shape": [2, 2], "axis": -1}),
    ("choice", {"a": 5, "shape": [7], "p": [0.1, 0.2, 0.3, 0.0, 0.4]}),
    ("choice", {"a": 5, "shape": [2, 2], "replace": False, "p": [0.1, 0.2, 0.3, 0.1, 0.3]}),
    ("permutation", {"x": 1}),
    ("permutation", {"x": 20}),
    # Two rounds of sorting.
    ("choice", {"a": 2000, "shape": [20], "replace": False}),
    ("permutation", {"x": [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]}),
    ("permutation", {"x": [[1, 2, 3], [4, 5, 6]], "axis": 1}),
    ("permutation", {"x": [[1, 2, 3], [4, 5, 6]], "axis": -1, "independent": True}),
]
X64_CASES = [
    ("bits", {"shape": [3], "dtype": "uint64"}),
    ("uniform", {"shape": [5]}),
    ("normal", {"shape": [5]}),
    ("randint", {"shape": [5], "minval": -5, "maxval": 1234567890123}),
]
SEEDS = [0, 1, 1337, -1, 2**31 - 1, 2**31, 2**32 + 5, -(2**40)]


def stored(value):
    """An array as dtype, shape and the integers of its bits, so that nothing is rounded."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = random.key_data(value)
    host = np.asarray(value)
    kind = "u1" if host.dtype == bool else f"u{host.dtype.itemsize}"
    if host.dtype.kind == "c":
        host = np.stack([host.real, host.imag], -1)
        kind = f"u{host.dtype.itemsize}"
        return {"dtype": "complex64", "shape": list(host.shape), "bits": bits_of(host, kind)}
    return {"dtype": host.dtype.name, "shape": list(host.shape), "bits": bits_of(host, kind)}


def bits_of(host, kind):
    return [int(v) for v in np.ascontiguousarray(host).reshape(-1).view(kind)]


def call(name, options, key):
    options = dict(options)
    for field in ("shape",):
        if field in options:
            options[field] = tuple(options[field])
    if isinstance(options.get("num"), list):
        options["num"] = tuple(options["num"])
    for field in ("logits", "p", "a", "x"):
        if isinstance(options.get(field), list):
            options[field] = jnp.array(options[field])
    return getattr(random, name)(key, **options)


def random_values():
    key = random.PRNGKey(1337)
    cases = [{"name": n, "options": o, "out": stored(call(n, o, key))} for n, o in RANDOM_CASES]
    seeds = [{"seed": seed, "key": stored(random.PRNGKey(seed))} for seed in SEEDS]
    with jax.threefry_partitionable(False):
        legacy = [
            {"name": n, "options": o, "out": stored(call(n, o, key))}
            for n, o in RANDOM_CASES
            if n in ("split", "bits", "uniform", "fold_in", "permutation")
        ]
    with jax.enable_x64(True):
        key = random.PRNGKey(1337)
        wide = [{"name": n, "options": o, "out": stored(call(n, o, key))} for n, o in X64_CASES]
    return {"seeds": seeds, "default": cases, "legacy": legacy, "x64": wide}


PROMOTED = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128", "int*", "float*", "complex*",
]  # fmt: skip
SCALARS = {"int*": 1, "float*": 1.0, "complex*": 1j}


def operand(name):
    return SCALARS[name] if name in SCALARS else jnp.ones((2,), name)


def promotion():
    tables = {}
    for x64 in (False, True):
        with jax.enable_x64(x64):
            rows = {}
            for first in PROMOTED:
                for second in PROMOTED:
                    out = jnp.add(operand(first), operand(second))
                    weak = "*" if out.weak_type else ""
                    rows[f"{first} {second}"] = out.dtype.name + weak
            tables["x64" if x64 else "x32"] = rows
    return tables


def jaxprs():
    return {name: str(jax.make_jaxpr(f)(*args)) for name, (args, f) in programs(jnp, nn).items()}


OPERANDS = {
    "x": "(jnp.arange(12.0) - 4).reshape(3, 4)",
    "i": "jnp.array([-3, 0, 1, 2, 7])",
    "i8": "jnp.array([-128, -3, 1, 5, 127], jnp.int8)",
    "i8abs": "jnp.array([0, 1, 2, 3, 4], jnp.int8)",
    "u8": "jnp.array([0, 1, 3, 128, 255], jnp.uint8)",
    "b": "jnp.array([True, False, True, True, False])",
    "b4": "jnp.array([True, False, True, True])",
    "f": "jnp.array([-2.75, -0.5, 0.25, 1.5, 2.5])",
    "fpos": "jnp.array([0.125, 0.5, 1.0, 2.5, 30.0])",
    "h": "jnp.array([-2.0, 0.1, 0.5, 3.0, 100.0], jnp.float16)",
    "bf": "jnp.array([-2.0, 0.1, 0.5, 3.0, 100.0], jnp.bfloat16)",
    "c": "jnp.array([1 + 2j, -0.5j, 0.25, -1 - 1j, 3j])",
    "t3": "jnp.arange(24.0).reshape(2, 3, 4) / 8",
    "special": "jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0.0, -1e9, 1e9])",
}


def expressions():
    lines = (FOLDER / "numpy_expressions.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def described(value):
    """A result as data: dtype, weak type, shape and values; other things as text."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if not isinstance(value, jax.Array):
        return str(value)
    host = np.asarray(value)
    numbers = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64).reshape(-1)
    return {
        "dtype": host.dtype.name,
        "weak": bool(value.weak_type),
        "shape": list(host.shape),
        "values": [str(v) for v in numbers.tolist()],
    }


def numpy_values():
    space = {"jnp": jnp, "np": np, "nn": nn}
    space.update({name: eval(text, space) for name, text in OPERANDS.items()})
    values = {line: described(eval(line, space)) for line in expressions()}
    return {"operands": OPERANDS, "values": values}


if __name__ == "__main__":
    for make in (random_values, promotion, jaxprs, numpy_values):
        name = make.__name__
        (FOLDER / f"{name}.json").write_text(json.dumps(make(), indent=0) + "\n")
