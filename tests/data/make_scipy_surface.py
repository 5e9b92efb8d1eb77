"""Writes scipy_surface.json: what JAX 0.10 makes of the lines of scipy_surface.txt.

Run by hand: python tests/data/make_scipy_surface.py (minutes). The tests read the file and need no
JAX.
"""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import ode
from jax.scipy import fft, integrate, interpolate, linalg, ndimage, optimize, signal
from jax.scipy.cluster.vq import vq
from jax.scipy.sparse import linalg as sparse
from jax.scipy.spatial import transform
from make_numpy_functions import FOLDER, outcome, works

SPACE = {
    "jnp": jnp,
    "np": np,
    "grad": jax.grad,
    "fft": fft,
    "integrate": integrate,
    "linalg": linalg,
    "interpolate": interpolate,
    "ndimage": ndimage,
    "optimize": optimize,
    "signal": signal,
    "sparse": sparse,
    "transform": transform,
    "vq": vq,
    "ode": ode,
}


def sections():
    """The families of the text: their operands, in order, and their expressions."""
    by_section = {}
    for line in (FOLDER / "scipy_surface.txt").read_text().splitlines():
        if line.startswith("# "):
            family = by_section.setdefault(line[2:], ({}, []))
        elif line.startswith("let "):
            name, _, text = line[4:].partition(" = ")
            family[0][name] = text
        elif line:
            family[1].append(line)
    return by_section


def shortened(value):
    """Values with as many digits as float32 has."""
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict) and "values" in value:
        kind = complex if value["dtype"].startswith("complex") else float
        return {**value, "values": [f"{kind(text):.7g}" for text in value["values"]]}
    return value


def main():
    warnings.simplefilter("ignore")
    stored = {}
    for family, (operands, expressions) in sections().items():
        own = dict(SPACE)
        for name, text in operands.items():
            own[name] = eval(text, dict(own))
        arrays = {name: own[name] for name in operands if isinstance(own[name], jax.Array)}
        twice = {name: jnp.stack([x, x]) for name, x in arrays.items()}
        values, traced, mapped = {}, [], []
        for expression in expressions:
            values[expression] = shortened(outcome(expression, own))
            if isinstance(values[expression], dict) and "error" in values[expression]:
                continue
            if works(expression, own, arrays, jax.jit):
                traced.append(expression)
                if works(expression, own, twice, jax.vmap):
                    mapped.append(expression)
        stored[family] = {"operands": operands, "values": values, "jit": traced, "vmap": mapped}
    text = json.dumps(stored, indent=None, separators=(",", ":"))
    (FOLDER / "scipy_surface.json").write_text(text.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
