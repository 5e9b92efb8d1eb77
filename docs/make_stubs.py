"""Write gpuflow/core/methods.pyi: what type checkers know of methods that come from tables.

    python docs/make_stubs.py             # writes gpuflow/core/methods.pyi
    python docs/make_stubs.py --check     # fails if that would change it

Arrays and refs get operators, methods and properties from tables, ``numpy/methods.py`` and
``ref.py``; their signatures and result types are those of the functions there.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from generated_file import write_or_check

from gpuflow import ref
from gpuflow.core import types as core_types
from gpuflow.core.aval import HasAval, HasShape
from gpuflow.numpy.methods import METHODS, PROPERTIES

OUTPUT = Path(__file__).resolve().parents[1] / "gpuflow" / "core" / "methods.pyi"
HEAD = """\
# Written by docs/make_stubs.py from the tables in numpy/methods.py and ref.py.
# ruff: noqa: E501, I001
"""

Imports = dict[str, set[str]]


class Text(str):
    """An annotation as a signature prints it: without quotes."""

    __repr__ = str.__str__


def stub() -> str:
    """The text of the file."""
    imports: Imports = defaultdict(set)
    classes = [
        class_of("ArrayMethods", HasAval, METHODS, PROPERTIES, imports),
        class_of("RefMethods", HasShape, ref.METHODS, ref.PROPERTIES, imports),
    ]
    lines = [
        f"from {module} import {', '.join(sorted(imports[module]))}\n" for module in sorted(imports)
    ]
    return HEAD + "".join(lines) + "\n" + "\n".join(classes)


def class_of(
    name: str,
    base: type,
    methods: Mapping[str, Any],
    properties: Mapping[str, Any],
    imports: Imports,
) -> str:
    """One class: its methods and properties, in the order of the tables."""
    need(base, base.__name__, base.__module__, imports)
    text = [f"class {name}({base.__name__}):\n"]
    for key, function in methods.items():
        # Those of `object` take anything and return bools.
        ignore = "  # type: ignore[override]" if key in ("__eq__", "__ne__") else ""
        text.append(f"    def {key}{signature(function, imports)}: ...{ignore}\n")
    for key, get in properties.items():
        result = signature(get, imports).rpartition(" -> ")[2]
        text.append(f"    @property\n    def {key}(self) -> {result}: ...\n")
    return "".join(text)


def signature(function: Callable[..., Any], imports: Imports) -> str:
    """The signature of a method, whose first parameter is the array, in words of the file."""
    if isinstance(function, type):
        need(function, function.__name__, function.__module__, imports)
        return f"(self) -> {function.__name__}"
    whole = inspect.signature(function)
    first, *rest = whole.parameters.values()
    parameters = [
        first.replace(name="self", annotation=first.empty),
        *[p.replace(annotation=annotation(p.annotation, function, imports)) for p in rest],
    ]
    result = annotation(whole.return_annotation, function, imports)
    return str(whole.replace(parameters=parameters, return_annotation=result))


def annotation(text: Any, function: Callable[..., Any], imports: Imports) -> Text:
    """An annotation, whose names are imported."""
    if not isinstance(text, str):
        raise TypeError(
            f"[make_stubs] functions of the tables must say what they take and return; got {text} "
            f"of {function}. Fix: annotate it, behind `from __future__ import annotations`."
        )
    home = inspect.unwrap(function)
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            need(home.__globals__[node.id], node.id, home.__module__, imports)
    return Text(text)


def need(value: Any, name: str, module: str, imports: Imports) -> None:
    """Import a name that a module has: from where it is defined, if it says so."""
    home = getattr(value, "__module__", module)
    libraries = [library for library in (typing, types) if value is getattr(library, name, None)]
    if libraries:
        module = libraries[0].__name__
    elif hasattr(core_types, name):  # stands for a class that is above some layers
        module = core_types.__name__
    elif getattr(sys.modules[home], name, None) is value:
        module = home
    imports[module].add(name)


if __name__ == "__main__":
    sys.exit(write_or_check(OUTPUT, stub()))
