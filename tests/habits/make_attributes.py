"""Writes attributes.json: the public attributes of JAX's objects, by kind.

Run by hand, in an environment with JAX 0.10: python tests/habits/make_attributes.py
"""

import json
import sys
from pathlib import Path

import jax
import jax.custom_batching
import jax.export

sys.path.insert(0, str(Path(__file__).parent))
from object_kinds import attributes, objects

found = {kind: " ".join(attributes(value)) for kind, value in objects(jax).items()}
path = Path(__file__).parents[1] / "data" / "attributes.json"
path.write_text(json.dumps(found, indent=0) + "\n")
