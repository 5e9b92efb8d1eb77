"""Writes mesh_values.json: what JAX gives for the lines of mesh_expressions.txt.

Run by hand, with eight devices (XLA_FLAGS=--xla_force_host_platform_device_count=8).
"""

import builtins
import json
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parallel"))
from mesh_space import described, space_of  # noqa: E402


def outcome(expression, space):
    try:
        return described(eval(expression, dict(space)), jax)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": next(kind for kind in kinds if hasattr(builtins, kind))}


def main():
    warnings.simplefilter("ignore")
    space = space_of(jax, jnp, lax)
    lines = (HERE / "mesh_expressions.txt").read_text().splitlines()
    stored = {line: outcome(line, space) for line in lines if line and not line.startswith("#")}
    rows = [f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in stored.items()]
    (HERE / "mesh_values.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
