"""Writes array_programs.json from an installed JAX 0.10: what the lines of array_programs.txt give.

Run by hand: python tests/data/make_array_programs.py. The tests read the file and need no JAX.
"""

import builtins
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

FOLDER = Path(__file__).parent


def described(value):
    """A result as data: dtype, shape and values of arrays; other things as text."""
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    is_key = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    if is_key or not isinstance(value, (jax.Array, np.ndarray)):
        return str(value)
    host = np.asarray(value)
    numbers = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64).reshape(-1)
    return {
        "dtype": host.dtype.name,
        "shape": list(host.shape),
        "values": [str(v) for v in numbers.tolist()],
    }


def outcome(expression, space):
    try:
        return described(eval(expression, dict(space)))
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": next(kind for kind in kinds if hasattr(builtins, kind))}


def main():
    warnings.simplefilter("ignore")
    space = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "ml_dtypes": ml_dtypes}
    lines = (FOLDER / "array_programs.txt").read_text().splitlines()
    stored = {line: outcome(line, space) for line in lines if line and not line.startswith("#")}
    rows = [f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in stored.items()]
    (FOLDER / "array_programs.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
