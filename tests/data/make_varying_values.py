"""Store what JAX gives for tests/parallel/varying_programs.py; run it with a Python that has JAX.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/data/make_varying_values.py
"""

import builtins
import json
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parallel"))
from varying_programs import programs  # noqa: E402


def described(leaf):
    """Arrays as dtype, shape and values; other leaves as they are."""
    if not isinstance(leaf, jax.Array):
        return leaf
    host = np.asarray(leaf)
    values = [float(f"{value:.7g}") for value in host.reshape(-1).tolist()]
    return {"dtype": host.dtype.name, "shape": list(host.shape), "values": values}


def outcome(program):
    try:
        return [described(leaf) for leaf in jax.tree.leaves(program())]
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {"error": next(kind for kind in kinds if hasattr(builtins, kind))}


warnings.simplefilter("ignore")
stored = {name: outcome(program) for name, program in programs(jax, jnp, lax).items()}
lines = ",\n".join(
    f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}"
    for name, found in stored.items()
)
(HERE / "varying_values.json").write_text("{\n" + lines + "\n}\n")
