"""Traces of plain functions, which all jitted functions of one function share.

As in JAX, so that ``jit(f)`` may be written at the call. A trace is only reused while the values
that the function reads by name are the same: its globals, captured values and
defaults. The contents of these objects are not compared, as with one jitted function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

from gpuflow.base import tree
from gpuflow.base.caches import register_table
from gpuflow.base.recent import Recent
from gpuflow.base.records import record
from gpuflow.core.jaxpr import ClosedJaxpr

_MOST = 64  # signatures of a function
_MISSING = object()


@record
class Trace:
    """A traced signature of a function that used no refs.

    Attributes:
        jaxpr: the program of its consts and its arguments.
        consts: values of the first operands.
        out_tree: the structure of the results.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: tree.TreeDef


@record
class _Cached:
    trace: Any
    read: tuple[Any, ...]


_cache: WeakKeyDictionary[FunctionType, Recent[tuple[Any, ...], _Cached]] = WeakKeyDictionary()
register_table("functions with shared traces", _cache)


def find(function: Callable[..., Any], key: tuple[Any, ...]) -> Any:
    """Return the cached data of a function for a key, if it is still valid, or None."""
    cached = _cache.get(function) if type(function) is FunctionType else None
    found = None
    if cached is not None:
        with suppress(TypeError):
            found = cached.get(key)
    if found is None:
        return None
    read = _read(function)
    same = len(read) == len(found.read) and all(map(_is_held, found.read, read))
    return found.trace if same else None


def store(function: Callable[..., Any], key: tuple[Any, ...], trace: Any) -> None:
    """Share a Trace, or data derived from one.

    Of plain functions only: other callables are objects, which may change. Keys that cannot be
    hashed are not kept.
    """
    if type(function) is not FunctionType:
        return
    cached = _cache.get(function)
    if cached is None:
        cached = _cache[function] = Recent(_MOST)
    with suppress(TypeError):
        cached.put(key, _Cached(trace, tuple(map(_held, _read(function)))))


def forget(function: Callable[..., Any] | None = None) -> None:
    """Forget the traces of a function, or of all."""
    if function is None:
        _cache.clear()
    elif type(function) is FunctionType:
        _cache.pop(function, None)


def _held(value: Any) -> Any:
    """A weak reference to a value if possible: it may hold the function."""
    try:
        return ref(value)
    except TypeError:
        return value


def _is_held(held: Any, value: Any) -> bool:
    # A reference to a deleted object gives None.
    return held is value or (value is not None and type(held) is ref and held() is value)


def _read(function: Any) -> list[Any]:
    """Values of the globals and captured variables that a function reads."""
    found = [function.__defaults__, *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing yet
            found.append(_MISSING)
    space = function.__globals__
    found += [space.get(name, _MISSING) for name in _names(function.__code__)]
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals, and of attributes, in a function and in those that it defines."""
    yield from code.co_names
    for const in code.co_consts:
        if type(const) is CodeType:
            yield from _names(const)
