"""Writes key_reuse.json: which programs of key_reuse_cases.py an installed JAX 0.10 refuses.

Run by hand: python tests/data/make_key_reuse.py. The tests need no JAX.
"""

import json
import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))
from key_reuse_cases import programs, raises

if __name__ == "__main__":
    stored = {text: [raises(jax, text, False), raises(jax, text, True)] for text in programs()}
    text = json.dumps(stored, indent=None, separators=(",", ":")).replace('],"', '],\n"')
    (Path(__file__).parent / "key_reuse.json").write_text(text + "\n")
