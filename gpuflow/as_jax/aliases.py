"""Import finder that resolves ``jax`` and ``jax.X`` to the modules of ``surfaces.py``.

Tests: tests/test_as_jax_table.py, tests/test_as_jax.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gpuflow.as_jax import missing
from gpuflow.as_jax.surfaces import TABLE, module_of, target_of


class AliasFinder(MetaPathFinder):
    """Import finder that maps ``jax.X`` to the module in the table, or to ``gpuflow.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return a spec for JAX modules with a counterpart, and None for all others.

        Raises:
            ModuleNotFoundError: if a program imports a JAX module without a counterpart in gpuflow.
        """
        del path, target
        name = fullname
        if fullname.startswith("gpuflow.experimental."):
            # Of ``from jax.experimental import X``: the import system asks by that module's name.
            name = f"jax.{fullname.removeprefix('gpuflow.')}"
            if name not in TABLE:
                return None
        ours = target_of(name) if name.partition(".")[0] in ("jax", "jaxlib") else None
        if ours is None or (ours not in TABLE and find_spec(ours) is None):
            if fullname.startswith(("jax.", "jaxlib.")) and missing.is_import():
                raise ModuleNotFoundError(missing.message(fullname), name=fullname)
            return None
        return ModuleSpec(fullname, _AliasLoader(name), is_package=True)


class _AliasLoader(Loader):
    """Registers a module under a second name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make one, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Register ours: the import system returns the current entry of ``sys.modules``."""
        ours = module_of(self.name)
        assert ours is not None, self.name
        sys.modules[module.__name__] = ours
