"""Store what JAX gives for tests/ops/collective_programs.py; run it with a Python that has JAX."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "ops"))
from collective_programs import programs  # noqa: E402

values = {
    name: [np.asarray(leaf).tolist() for leaf in jax.tree_util.tree_leaves(run())]
    for name, run in programs(jax, jnp, lax).items()
}
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(leaves)}" for name, leaves in values.items())
(HERE / "collective_values.json").write_text("{\n" + lines + "\n}\n")
