"""``dir()`` of public modules lists public names and no others; type checkers know the same."""

from __future__ import annotations

import ast
import importlib
import types
from pathlib import Path

import pytest

import gpuflow as gf

MODULES = (
    "", "numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers",
    "random", "tree", "tree_util", "sharding", "image", "debug", "errors", "profiler",
    "scipy", "scipy.linalg", "scipy.special", "scipy.stats", "scipy.signal", "scipy.fft",
    "scipy.integrate", "scipy.interpolate", "scipy.ndimage", "scipy.optimize", "scipy.sparse",
    "scipy.sparse.linalg", "scipy.cluster", "scipy.cluster.vq", "scipy.spatial",
    "scipy.spatial.transform", "experimental", "example_libraries", "custom_derivatives",
    "custom_batching", "ad_checkpoint", "flatten_util", "stages", "export", "ffi", "dtypes",
)  # fmt: skip
# Their primitives are looked up in the registry.
WITH_PRIMITIVES = ("lax", "lax.linalg")


def known_to_checkers(module: types.ModuleType) -> set[str]:
    """The public names of a typed module: what it defines, and imports ``as`` what it is."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
            if module.__name__ == "gpuflow.tree":  # it has __all__
                names |= {alias.asname for alias in node.names if alias.asname}
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            names |= {part.id for part in parts if isinstance(part, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def module_of(name: str) -> types.ModuleType:
    return importlib.import_module(f"gpuflow.{name}".rstrip("."))


@pytest.mark.parametrize("name", MODULES)
def test_dir_is_what_type_checkers_know(name):
    module = module_of(name)
    listed = {key for key in dir(module) if not key.startswith("_")}
    if name in WITH_PRIMITIVES:
        listed = {key for key in listed if not key.endswith("_p")}
    known = known_to_checkers(module)
    assert listed <= known, f"type checkers do not know {sorted(listed - known)}"
    # Aliases of annotations are names, but not what one looks for.
    is_one = types.FunctionType | type
    missing = {key for key in known - listed if isinstance(getattr(module, key), is_one)}
    assert not missing, f"dir() does not list {sorted(missing)}"


@pytest.mark.parametrize("name", MODULES)
def test_what_dir_lists_is_there(name):
    module = module_of(name)
    assert len(dir(module)) == len(set(dir(module)))
    assert all(hasattr(module, key) for key in dir(module))


def test_completion_of_the_top_level():
    names = set(dir(gf))
    assert {"jit", "nn", "sharding", "scipy", "numpy", "remat", "P", "tree", "debug"} <= names
    assert not {"api", "base", "core", "kir", "wiring", "compiler", "control", "cli"} & names
    assert {key for key in names if key.startswith("_")} == {"__version__"}
