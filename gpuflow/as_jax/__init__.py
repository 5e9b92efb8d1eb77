"""Opt-in alias: programs that ``import jax`` run on gpuflow without changes.

``python -m gpuflow.as_jax script.py args`` runs a script; :func:`install` does it for the running
program. Nothing is copied: ``jax.numpy`` *is* ``gpuflow.numpy`` afterwards.

Tests: tests/test_as_jax.py, tests/test_as_jax_table.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from gpuflow.as_jax.aliases import AliasFinder
from gpuflow.as_jax.versions import JAX_VERSION, VersionFinder
from gpuflow.base.config import config
from gpuflow.base.removed import watch
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array

_alias = AliasFinder()
_versions = VersionFinder()
# The modules of classes as they were.
_modules: dict[type, str] = {}


def install() -> None:
    """Import gpuflow as ``jax`` from now on in this process, submodules included.

    ``importlib.metadata`` then finds versions of ``jax`` and ``jaxlib``, whose names and semantics
    gpuflow follows. JAX's environment variables (``JAX_ENABLE_X64``, ``JAX_NUM_CPU_DEVICES``, ...)
    are used if gpuflow has an equivalent. Further calls do nothing.

    Raises:
        ValueError: if one of those variables cannot be read.
        RuntimeError: if JAX itself is already imported: its modules would mix with gpuflow's.
    """
    if _alias in sys.meta_path:
        return
    imported = sorted(name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib"))
    if imported:
        raise RuntimeError(
            "[as_jax] install() must come before JAX is imported; got a process in which "
            f"{', '.join(imported[:3])} {'is' if len(imported) == 1 else 'are'} imported. Fix: "
            "call gpuflow.as_jax.install() first, or run python -m gpuflow.as_jax script.py."
        )
    config.adopt_jax_variables()
    watch(JAX_VERSION)
    for finder in (_alias, _versions):
        if finder not in sys.meta_path:
            sys.meta_path.insert(0, finder)
    # Libraries that work with several array frameworks go by the module of an array's class.
    for base, module in ((Array, "jax"), (Tracer, "jax.core")):
        for kind in _and_subclasses(base):
            _modules[kind] = kind.__module__
            kind.__module__ = module


def uninstall() -> None:
    """Remove the alias; modules that were imported through it remain."""
    watch(None)
    for finder in (_alias, _versions):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    for kind, module in _modules.items():
        kind.__module__ = module
    _modules.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]:
        del sys.modules[name]


def _and_subclasses(kind: type) -> Iterator[type]:
    yield kind
    for other in kind.__subclasses__():
        yield from _and_subclasses(other)
