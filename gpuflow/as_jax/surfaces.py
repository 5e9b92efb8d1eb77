"""Modules of JAX, made of the rows of ``table.py``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FrameType, ModuleType
from typing import Any, NoReturn

from gpuflow.as_jax import missing
from gpuflow.as_jax.table import TABLE, Names
from gpuflow.base.records import record
from gpuflow.base.removed import note_removed


def target_of(full: str) -> str | None:
    """Return the name of the module that a module of JAX is.

    Args:
        full: its name in JAX.

    Returns:
        The name of a module of gpuflow, which need not exist, or of a row that is a ``Names``; None
        if neither can be the module.
    """
    row = TABLE.get(full)
    if row is not None:
        return full if isinstance(row, Names) else target_of(row) or row
    parent, _, last = full.rpartition(".")
    if parent == "jax":
        return f"gpuflow.{last}"
    ours = target_of(parent) if parent else None
    if ours is None or ours == parent:
        return None
    return target_of(f"{ours}.{last}") if ours in TABLE else f"{ours}.{last}"


def module_of(full: str) -> ModuleType | None:
    """Return gpuflow's module for a name in JAX; None without one.

    Args:
        full: the name in JAX.
    """
    ours = target_of(full)
    if ours is None:
        return None
    if ours in TABLE:
        return _made.get(ours) or _made.setdefault(ours, TableModule(ours))
    if find_spec(ours) is None:
        return None
    module = import_module(ours)
    if ours.startswith("gpuflow.as_jax.") or "__getattr__" not in vars(module):
        missing.explain(module, full)
    return module


class TableModule(ModuleType):
    """A module whose names are found, by its row of the table, when they are first requested.

    Args:
        name: in JAX.
    """

    def __init__(self, name: str) -> None:
        row = TABLE[name]
        assert isinstance(row, Names)
        super().__init__(name, _docstring(name, row))
        self.__path__: list[str] = []  # the finder knows its submodules by their names
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self._row = _parsed(row)

    def __getattr__(self, name: str) -> Any:
        row = self._row
        if name == "__all__":
            return [one for one in dir(self) if one[0] != "_" and one not in row.removed]
        if name in row.removed:
            note_removed(f"{self.__name__}.{name}", row.removed[name])
        value = self._find(name, sys._getframe(1))
        return value if name in row.removed else vars(self).setdefault(name, value)

    def _find(self, name: str, frame: FrameType) -> Any:
        row, full = self._row, f"{self.__name__}.{name}"
        if full in TABLE:
            return module_of(full)
        if name in row.origins:
            module, original = row.origins[name]
            return getattr(_imported(module), original)
        if name in row.reasons:
            return _refused_class(self.__name__, name, row.reasons[name])
        is_special = name.startswith("__")
        own: AttributeError | None = None
        for module in row.whole if is_special or name[0] != "_" else ():
            try:
                return getattr(_imported(module), name)
            except AttributeError as error:
                own = error
        submodule = None if name[0] == "_" else module_of(full)
        if submodule is not None:
            return submodule
        if is_special:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        # The error of gpuflow's module has more advice, but not for private names of JAX.
        if own is not None and not missing.is_private(full) and not missing.is_import_from(frame):
            raise own
        raise missing.error(full, frame, dir(self)) from None

    def __dir__(self) -> list[str]:
        row, below = self._row, f"{self.__name__}."
        modules = [name.removeprefix(below) for name in TABLE if name.startswith(below)]
        names = {*row.origins, *row.reasons, *(name for name in modules if "." not in name)}
        return sorted(names.union(*(_public_names(_imported(module)) for module in row.whole)))


_made: dict[str, TableModule] = {}


@record
class _Parsed:
    """A row by its names.

    Attributes:
        origins: the module of each name, and the name in it.
        reasons: of each refused name.
        whole: modules of which it has all public names.
        removed: the replacements of removed names.
    """

    origins: dict[str, tuple[str, str]]
    reasons: dict[str, str]
    whole: list[str]
    removed: Mapping[str, str]


def _parsed(row: Names) -> _Parsed:
    origins = {}
    for module, names in row.of.items():
        for name in names.split() if names != "*" else ():
            new, _, old = name.partition("=")
            origins[new] = module, old or new
    reasons = {name: why for why, names in row.refused.items() for name in names.split()}
    whole = [module for module, names in row.of.items() if names == "*"]
    return _Parsed(origins, reasons, whole, row.removed)


def _docstring(name: str, row: Names) -> str:
    lines = [f"``{name}`` under gpuflow's alias (gpuflow.as_jax)."]
    if row.of:
        lines.append(f"Its names are those of {', '.join(row.of)}.")
    lines += [f"Some are refused when they are used: {reason}" for reason in row.refused]
    return "\n\n".join(lines)


def _imported(name: str) -> ModuleType:
    """The module of a row in the table, or any other."""
    module = module_of(name) if name in TABLE else sys.modules.get(name)
    return import_module(name) if module is None else module


def _public_names(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    return [name for name in dir(module) if name[0] != "_"] if names is None else names


def _refused_class(module: str, name: str, reason: str) -> type:
    """A class without instances: annotations and ``isinstance`` work, calling it raises.

    Args:
        module, name: in JAX.
        reason: the requirement, and the recommended replacement.
    """
    message = f"[{module}.{name}] {reason}"

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(message)

    namespace = {"__new__": refuse, "__doc__": message, "__module__": module, "is_absent": True}
    return type(name, (), namespace)
