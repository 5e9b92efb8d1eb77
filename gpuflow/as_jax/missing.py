"""What is said of names of JAX's that gpuflow lacks: who asked, and whether they are private."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

# Parts of JAX without a promise to stay, besides names with an underscore.
_PRIVATE = ("jax.interpreters", "jax.lib", "jaxlib")
_MACHINERY = ("importlib", "_frozen_importlib", "gpuflow.as_jax", "gpuflow.base.names")
_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def message(full: str) -> str:
    """What an error says.

    Args:
        full: the name in JAX, such as ``jax._src.core.Foo``.
    """
    private = any(part.startswith("_") for part in full.split(".")) or full.startswith(_PRIVATE)
    what = ", a name private to JAX, which may change with any version of it" if private else ""
    mend = (
        "a public name in its place, or tell gpuflow's authors which library needs it"
        if private
        else "another name (docs/differences.md says what is left out), or JAX"
    )
    return (
        f"[as_jax] a name must be one that gpuflow has; got {full}{what}, from {_asker()}. "
        f"Fix: {mend}."
    )


def _asker() -> str:
    """The module that asked, and its library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_MACHINERY):
            return f"{name} of {name.partition('.')[0]}" if "." in name else name or "a program"
        frame = frame.f_back
    return "a program"


def is_import() -> bool:
    """Whether a finder was called by an import, and not by ``importlib.util.find_spec``."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    return frame is None or frame.f_globals.get("__name__") != "importlib.util"


def is_import_from(frame: FrameType) -> bool:
    """Whether a frame asks for an attribute by ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def error(full: str, frame: FrameType) -> Exception:
    """The error for an attribute that there is not.

    ``from module import name`` makes an ImportError of its own of an AttributeError, without its
    text: so it gets an ImportError.

    Args:
        full: the name in JAX.
        frame: of who asked for the attribute.
    """
    kind = ImportError if is_import_from(frame) else AttributeError
    return kind(message(full))


def explain(module: ModuleType, name: str) -> None:
    """Let a module of JAX's inside say what it lacks.

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
        raise error(f"{name}.{attribute}", sys._getframe(1))

    __getattr__.explains = True  # type: ignore[attr-defined]
    vars(module)["__getattr__"] = __getattr__
