"""Modules of JAX, made of the rows of ``table.txt``.

Tests: tests/test_as_jax_table.py, tests/test_as_jax.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from gpuflow.as_jax import missing
from gpuflow.base.records import record
from gpuflow.base.removed import note_removed


@record
class Row:
    """A row of the table.

    Attributes:
        same: the module that it is; None if it has the names below.
        origins: by name, the module of an object, and its name there.
        complete: modules of which it has all public names.
        refused: the reasons of refused names.
        removed: the replacements of names that JAX has removed.
    """

    same: str | None
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    complete: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)


def _read(text: str) -> tuple[dict[str, str], dict[str, Row]]:
    """The reasons by their names, and the rows by modules of JAX."""
    reasons: dict[str, str] = {}
    rows: dict[str, Row] = {}
    row = Row(None)
    # Two steps of indentation: more names of the line before.
    for entry in text.replace("\n        ", " ").splitlines():
        key, _, names = entry.strip().partition(": ")
        kind, _, last = key.partition(" ")
        if kind in ("", "#"):
            continue
        if kind == "reason":
            reasons[last] = names
        elif entry[0] != " ":
            row = rows[kind] = Row(last.removeprefix("= ") or None)
        elif kind == "refused":
            row.refused.update(dict.fromkeys(names.split(), reasons[last]))
        elif kind == "removed":
            row.removed[last] = names
        elif names == "*":
            row.complete.append(key)
        else:
            for new, _, old in (name.partition("=") for name in names.split()):
                row.origins[new] = key, old or new
    return reasons, rows


REASONS: Mapping[str, str]
TABLE: Mapping[str, Row]
REASONS, TABLE = _read(Path(__file__).with_name("table.txt").read_text(encoding="utf-8"))
_made: dict[str, TableModule] = {}


def target_of(full: str) -> str | None:
    """Return the name of the module that a module of JAX is.

    Args:
        full: its name in JAX.

    Returns:
        The name of a module of gpuflow, which need not exist, or of a row with names; None if
        neither can be the module.
    """
    row = TABLE.get(full)
    if row is not None:
        return full if row.same is None else target_of(row.same) or row.same
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
        self._row = row = TABLE[name]
        sources = sorted({*row.complete, *(module for module, _ in row.origins.values())})
        origin = f" Its names are from {', '.join(sources)}." if sources else ""
        reasons = "".join(f"\n\nRefused names: {reason}" for reason in {*row.refused.values()})
        super().__init__(name, f"``{name}`` under gpuflow's alias.{origin}{reasons}")
        self.__path__: list[str] = []  # the finder knows its submodules by their names
        self.__spec__ = ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        removed = self._row.removed
        if name == "__all__":
            return [one for one in dir(self) if one[0] != "_" and one not in removed]
        if name in removed:
            note_removed(f"{self.__name__}.{name}", removed[name])
        value = self._find(name, sys._getframe(1))
        return value if name in removed else vars(self).setdefault(name, value)

    def _find(self, name: str, frame: FrameType) -> Any:
        row, full = self._row, f"{self.__name__}.{name}"
        if full in TABLE:
            return module_of(full)
        if name in row.origins:
            source, original = row.origins[name]
            return getattr(_imported(source), original)
        if name in row.refused:
            return _refused_class(self.__name__, name, row.refused[name])
        is_special = name.startswith("__")
        own: AttributeError | None = None
        for source in row.complete if is_special or name[0] != "_" else ():
            try:
                return getattr(_imported(source), name)
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
        names = {*row.origins, *row.refused, *(name for name in modules if "." not in name)}
        for source in map(_imported, row.complete):
            names.update(getattr(source, "__all__", None) or _public(dir(source)))
        return sorted(names)


def _public(names: list[str]) -> list[str]:
    return [name for name in names if name[0] != "_"]


def _imported(name: str) -> ModuleType:
    """The module of a row in the table, or any other."""
    module = module_of(name) if name in TABLE else sys.modules.get(name)
    return import_module(name) if module is None else module


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
