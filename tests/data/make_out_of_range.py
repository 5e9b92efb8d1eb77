"""Writes out_of_range.json from an installed JAX 0.10: the cases of out_of_range_cases.py.

Run by hand: python tests/data/make_out_of_range.py (a minute). The tests read the file.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import out_of_range_cases


def main():
    stored = {
        name: out_of_range_cases.outcomes(case, jax, jnp)
        for name, case in out_of_range_cases.cases(jnp, jax.lax).items()
    }
    path = Path(__file__).parent / "out_of_range.json"
    path.write_text(json.dumps(stored, indent=0))


main()
