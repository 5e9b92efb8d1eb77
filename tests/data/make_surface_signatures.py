"""Writes surface_signatures.json: the public functions of small modules, with parameter names.

usage: python make_surface_signatures.py   (in an environment with JAX 0.10)
"""

import importlib
import inspect
import json
from pathlib import Path

MODULES = [
    "nn",
    "nn.initializers",
    "image",
    "ops",
    "dlpack",
    "monitoring",
    "test_util",
    "dtypes",
    "errors",
    "stages",
    "typing",
    "ffi",
    "custom_derivatives",
    "ad_checkpoint",
]


def parameters(value: object) -> list[str] | None:
    """Names of parameters; None where there is nothing to compare."""
    if isinstance(value, type) or not callable(value):
        return None
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return None


def main() -> None:
    signatures = {}
    for name in MODULES:
        module = importlib.import_module(f"jax.{name}")
        public = [n for n in dir(module) if not n.startswith("_") and n != "annotations"]
        signatures[name] = {n: parameters(getattr(module, n)) for n in public}
    text = json.dumps(signatures, separators=(",", ":"))
    (Path(__file__).parent / "surface_signatures.json").write_text(text)


main()
