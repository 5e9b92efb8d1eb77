"""Import finder that resolves ``jax`` and ``jax.X`` to gpuflow's modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gpuflow
from gpuflow.as_jax import missing
from gpuflow.as_jax.table import MODULES, REMOVED
from gpuflow.as_jax.versions import JAX_VERSION, JAX_VERSION_INFO
from gpuflow.base.removed import note_removed


class JaxModule(ModuleType):
    """The module ``jax``: gpuflow's names, and the version of JAX that they follow."""

    __version__ = JAX_VERSION
    __version_info__ = JAX_VERSION_INFO

    def __getattr__(self, name: str) -> Any:
        full = f"jax.{name}"
        if full in MODULES:
            return importlib.import_module(full)
        if name in REMOVED:
            note_removed(full, REMOVED[name])
        try:
            return getattr(gpuflow, name)
        except AttributeError:
            if not name.startswith("_") and find_spec(full) is not None:
                return importlib.import_module(full)
            frame = sys._getframe(1)
            if name.startswith("__") or not missing.is_import_from(frame):
                raise
            raise missing.error(full, frame) from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(gpuflow)})


class AliasFinder(MetaPathFinder):
    """Import finder that maps ``jax.X`` to the module in ``MODULES``, or to ``gpuflow.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """Return a spec for JAX modules with a counterpart, and None for all others.

        Raises:
            ModuleNotFoundError: if a program imports a JAX module without a counterpart in gpuflow.
        """
        del path, target
        if fullname == "jax":
            return ModuleSpec(fullname, _TopLoader(), is_package=True)
        ours = target_of(fullname)
        if ours is None or find_spec(ours) is None:
            if fullname.startswith(("jax.", "jaxlib.")) and missing.is_import():
                raise ModuleNotFoundError(missing.message(fullname), name=fullname)
            return None
        return ModuleSpec(fullname, _AliasLoader(ours), is_package=True)


def target_of(fullname: str) -> str | None:
    """Return the name of gpuflow's module for a name in JAX, or None."""
    first, _, rest = fullname.partition(".")
    if fullname.startswith("gpuflow.experimental."):
        # Of ``from jax.experimental import X``: the import system asks by that module's own name.
        return MODULES.get(f"jax.{rest}")
    if first not in ("jax", "jaxlib"):
        return None
    if fullname in MODULES:
        return MODULES[fullname]
    parent, _, last = fullname.rpartition(".")
    ours = target_of(parent) if parent not in ("", "jax") else "gpuflow"
    return f"{ours}.{last}" if ours is not None and rest else None


class _AliasLoader(Loader):
    """Puts a module that exists under a second name."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system make one, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Register ours: the import system returns the current entry of ``sys.modules``."""
        ours = importlib.import_module(self.ours)
        if self.ours.startswith("gpuflow.as_jax.") or "__getattr__" not in vars(ours):
            missing.explain(ours, module.__name__)
        sys.modules[module.__name__] = ours


class _TopLoader(Loader):
    """Makes the module ``jax`` itself."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one, whose names are found when they are asked for."""
        return JaxModule(spec.name, "gpuflow under JAX's name (gpuflow.as_jax)")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""
