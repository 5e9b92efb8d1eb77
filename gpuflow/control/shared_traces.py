"""Cache of traces by plain Python function, shared by all jits of the function.

As in JAX, users may therefore write ``jit(f)(x)`` at the call. A trace is reused only while the
objects that the function reads by name are the same: globals, captured variables and defaults. The
contents of these objects are not compared, as with a single jitted function.

Tests: tests/control/test_shared_traces.py.
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

_MAX_TRACES = 64  # signatures of a function
_MISSING = object()


@record
class Trace:
    """A traced signature of a function.

    Attributes:
        jaxpr: the program ``(*consts, *arguments) -> results``.
        consts: captured values, the first operands.
        out_tree: the structure of the results.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    out_tree: tree.TreeDef


@record
class _Cached:
    """A trace, and the objects that the function read by name (weak references if possible)."""

    trace: Any
    read: tuple[Any, ...]


_cache: WeakKeyDictionary[FunctionType, Recent[tuple[Any, ...], _Cached]] = WeakKeyDictionary()
register_table("functions with shared traces", _cache)


def find(function: Callable[..., Any], key: tuple[Any, ...]) -> Any:
    """Return the cached data of a function for a key, if it is still valid, or None."""
    cached = _cache.get(function) if type(function) is FunctionType else None
    entry = None
    if cached is not None:
        with suppress(TypeError):
            entry = cached.get(key)
    if entry is None:
        return None
    read = _values_read(function)
    same = len(read) == len(entry.read) and all(map(_is_held, entry.read, read))
    return entry.trace if same else None


def store(function: Callable[..., Any], key: tuple[Any, ...], trace: Any) -> None:
    """Cache a Trace, or data derived from one, for all jits of the function.

    Only plain functions are cached: other callables are objects with state. Keys that cannot be
    hashed are ignored.
    """
    if type(function) is not FunctionType:
        return
    cached = _cache.get(function)
    if cached is None:
        cached = _cache[function] = Recent(_MAX_TRACES)
    with suppress(TypeError):
        cached.put(key, _Cached(trace, tuple(map(_held, _values_read(function)))))


def forget(function: Callable[..., Any] | None = None) -> None:
    """Forget the traces of one function, or of all functions."""
    if function is None:
        _cache.clear()
    elif type(function) is FunctionType:
        _cache.pop(function, None)


def _held(value: Any) -> Any:
    """A weak reference to a value if possible: the value may refer to the function, the key."""
    try:
        return ref(value)
    except TypeError:
        return value


def _is_held(held: Any, value: Any) -> bool:
    # A weak reference to a deleted object returns None.
    return held is value or (value is not None and type(held) is ref and held() is value)


def _values_read(function: Any) -> list[Any]:
    """The objects that a function reads by name: defaults, captured variables and globals."""
    objects_read = [function.__defaults__, *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            objects_read.append(cell.cell_contents)
        except ValueError:  # the variable is not assigned yet
            objects_read.append(_MISSING)
    space = function.__globals__
    objects_read += [space.get(name, _MISSING) for name in _names(function.__code__)]
    return objects_read


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and in the functions that it defines."""
    yield from code.co_names
    for const in code.co_consts:
        if type(const) is CodeType:
            yield from _names(const)
