"""Writes example_libraries.json: the cases of example_library_cases.py by an installed JAX 0.10.

Run by hand: python tests/data/make_example_libraries.py. The tests need no JAX.
"""

import json
import sys
from pathlib import Path

import jax
from jax.example_libraries import optimizers, stax

sys.path.insert(0, str(Path(__file__).parents[1]))
from example_library_cases import network_results, optimizer_results


def main():
    data = {
        "jax": jax.__version__,
        "networks": network_results(stax, jax.random, jax.tree.leaves),
        "optimizers": optimizer_results(optimizers),
    }
    path = Path(__file__).parent / "example_libraries.json"
    path.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
