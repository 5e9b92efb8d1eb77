"""Public modules as Python source: what ``dir()`` lists, with signatures and docstrings.

make_reference.py has mkdocstrings read it, for much of gpuflow is made when it is imported.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gpuflow

LONGEST = 200  # characters of a constant that is printed


class Plain(str):
    """Text that stands for itself where a value is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# --- what there is ---------------------------------------------------------------------------


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module but for primitives, which are no functions.

    A module without ``__dir__`` has imports of its own among its names.
    """
    names = [name for name in dir(module) if not name.startswith("_") and name[-2:] != "_p"]
    if "__dir__" in vars(module):
        return names
    prefix = module.__name__
    return [
        name
        for name in names
        if str(getattr(getattr(module, name), "__module__", "")).startswith(prefix)
    ]


def namespaces(module: ModuleType = gpuflow) -> Iterator[ModuleType]:
    """A module, and the public modules within it."""
    yield module
    for name in names_of(module):
        value = getattr(module, name)
        is_ours = isinstance(value, ModuleType) and value.__name__ == f"{module.__name__}.{name}"
        if is_ours:
            yield from namespaces(value)


# --- as source -------------------------------------------------------------------------------


def readable(value: Any) -> Any:
    """A default or an annotation as it is printed: ``...`` where that is no Python."""
    text = value if isinstance(value, str | Plain) else inspect.formatannotation(value)
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        text = "..."
    return Plain(text)


def signature_of(value: Any) -> str:
    """The signature of a callable as source."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(*args, **kwargs)"
    empty = inspect.Parameter.empty
    parameters = [
        one.replace(
            annotation=one.annotation if one.annotation is empty else readable(one.annotation),
            default=one.default if one.default is empty else readable(repr(one.default)),
        )
        for one in found.parameters.values()
    ]
    result = found.return_annotation
    return str(found.replace(
        parameters=parameters,
        return_annotation=result if result is inspect.Signature.empty else readable(result),
    ))  # fmt: skip


def docstring_of(value: Any, indent: str) -> str:
    """A docstring as source."""
    text = (inspect.getdoc(value) or "").strip()
    # A section of that name is one of Google's style, in which >>> begins code.
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    return f"{indent}{text!r}\n" if text else ""


def function_source(name: str, value: Any, indent: str = "") -> str:
    """A function without its body."""
    doc = docstring_of(value, f"{indent}    ") or f"{indent}    ...\n"
    return f"{indent}def {name}{signature_of(value)}:\n{doc}\n"


def class_source(name: str, value: type) -> str:
    """A class: what it says, and its public methods and properties, those of its bases too."""
    lines = [f"class {name}:\n", docstring_of(value, "    ") or "    ...\n"]
    for key in dir(value):
        member = inspect.getattr_static(value, key)
        ours = getattr(getattr(value, key, None), "__module__", None) or ""
        if key.startswith("_") or not key.isidentifier():
            continue
        if isinstance(member, property):
            lines.append("    @property\n" + function_source(key, member.fget, "    "))
        elif callable(getattr(value, key, None)) and ours.startswith("gpuflow"):
            lines.append(function_source(key, member if callable(member) else member.__func__,
                                         "    "))  # fmt: skip
    return "\n".join(lines) + "\n"


def source_of(name: str, value: Any) -> str:
    """What a public name stands for, as source."""
    if isinstance(value, type):
        return class_source(name, value)
    if callable(value):
        return function_source(name, value)
    text = readable(repr(value))
    return f"{name} = {text if len(text) < LONGEST else '...'}\n"


def module_source(module: ModuleType) -> str:
    """A module: what it says, and what is in it; modules have pages of their own."""
    members = [(key, getattr(module, key)) for key in names_of(module)]
    own = [source_of(key, value) for key, value in members if not isinstance(value, ModuleType)]
    return docstring_of(module, "") + "\n" + "\n".join(own)


def write_sources(folder: Path, modules: Iterable[ModuleType]) -> None:
    """Write packages that hold what users see of modules."""
    for module in modules:
        path = folder.joinpath(*module.__name__.split("."), "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module_source(module), encoding="utf-8")
