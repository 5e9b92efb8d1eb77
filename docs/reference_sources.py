"""Public modules as Python source: what ``dir()`` lists, with signatures and docstrings.

make_reference.py has mkdocstrings read it, for much of gpuflow is made when it is imported.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import gpuflow

MAX_LENGTH = 200  # characters of a constant that is printed
TESTS = re.compile(r"\n\nTests: tests/.*\Z", re.DOTALL)  # of a module: for its developers


class Plain(str):
    """Text that stands for itself where a value is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# --- what there is ---------------------------------------------------------------------------


def is_imported(name: str, module: ModuleType) -> bool:
    """Whether a name is one of Python's standard library, such as ``Any``."""
    value = getattr(module, name)
    home = getattr(value, "__module__", None) or ""
    is_standard = home.partition(".")[0] in sys.stdlib_module_names
    return is_standard and getattr(sys.modules.get(home), name, None) is value


def is_alias(value: Any) -> bool:
    """Whether a value is a type of Python under another name, or an annotation such as a union."""
    is_builtin = isinstance(value, type) and value.__module__ == "builtins"
    return is_builtin or get_origin(value) is not None


def is_documented(value: Any) -> bool:
    """Whether a value has a docstring that is not the one of its type."""
    doc = inspect.getdoc(value)
    return not is_alias(value) and bool(doc) and doc != inspect.getdoc(type(value))


def summary_of(value: Any) -> str:
    """The first line of a docstring, or the text of a constant."""
    if is_documented(value):
        return (inspect.getdoc(value) or "").partition("\n")[0]
    text = text_of(value)
    return f"`{text}`" if text != "..." and len(text) < MAX_LENGTH else ""


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module but for primitives, which are no functions.

    A module without ``__dir__`` has imports of its own among its names.
    """
    names = [
        name
        for name in dir(module)
        if not (name.startswith("_") or name[-2:] == "_p" or is_imported(name, module))
    ]
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


def text_of(value: Any) -> str:
    """A constant or an alias as source."""
    return str(readable(value if is_alias(value) else repr(value)))


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
    return str(
        found.replace(
            parameters=parameters,
            return_annotation=result if result is inspect.Signature.empty else readable(result),
        )
    )


def docstring_of(value: Any, indent: str) -> str:
    """A docstring as source."""
    text = TESTS.sub("", (inspect.getdoc(value) or "").strip())
    # A section of that name is one of Google's style, in which >>> begins code.
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    # A colon before the text of a result: what precedes one within the text is no name of it.
    text = re.sub(r"^(Returns|Yields):\n    (?=\S)", r"\1:\n    : ", text, flags=re.MULTILINE)
    return f"{indent}{text!r}\n" if text else ""


def function_source(name: str, value: Any, indent: str = "") -> str:
    """A function without its body."""
    doc = docstring_of(value, f"{indent}    ") or f"{indent}    ...\n"
    return f"{indent}def {name}{signature_of(value)}:\n{doc}\n"


def is_internal(member: Any) -> bool:
    """Whether the docstring of a method or property keeps it for gpuflow's own use."""
    function = member.fget if isinstance(member, property) else member
    return (inspect.getdoc(function) or "").startswith("Internal: ")


def class_source(name: str, value: type) -> str:
    """A class with its docstring, public methods and properties, those of its bases too."""
    lines = [f"class {name}:\n", docstring_of(value, "    ") or "    ...\n"]
    for key in dir(value):
        member = inspect.getattr_static(value, key)
        ours = getattr(getattr(value, key, None), "__module__", None) or ""
        if key.startswith("_") or not key.isidentifier() or is_internal(member):
            continue
        if isinstance(member, property):
            lines.append("    @property\n" + function_source(key, member.fget, "    "))
        elif callable(getattr(value, key, None)) and ours.startswith("gpuflow"):
            lines.append(
                function_source(key, member if callable(member) else member.__func__, "    ")
            )
    return "\n".join(lines) + "\n"


def source_of(name: str, value: Any, module: ModuleType) -> str:
    """A public name of a module as source."""
    if isinstance(value, type) and not is_alias(value):
        if value is not gpuflow.Array or module is gpuflow:
            return class_source(name, value)
        return f"class {name}:\n    'The same class as [`gpuflow.Array`][].'\n"
    if callable(value) and not is_alias(value):
        return function_source(name, value)
    text = text_of(value)
    return f"{name} = {text if len(text) < MAX_LENGTH else '...'}\n"


def members_of(module: ModuleType) -> list[tuple[str, Any]]:
    """The public names and values of a module but for modules: those with docstrings first."""
    members = [(name, getattr(module, name)) for name in names_of(module)]
    own = [one for one in members if not isinstance(one[1], ModuleType)]
    return sorted(own, key=lambda one: not is_documented(one[1]))


def module_source(module: ModuleType) -> str:
    """A module: what it says, and what is in it; modules have pages of their own."""
    own = [source_of(*member, module) for member in members_of(module)]
    return docstring_of(module, "") + "\n" + "\n".join(own)


def write_sources(folder: Path, modules: Iterable[ModuleType]) -> None:
    """Write packages that hold what users see of modules."""
    for module in modules:
        path = folder.joinpath(*module.__name__.split("."), "__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(module_source(module), encoding="utf-8")
