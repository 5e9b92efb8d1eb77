"""Public functions made of several ops: called eagerly, such a function runs as one program.

    @composite
    def median(a: Any, axis: Axes = None, ...): ...

Under a trace it is the function itself, whose ops join the program that is traced. See
docs/design/0035-composites.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Hashable, Iterator
from enum import Enum
from typing import Any, ParamSpec, TypeVar

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.config import Settings, config
from gpuflow.base.recent import Recent
from gpuflow.control.entry import Entry
from gpuflow.control.jit_function import JitFunction
from gpuflow.control.jit_options import JitOptions
from gpuflow.core.argument_kinds import UNSUITABLE, explain
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import eval_trace, thread_state
from gpuflow.runtime.array import Array
from gpuflow.runtime.device import in_use
from gpuflow.runtime.scalars import SCALAR_TYPES, array_of

P = ParamSpec("P")
T = TypeVar("T")

# Programs of one function; items of a list, as a program of a thousand items takes longer to build
# than to run op by op. Deeper lists are not traced either.
_MOST_PROGRAMS, _MOST_ITEMS, _MOST_DEPTH = 1024, 64, 16
_NUMERIC_TYPES = SCALAR_TYPES - {bool}  # which only choose
# One of these is in the annotation of parameters that take arrays: a scalar there is an operand.
_OPERANDS = frozenset(["Any", "ArrayLike", "ArraysLike"])
# Cached instead of a program for calls that cannot be traced.
_UNTRACEABLE = "untraceable"


_all: list[_Programs] = []  # functions of modules, which stay


class _NotTraced(Exception):
    """Raised for an argument that is neither an operand nor a hashable constant of a program."""


def composite(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of arrays run as one program where it is called with values.

    Args:
        function: must depend on its arguments alone. Numbers for parameters annotated ``ArrayLike``
            or ``ArraysLike``, or ``Any``, perhaps among others, are operands, so that a new value
            needs no new program, unless the function cannot be traced with them.

    Returns:
        The function. It runs op by op where it is traced itself, where ops are checked one by one,
        for arguments that are not arrays, numbers or options, and if it needs the values of arrays.
    """
    run = _Programs(function).run

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if thread_state.trace is eval_trace:
                return run(args, kwargs)
            return function(*args, **kwargs)
        except UNSUITABLE as error:
            explain(function, args, kwargs, error)
            raise

    return call


def forget_composites() -> None:
    """Forget the programs of all composites."""
    for programs in _all:
        programs.forget()


class _Programs:
    """The programs of one function, by the non-operand arguments of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._plain: Settings | None = None  # settings under which programs run
        self._known: Recent[Hashable, _Program | str] = Recent(_MOST_PROGRAMS)
        _all.append(self)

    @cached_property
    def _numeric(self) -> frozenset[str | int]:
        """The parameters whose scalars are operands, by name and by position."""
        code = self._function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        kinds = self._function.__annotations__
        numeric = [name for name in names if _OPERANDS & {*kinds.get(name, "").split(" | ")}]
        return frozenset([*numeric, *map(names.index, numeric)])

    def forget(self) -> None:
        """Forget all programs."""
        self._known.clear()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""
        settings = config.trace_context()
        if settings is not self._plain:
            if settings.disable_jit or settings.debug_nans or settings.debug_infs:
                return self._function(*args, **kwargs)
            self._plain = settings
        for numeric in (self._numeric, frozenset()):
            operands: list[Any] = []
            try:
                key = _key(args, kwargs, numeric, operands)
                program = self._known.get(key)
            except (_NotTraced, TypeError, OverflowError):  # no hash, or an int without a dtype
                break
            if program is None:
                program = self._traced(args, kwargs, numeric, operands)
                if not config.switches().no_tracing:
                    self._known.put(key, program)
            if type(program) is _Program:
                return program.run(settings, operands)
        return self._function(*args, **kwargs)

    def _traced(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numeric: Container[str | int],
        operands: list[Any],
    ) -> _Program | str:
        """The program of such calls, or ``_UNTRACEABLE``."""
        function = self._function
        # Without what the first call has for operands.
        shapes = [_without(arg, k in numeric) for k, arg in enumerate(args)]
        named = {name: _without(arg, name in numeric) for name, arg in kwargs.items()}

        def program(*operands: Any) -> Any:
            remaining = iter(operands)
            filled = [_filled(shape, remaining) for shape in shapes]
            return function(*filled, **{name: _filled(s, remaining) for name, s in named.items()})

        program.__name__ = function.__name__
        jitted = JitFunction(program, JitOptions())
        try:
            jitted.trace(*operands)
        except Exception:  # the function itself raises the error when it is called
            return _UNTRACEABLE
        return _Program(jitted)


class _Program:
    """A program for operands of certain types."""

    def __init__(self, jitted: JitFunction[..., Any]) -> None:
        self._jitted = jitted
        # The settings of the last call, and its entry.
        self._last: tuple[Settings, Entry] | None = None

    def run(self, settings: Settings, operands: list[Any]) -> Any:
        """Run it; the types of operands are known already."""
        last = self._last
        if last is None or last[0] is not settings:
            out = self._jitted(*operands)
            entry = self._jitted.short_entry(operands)
            self._last = None if entry is None else (settings, entry)
            return out
        entry = last[1]
        leaves = [*entry.consts, *operands] if entry.consts else operands
        try:
            arrays = [leaf._data for leaf in leaves]
        except AttributeError:  # NumPy's arrays, or deleted ones
            counted = entry.counted(leaves) if in_use.several else None
            return entry.build(entry.executable(leaves, counted))
        return entry.run(arrays, leaves)


class _Operand:
    """Placeholder of an operand in the arguments of a program."""


_HERE = _Operand()


def _key(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numeric: Container[str | int],
    operands: list[Any],
) -> Hashable:
    """The non-operand arguments of a call; operands are appended to a list.

    Raises:
        _UnfitError: an argument that no program takes.
    """
    key: list[Hashable] = [len(args)]  # a string may be the name of a parameter
    for k, arg in enumerate(args):
        if type(arg) is Array:  # as in _key_of
            operands.append(arg)
            key.append(arg.aval)
        else:
            key.append(_key_of(arg, k in numeric, operands))
    for name, arg in kwargs.items():
        key += [name, _key_of(arg, name in numeric, operands)]
    return tuple(key)


def _key_of(value: Any, is_numeric: bool, operands: list[Any], depth: int = 0) -> Hashable:
    kind = type(value)
    if kind is Array:
        operands.append(value)
        return value.aval
    if kind is bool:
        return kind, value
    if value is None or kind is str:
        return value
    if kind in _NUMERIC_TYPES:
        if is_numeric:
            array = array_of(value)
            operands.append(array)
            return array.aval
        # 1, 1.0 and True are equal, as are 0.0 and -0.0; nan is not even equal to itself.
        return kind, value if kind is int else repr(value)
    if kind is tuple or kind is list or _is_named(kind):
        if len(value) > _MOST_ITEMS or depth > _MOST_DEPTH:
            raise _NotTraced(kind)
        return kind, *[_key_of(item, is_numeric, operands, depth + 1) for item in value]
    if isinstance(value, np.dtype | type | Enum):
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        operands.append(value)
        return aval_of(value)
    raise _NotTraced(kind)


def _without(value: Any, is_numeric: bool) -> Any:
    kind = type(value)
    if kind is Array or kind is np.ndarray or isinstance(value, np.generic):
        return _HERE
    if is_numeric and kind in _NUMERIC_TYPES:
        return _HERE
    if kind is tuple or kind is list or _is_named(kind):
        return _rebuilt(kind, [_without(item, is_numeric) for item in value])
    return value


def _filled(shape: Any, operands: Iterator[Any]) -> Any:
    if shape is _HERE:
        return next(operands)
    kind = type(shape)
    if kind is tuple or kind is list or _is_named(kind):
        return _rebuilt(kind, [_filled(item, operands) for item in shape])
    return shape


def _is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_make")


def _rebuilt(kind: Any, items: list[Any]) -> Any:
    return kind._make(items) if _is_named(kind) else kind(items)
