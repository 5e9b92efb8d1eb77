"""Messages of modules about missing names.

Tests: tests/test_names_of_modules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.base.other_names import here
from gpuflow.base.records import record
from gpuflow.base.tracebacks import mark_modules

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


_MAX_CLOSE, _CLOSENESS = 5, 0.77
_ELSEWHERE = ("gpuflow", "random", "lax", "nn", "jnp")  # modules to search; the last wins
_published: dict[str, list[str]] = {}  # public names by the short name of the module


def public_names(namespace: dict[str, Any], module_name: str | None = None) -> list[str]:
    """The public names of a module: without private names and submodules.

    Args:
        namespace: the module's ``globals()``.
        module_name: the module's name, to leave out its private imports.
    """
    return [
        name
        for name, value in namespace.items()
        if not name.startswith("_")
        and name not in ("annotations", "TYPE_CHECKING")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", None) != __name__  # these two functions
        and (module_name is None or getattr(value, "__module__", None) == module_name)
    ]


def publish(
    namespace: dict[str, Any], short: str, names: Iterable[str], modules: Collection[str] = ()
) -> None:
    """Give a module ``__getattr__`` and ``__dir__`` of its public names.

    They are set dynamically: type checkers would assume that a module with ``__getattr__`` has
    every name.

    Args:
        namespace: the module's ``globals()``.
        short: the public name, such as ``jnp``.
        names: its public names.
        modules: its public submodules; those that are not there are imported when first asked for.
    """
    public = sorted({*names, *modules})
    namespace["__getattr__"] = missing_name(namespace["__name__"], short, public, modules)
    namespace["__dir__"] = lambda: list(public)
    _published[short] = public
    mark_modules()


def missing_name(
    module: str, short: str, names: Iterable[str], modules: Collection[str] = ()
) -> Callable[[str], Any]:
    """A module ``__getattr__`` whose error names the equivalent in gpuflow, or close names.

    Args:
        module: the module's name.
        short: the public name, such as ``jnp``.
        names: its public names.
        modules: its submodules that are imported when they are first asked for.
    """
    public = sorted({*names, *modules})

    def __getattr__(name: str) -> Any:
        if name in modules:
            return import_module(f"{module}.{name}")
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # A name without its module: with both, Python adds its own suggestions to the text.
        raise AttributeError(_Unknown(module, short, name, public), name=name)

    return __getattr__


@record(repr=False)
class _Unknown:
    """Error text of a name, computed when it is read: ``hasattr`` never reads it."""

    module: str
    short: str
    name: str
    public: list[str]

    def __str__(self) -> str:
        equivalent = here(self.module, self.name)
        if equivalent is not None:
            fix = equivalent
        else:
            modules = [short for short in _ELSEWHERE if short in _published]
            owners = {name: short for short in modules for name in _published[short]}
            owners.update(dict.fromkeys(self.public, self.short))  # this module's come first
            close = difflib.get_close_matches(self.name, owners, _MAX_CLOSE, _CLOSENESS)
            if not close and len(self.public) <= _MAX_CLOSE:
                close = self.public
            named = [f"{owners[match]}.{match}" for match in close]
            fix = f"use {' or '.join(named)}" if named else f"dir({self.short}) lists all names"
        return f"[{self.module}] the name must be one that exists; got {self.name!r}. Fix: {fix}."

    __repr__ = __str__
