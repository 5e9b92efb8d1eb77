"""Writes numpy_functions.json and numpy_signatures.json from an installed JAX 0.10.

The first holds the results of the lines of numpy_functions.txt, the second the keywords of all
public names. Run by hand: python tests/data/make_numpy_functions.py (minutes). The tests read the
files and need no JAX.
"""

import inspect
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

FOLDER = Path(__file__).parent


def sections():
    """The families of the text: their operands, in order, and their expressions."""
    by_section = {}
    for line in (FOLDER / "numpy_functions.txt").read_text().splitlines():
        if line.startswith("# "):
            family = by_section.setdefault(line[2:], ({}, []))
        elif line.startswith("let "):
            name, _, text = line[4:].partition(" = ")
            family[0][name] = text
        elif line:
            family[1].append(line)
    return by_section


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


def outcome(expression, space):
    try:
        return described(eval(expression, dict(space)))
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": next(k for k in kinds if hasattr(__import__("builtins"), k))}


def works(expression, space, arrays, transform):
    """Whether JAX evaluates the expression with traced operands, and returns arrays."""

    def function(values):
        return eval(expression, {**space, **values})

    try:
        leaves = jax.tree.leaves(transform(function)(arrays))
    except Exception:
        return False
    return len(leaves) > 0 and all(isinstance(leaf, jax.Array) for leaf in leaves)


def main():
    warnings.simplefilter("ignore")
    space = {"jnp": jnp, "np": np, "grad": jax.grad, "vmap": jax.vmap, "jit": jax.jit}
    stored = {}
    for family, (operands, expressions) in sections().items():
        own = dict(space)
        for name, text in operands.items():
            own[name] = eval(text, dict(own))
        arrays = {name: own[name] for name in operands if isinstance(own[name], jax.Array)}
        twice = {name: jnp.stack([x, x]) for name, x in arrays.items()}
        values, traced, mapped = {}, [], []
        for expression in expressions:
            values[expression] = outcome(expression, own)
            if isinstance(values[expression], dict) and "error" in values[expression]:
                continue
            if works(expression, own, arrays, jax.jit):
                traced.append(expression)
                if works(expression, own, twice, jax.vmap):
                    mapped.append(expression)
        stored[family] = {"operands": operands, "values": values, "jit": traced, "vmap": mapped}
    text = json.dumps(stored, indent=None, separators=(",", ":"))
    (FOLDER / "numpy_functions.json").write_text(text.replace('},"', '},\n"') + "\n")


def signatures():
    """The parameters of each public name that can be passed by keyword."""
    stored = json.loads((FOLDER / "numpy_signatures.json").read_text())
    for name in stored:
        try:
            parameters = inspect.signature(getattr(jnp, name)).parameters.values()
        except (AttributeError, TypeError, ValueError):
            stored[name] = []
            continue
        kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        taken = [p.name for p in parameters if p.kind in kinds]
        stored[name] = [keyword for keyword in taken if keyword != "out_sharding"]
    rows = [f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in stored.items()]
    (FOLDER / "numpy_signatures.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
    signatures()
