"""Write jax_names.json: the public names of JAX, and the keywords that their functions take.

Run with an interpreter that has JAX; neither the tests nor make_api.py need it.

    python docs/data/make_jax_names.py
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import types
import warnings
from pathlib import Path
from typing import Any

import jax

NAMES = """
    jax jax.numpy jax.numpy.linalg jax.numpy.fft jax.lax jax.lax.linalg jax.random jax.nn
    jax.nn.initializers jax.tree jax.tree_util jax.scipy.special jax.scipy.stats jax.scipy.linalg
    jax.scipy.signal jax.scipy.fft jax.scipy.ndimage jax.scipy.optimize jax.scipy.integrate
    jax.scipy.interpolate jax.scipy.cluster.vq jax.scipy.spatial.transform jax.scipy.sparse.linalg
    jax.sharding jax.distributed jax.debug jax.errors jax.dtypes jax.typing jax.image jax.ops
    jax.profiler jax.monitoring jax.stages jax.dlpack jax.ffi jax.export jax.flatten_util
    jax.custom_batching jax.custom_derivatives jax.ad_checkpoint jax.test_util jax.core jax.ref
    jax.experimental jax.experimental.multihost_utils jax.experimental.mesh_utils
    jax.experimental.ode jax.experimental.checkify jax.experimental.pallas
    jax.experimental.sparse jax.experimental.jet jax.experimental.custom_partitioning
    jax.example_libraries.stax jax.example_libraries.optimizers
"""
MODULES = NAMES.split()
# Modules that are written where users import them: what they import shows among their names.
OWN_NAMES_ONLY = (
    "jax.experimental.jet",
    "jax.experimental.multihost_utils",
    "jax.experimental.ode",
)
IMPORTED = {
    "jax.example_libraries.stax": {*dir(jax.nn), *dir(jax.nn.initializers)},
    "jax.example_libraries.optimizers": {
        "Any",
        "Callable",
        "NamedTuple",
        "annotations",
        "namedtuple",
        "partial",
        "safe_map",
        "safe_zip",
        "unzip2",
    },
}
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def keywords(value: Any) -> list[str] | None:
    """The arguments that a function takes by name; None for what is no function."""
    if isinstance(value, type) or not callable(value):
        return None
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [p.name for p in parameters if p.kind in KEYWORDS and not p.name.startswith("_")]


def public(module: types.ModuleType) -> dict[str, Any]:
    """The public names of a module, without submodules and without what it only imports."""
    own = module.__name__ in OWN_NAMES_ONLY
    imported = IMPORTED.get(module.__name__, ())
    return {
        name: value
        for name, value in inspect.getmembers(module)
        if not name.startswith("_")
        and name not in imported
        and not isinstance(value, types.ModuleType)
        and (not own or getattr(value, "__module__", "") == module.__name__)
    }


def names_of(name: str) -> dict[str, list[str] | None]:
    """Names and keywords of a module; those of distributions with the module's name in front."""
    module = importlib.import_module(name)
    names = {key: keywords(value) for key, value in public(module).items()}
    if name == "jax.scipy.stats":
        for inner in pkgutil.iter_modules(module.__path__):
            distribution = importlib.import_module(f"{name}.{inner.name}")
            for key, value in public(distribution).items():
                names[f"{inner.name}.{key}"] = keywords(value)
    return dict(sorted(names.items()))


def main() -> None:
    """Write the file, one module a line."""
    warnings.simplefilter("ignore")
    found = {name: names_of(name) for name in MODULES}
    found["jax.Array"] = {
        key: keywords(value)
        for key, value in inspect.getmembers(jax.Array)
        if not key.startswith("_")
    }
    lines = [f"{json.dumps(name)}: {json.dumps(names)}" for name, names in found.items()]
    version = f'"version": {json.dumps(jax.__version__)}'
    text = "{\n" + ",\n".join([version, *lines]) + "\n}\n"
    Path(__file__).with_name("jax_names.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
