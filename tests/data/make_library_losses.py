"""Writes library_losses.json: what the programs beside print on JAX 0.10.

optax_training.py, flax_training.py and nnx_training.py train with libraries on top of JAX.

Run by hand, where JAX, optax and flax are installed: python tests/data/make_library_losses.py. The
tests run the same programs on gpuflow and need no JAX.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parent


def printed(program):
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    run = subprocess.run(
        [sys.executable, FOLDER / program], env=environment, check=True, stdout=subprocess.PIPE
    )
    return json.loads(run.stdout)


def main():
    data = {
        "versions": {name: version(name) for name in ("jax", "optax", "flax")},
        "optax": printed("optax_training.py"),
        "flax": printed("flax_training.py"),
        "nnx": printed("nnx_training.py"),
    }
    (FOLDER / "library_losses.json").write_text(json.dumps(data, indent=None) + "\n")


if __name__ == "__main__":
    main()
