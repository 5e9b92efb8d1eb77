"""Writes what the programs of array_programs.txt and its siblings give under an installed JAX 0.10.

Run by hand: python tests/data/make_stored_programs.py [name of a file]. The tests read the data and
need no JAX.
"""

import importlib
import json
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).parents[1]))
from stored_programs import DATA, FILES, MODULES, outcome, programs_of, space_of


def main(names):
    warnings.simplefilter("ignore")
    for module in MODULES:
        importlib.import_module(module)
    given = {"jax": jax, "jnp": jnp, "np": np, "lax": lax, "ml_dtypes": ml_dtypes}
    for name in names:
        space = space_of(name, given)
        stored = {source: outcome(source, space) for source in programs_of(name)}
        rows = [
            f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in stored.items()
        ]
        (DATA / f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or FILES)
