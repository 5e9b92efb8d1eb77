"""``@composite``: a public function of several ops that runs as one program if called eagerly.

    @composite
    def median(a: Any, axis: Axes = None, ...): ...

Under a trace the function itself runs, and its ops are recorded.
See docs/design/0035-composites.md.

Tests: tests/control/test_composite.py.
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

# Limits: programs of one function, items of a list argument, nesting of lists. Building a program
# of a thousand items takes longer than running it op by op.
_MAX_PROGRAMS, _MAX_ITEMS, _MAX_DEPTH = 1024, 64, 16
_NUMERIC_TYPES = SCALAR_TYPES - {bool}  # a bool is an option, never an operand
# A scalar is an operand if the annotation of its parameter contains one of these names.
_OPERANDS = frozenset(["Any", "ArrayLike", "ArraysLike"])
# Cached instead of a program for calls that cannot be traced.
_UNTRACEABLE = "untraceable"


_all: list[_Programs] = []  # composites are module-level functions: they are never collected


class _NotTraced(Exception):
    """Raised for an argument that is neither an operand nor a hashable constant of a program."""


def composite(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of arrays that eager calls run as one program.

    Args:
        function: it must depend on its arguments alone. A scalar is an operand if its parameter's
            annotation contains ``ArrayLike``, ``ArraysLike`` or ``Any``. A new value then needs no
            new program, unless the function cannot be traced with an operand in this position.

    Returns:
        The decorated function. It runs op by op under a trace, with ``disable_jit``,
        ``debug_nans`` or ``debug_infs``. It also does for arguments of other types than arrays,
        scalars and options, and if it needs the values of arrays.
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
    """The programs of one composite, keyed by the types of operands and the other arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._last_settings: Settings | None = None  # settings under which programs run
        self._known: Recent[Hashable, _Program | str] = Recent(_MAX_PROGRAMS)
        _all.append(self)

    @cached_property
    def _operand_parameters(self) -> frozenset[str | int]:
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
        """Run the program of these arguments; without one, call the function.

        Scalars are operands in the first attempt, and constants in the second.
        """
        settings = config.trace_context()
        if settings is not self._last_settings:
            if settings.disable_jit or settings.debug_nans or settings.debug_infs:
                return self._function(*args, **kwargs)
            self._last_settings = settings
        for numeric in (self._operand_parameters, frozenset()):
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
        """The program of calls with this key, or ``_UNTRACEABLE``."""
        function = self._function
        # Arguments with placeholders for operands: the program must not keep those alive.
        shapes = [_with_placeholders(arg, k in numeric) for k, arg in enumerate(args)]
        named = {name: _with_placeholders(arg, name in numeric) for name, arg in kwargs.items()}

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
        # The settings of the last call, and the Entry for them.
        self._last: tuple[Settings, Entry] | None = None

    def run(self, settings: Settings, operands: list[Any]) -> Any:
        """Run the program; the operands must have the types for which it was traced."""
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
        except AttributeError:  # NumPy arrays, or deleted Arrays
            counted = entry.counted(leaves) if in_use.several else None
            return entry.build(entry.executable(leaves, counted))
        return entry.run(arrays, leaves)


class _Operand:
    """Placeholder of an operand in the arguments of a program."""


_PLACEHOLDER = _Operand()


def _key(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    numeric: Container[str | int],
    operands: list[Any],
) -> Hashable:
    """The key of a call: avals of operands and all other arguments. Appends to ``operands``.

    Raises:
        _NotTraced: if no program takes an argument.
    """
    key: list[Hashable] = [len(args)]  # separates positional strings from keyword names
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
        # The type and repr distinguish 1, 1.0 and True, and 0.0 and -0.0; nan must equal itself.
        return kind, value if kind is int else repr(value)
    if kind is tuple or kind is list or _is_namedtuple(kind):
        if len(value) > _MAX_ITEMS or depth > _MAX_DEPTH:
            raise _NotTraced(kind)
        return kind, *[_key_of(item, is_numeric, operands, depth + 1) for item in value]
    if isinstance(value, np.dtype | type | Enum):
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        operands.append(value)
        return aval_of(value)
    raise _NotTraced(kind)


def _with_placeholders(value: Any, is_numeric: bool) -> Any:
    kind = type(value)
    if kind is Array or kind is np.ndarray or isinstance(value, np.generic):
        return _PLACEHOLDER
    if is_numeric and kind in _NUMERIC_TYPES:
        return _PLACEHOLDER
    if kind is tuple or kind is list or _is_namedtuple(kind):
        return _rebuilt(kind, [_with_placeholders(item, is_numeric) for item in value])
    return value


def _filled(shape: Any, operands: Iterator[Any]) -> Any:
    if shape is _PLACEHOLDER:
        return next(operands)
    kind = type(shape)
    if kind is tuple or kind is list or _is_namedtuple(kind):
        return _rebuilt(kind, [_filled(item, operands) for item in shape])
    return shape


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_make")


def _rebuilt(kind: Any, items: list[Any]) -> Any:
    return kind._make(items) if _is_namedtuple(kind) else kind(items)
