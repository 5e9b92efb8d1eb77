"""Replacements for names of NumPy, PyTorch and JAX that gpuflow does not have.

They are in one table, other_names.txt, which is read when a program asks for such a name.

Tests: tests/base/test_other_names.py.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuflow.base import removed
from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

_NOTHING = "leave it out"
_SHORT = {  # public modules by the names that programs give them
    "gpuflow.numpy": "jnp",
    "gpuflow.nn": "nn",
    "gpuflow.random": "random",
    "gpuflow.lax": "lax",
}
_COUNT = re.compile(r"(\w+)\(\) (?:takes .* positional argument|missing \d+ required|got multiple)")
_KEYWORD = re.compile(r"(?:\w+\.)*(\w+)\(\) got an unexpected keyword argument '(\w+)'")


@cache
def _table() -> Mapping[tuple[str, str], str]:
    table = {}
    for row in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if row.startswith("#"):
            continue
        where, rest = row.split(maxsplit=1)
        names, _, here = rest.partition("   ")
        for name in names.split(", "):
            table[where, name.strip()] = here.strip()
    return table


def here(module: str, name: str) -> str | None:
    """The fix for a name of a module: "in gpuflow, use ..."; None if the table does not have it."""
    found = _table().get((module.removeprefix("gpuflow."), name))
    if found is None:
        return None
    return f"in gpuflow, {found if found.startswith(_NOTHING) else f'use {found}'}"


def note(error: BaseException) -> str | None:
    """The line to add below an error that Python raised itself; None if there is nothing to add.

    It is about attributes of arrays, keywords, and the number of arguments. Errors themselves stay
    as they were raised: this is for those that are shown.
    """
    if type(error) is AttributeError and _is_class_of_ours(type(error.obj)):
        return _attribute_note(error.obj, str(error.name))
    if type(error) is not TypeError:
        return None
    keyword = _KEYWORD.match(str(error))
    if keyword is not None:
        return _fix_of_keyword(keyword[1], keyword[2])
    count = _COUNT.match(str(error))
    function = None if count is None or _is_of_the_user(error, count[1]) else _public(count[1])
    return None if function is None else _fix(_call_of(*function))


def _is_class_of_ours(cls: type) -> bool:
    return any(base.__module__.startswith("gpuflow.") for base in cls.__mro__)


def _attribute_note(owner: Any, name: str) -> str | None:
    """The note about an attribute that an object of gpuflow lacks: its replacement."""
    cls = type(owner)
    kinds = ["array"] if hasattr(cls, "aval") else []
    for where in (*kinds, *[base.__name__ for base in cls.__mro__]):
        text = here(where, name)
        if text is not None:
            return _fix(text)
    public = [other for other in dir(owner) if not other.startswith("_")]
    close = difflib.get_close_matches(name, public, 3, 0.77)
    if close:
        return f"Fix: {' or '.join(f'.{match}' for match in close)}."
    version = removed.followed_version()
    if version is None:
        return None
    return (
        f"Fix: one of dir(x). If {name} is an attribute of JAX {version}, report which library "
        "needs it to the gpuflow project."
    )


def _fix(text: str | None) -> str | None:
    return None if text is None else f"Fix: {text}."


def _fix_of_keyword(function: str, keyword: str) -> str | None:
    text = here("=", keyword)
    if text is None or not _public(function):
        return None
    return _fix(text if _NOTHING in text else f"{text} instead of {keyword}=")


def _public(name: str) -> tuple[str, Callable[..., Any]] | None:
    """The short name of an imported public module, and its function of this name."""
    for module, short in _SHORT.items():
        namespace = vars(sys.modules.get(module, inspect))
        function = namespace.get(name)
        if namespace["__name__"] == module and callable(function):
            return short, function
    return None


def _is_of_the_user(error: BaseException, name: str) -> bool:
    """Whether the line that made the call has a function of this name that is not gpuflow's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    function = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}.get(name)
    return function is not None and not str(function.__module__).startswith("gpuflow")


def _call_of(short: str, function: Callable[..., Any]) -> str:
    """A function with its parameters, without annotations: "jnp.split(ary, ..., axis=0)"."""
    signature = inspect.signature(function)
    empty = inspect.Parameter.empty
    parameters = [one.replace(annotation=empty) for one in signature.parameters.values()]
    plain = signature.replace(parameters=parameters, return_annotation=empty)
    return f"{short}.{function.__name__}{plain}"
