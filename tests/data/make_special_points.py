"""Writes special_points.json from an installed JAX 0.10: functions of special_point_cases.py.

Run by hand: python tests/data/make_special_points.py (minutes). The tests read the file.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import special_point_cases as cases

FOLDER = Path(__file__).parent
MODULES = {"jnp": jnp, "lax": jax.lax, "nn": jax.nn, "special": jax.scipy.special}


def written(array):
    """An array as data: complex numbers as their parts."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    kind = bool if array.dtype == bool else int if array.dtype.kind in "iu" else float
    return [str(kind(v)) if kind is not float else f"{float(v):.8g}" for v in array.reshape(-1)]


def main():
    stored = {}
    for kind, names in cases.KINDS.items():
        stored[kind] = {}
        operands = cases.operands(kind)
        for name in names():
            module, _, attribute = name.partition(".")

            try:
                function = getattr(MODULES[module], attribute)
                results = cases.results(function, operands, jax.jvp, jax.vjp, jax.jit)
            except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
                print(kind, name, type(error).__name__, str(error)[:70])
                continue
            print(kind, name, flush=True)
            stored[kind][name] = {
                key: [[v.dtype.name, " ".join(written(v))] for v in values]
                for key, values in results.items()
            }
    (FOLDER / "special_points.json").write_text(json.dumps(stored, indent=0))


main()
