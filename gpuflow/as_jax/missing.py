"""Errors about names of JAX that gpuflow lacks: the requester, close names, private or not.

Tests: tests/test_as_jax.py, tests/test_as_jax_table.py.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

# Modules of JAX without a stability promise, besides names with an underscore.
_PRIVATE = ("jax.interpreters", "jax.lib", "jaxlib")
_MACHINERY = ("importlib", "_frozen_importlib", "gpuflow.as_jax", "gpuflow.base.names")
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


# The page with a table of the names that libraries use and gpuflow lacks.
_PAGE = "docs/differences.md#names-that-libraries-use"


def message(full: str, names: Iterable[str] = ()) -> str:
    """The text of an error about a name.

    Args:
        full: the name in JAX, such as ``jax._src.core.Foo``.
        names: those that its module has.
    """
    return str(_Message(full, _requester(), tuple(names)))


@record(repr=False)
class _Message:
    """The text of an error, worked out when it is read: ``hasattr`` never reads it."""

    full: str
    requester: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        module, _, name = self.full.rpartition(".")
        private = is_private(self.full)
        kind = ", a name private to JAX, which may change with any version of it" if private else ""
        close = difflib.get_close_matches(name, self.names, 3, 0.77)
        if close:
            fix = " or ".join(f"{module}.{match}" for match in close)
        elif private:
            fix = (
                f"a public name ({_PAGE} lists what gpuflow lacks), or tell gpuflow's authors "
                "which library needs it"
            )
        else:
            fix = f"another name; {_PAGE} lists those that gpuflow lacks"
        return (
            f"[as_jax] a name must be one that gpuflow has; got {self.full}{kind}, from "
            f"{self.requester}. Fix: {fix}."
        )

    __repr__ = __str__


def _requester() -> str:
    """The module that requested the name, and its library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_MACHINERY):
            return f"{name} of {name.partition('.')[0]}" if "." in name else name or "a program"
        frame = frame.f_back
    return "a program"


def is_private(full: str) -> bool:
    """Whether JAX makes no promise about a name."""
    underscored = any(segment.startswith("_") for segment in full.split("."))
    return underscored or full.startswith(_PRIVATE)


def is_import() -> bool:
    """Whether a finder was called by an import, and not by ``importlib.util.find_spec``."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") != "importlib.util"


def is_import_from(frame: FrameType) -> bool:
    """Whether a frame asks for an attribute by ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def error(full: str, frame: FrameType, names: Iterable[str] = ()) -> Exception:
    """The error for a missing attribute.

    ``from module import name`` replaces an AttributeError by an ImportError without its text: so it
    gets an ImportError.

    Args:
        full: the name in JAX.
        frame: of the code that asked for the attribute.
        names: those that its module has.
    """
    if is_import_from(frame):
        return ImportError(message(full, names))
    return AttributeError(_Message(full, _requester(), tuple(names)))


def explain(module: ModuleType, name: str) -> None:
    """Give a module without one a ``__getattr__`` that explains which names it lacks.

    Args:
        module: ours.
        name: in JAX.
    """
    before: Callable[[str], Any] | None = vars(module).get("__getattr__")
    if getattr(before, "explains", False):
        return

    def __getattr__(attribute: str) -> Any:
        if before is not None:
            try:
                return before(attribute)
            except AttributeError:
                pass
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        raise error(f"{name}.{attribute}", sys._getframe(1), dir(module))

    __getattr__.explains = True  # type: ignore[attr-defined]
    vars(module)["__getattr__"] = __getattr__
