"""Names that NumPy, PyTorch and JAX have and that are something else here: what to write instead.

They are in one table, other_names.txt, which is read when somebody asked for such a name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_KEYWORD = re.compile(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")


@cache
def _table() -> Mapping[tuple[str, str], str]:
    table = {}
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        where, rest = line.split(maxsplit=1)
        names, _, here = rest.partition("   ")
        for name in names.split(", "):
            table[where, name.strip()] = here.strip()
    return table


def here(module: str, name: str) -> str | None:
    """What a name of a module is here; None: the table does not have it."""
    return _table().get((module.removeprefix("gpuflow."), name))


def note(error: BaseException) -> str | None:
    """What is said below an error that Python raised itself, of a keyword or of an array's name.

    Errors are as they were raised: this is for those who show one.
    """
    if type(error) is AttributeError and hasattr(type(error.obj), "aval"):
        what = here("array", str(error.name))
        return None if what is None else f"Fix: {error.name} is here {what}."
    match = _KEYWORD.match(str(error)) if type(error) is TypeError else None
    what = None if match is None else here("=", match[2])
    if match is None or what is None or not _is_of_ours(match[1]):
        return None
    return f"Fix: {match[2]}= is here {what}."


def _is_of_ours(function: str) -> bool:
    """Whether a function of this name is in a public module that was imported."""
    modules: list[Any] = [sys.modules.get(f"gpuflow.{name}") for name in ("numpy", "nn", "random")]
    names = [dir(module) for module in modules if module is not None]
    return any(function in public for public in names)
