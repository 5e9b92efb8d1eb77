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
from gpuflow.base.config import config
from gpuflow.base.recent import Recent
from gpuflow.control.jit_function import JitFunction
from gpuflow.control.jit_options import JitOptions
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import eval_trace, thread_state
from gpuflow.runtime.array import Array
from gpuflow.runtime.scalars import NUMBERS, array_of

P = ParamSpec("P")
T = TypeVar("T")

# Programs of one function; items of a list, as a program of a thousand pieces takes longer to build
# than to run op by op.
_MOST_PROGRAMS, _MOST_ITEMS = 1024, 64
_NUMBERS = NUMBERS - {bool}  # which only choose
# One of these is in the annotation of parameters that take arrays: a number there is an operand.
_OPERANDS = frozenset(["Any", "ArrayLike", "ArraysLike"])
# Stands for a program where there can be none.
_UNTRACEABLE = "untraceable"


_all: list[_Programs] = []  # functions of modules, which stay


class _UnfitError(Exception):
    """An argument is neither an operand, nor can be a part of a program."""


def composite(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of arrays run as one program where it is called with values.

    Args:
        function: must depend on its arguments alone. Numbers for parameters annotated ``ArrayLike``
            or ``ArraysLike``, or ``Any``, perhaps among others, are operands, so that a new number
            needs no new program, unless the function cannot be traced with them.

    Returns:
        The function. It runs op by op where it is traced itself, where ops are checked one by one,
        for arguments that are no arrays, numbers or options, and if it needs the values of arrays.
    """
    run = _Programs(function).run

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if thread_state.trace is eval_trace:
            return run(args, kwargs)
        return function(*args, **kwargs)

    return call


def forget_composites() -> None:
    """Forget the programs of all of them."""
    for programs in _all:
        programs.forget()


class _Programs:
    """The programs of one function, by what its calls have besides operands."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._known: Recent[Hashable, JitFunction[..., Any] | str] = Recent(_MOST_PROGRAMS)
        _all.append(self)

    @cached_property
    def _numeric(self) -> frozenset[str | int]:
        """The parameters whose numbers are operands, by name and by position."""
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
        if settings.disable_jit or settings.debug_nans or settings.debug_infs:
            return self._function(*args, **kwargs)
        for numeric in (self._numeric, frozenset()):
            operands: list[Any] = []
            try:
                key = _key(args, kwargs, numeric, operands)
                program = self._known.get(key)
            except (_UnfitError, TypeError):  # a TypeError: what has no hash
                break
            if program is None:
                program = self._traced(args, kwargs, numeric, operands)
                if not config.switches().no_tracing:
                    self._known.put(key, program)
            if isinstance(program, JitFunction):
                return program(*operands)
        return self._function(*args, **kwargs)

    def _traced(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], numeric: Container[str | int],
        operands: list[Any],
    ) -> JitFunction[..., Any] | str:  # fmt: skip
        """The program of such calls, or that there is none."""
        function = self._function
        # Without what the first call has for operands.
        shapes = [_without(arg, k in numeric) for k, arg in enumerate(args)]
        named = {name: _without(arg, name in numeric) for name, arg in kwargs.items()}

        def program(*operands: Any) -> Any:
            rest = iter(operands)
            filled = [_filled(shape, rest) for shape in shapes]
            return function(*filled, **{name: _filled(s, rest) for name, s in named.items()})

        program.__name__ = function.__name__
        jitted = JitFunction(program, JitOptions())
        try:
            jitted.trace(*operands)
        except Exception:  # the function itself says what is wrong, if something is
            return _UNTRACEABLE
        return jitted


class _Operand:
    """Where an operand goes in the arguments of a program."""


_HERE = _Operand()


def _key(
    args: tuple[Any, ...], kwargs: dict[str, Any], numeric: Container[str | int],
    operands: list[Any],
) -> Hashable:  # fmt: skip
    """What a call has besides its operands, which are put on a list.

    Raises:
        _UnfitError: an argument that no program takes.
    """
    key = [_part(arg, k in numeric, operands) for k, arg in enumerate(args)]
    for name, arg in kwargs.items():
        key += [name, _part(arg, name in numeric, operands)]
    return len(args), *key  # a string may be the name of a parameter


def _part(value: Any, is_numeric: bool, operands: list[Any]) -> Hashable:
    kind = type(value)
    if kind is Array:
        operands.append(value)
        return value.aval
    if kind in _NUMBERS:
        if is_numeric:
            return _part(array_of(value), is_numeric, operands)
        # 1, 1.0 and True are equal, as are 0.0 and -0.0; nan is not even equal to itself.
        return kind, value if kind is int else repr(value)
    if (kind is tuple or kind is list) and len(value) <= _MOST_ITEMS:
        return kind, *[_part(item, is_numeric, operands) for item in value]
    if kind is bool:
        return kind, value
    if value is None or kind is str or isinstance(value, np.dtype | type | Enum):
        return value
    if kind is np.ndarray or isinstance(value, np.generic):
        operands.append(value)
        return aval_of(value)
    raise _UnfitError(kind)


def _without(value: Any, is_numeric: bool) -> Any:
    kind = type(value)
    if kind is Array or kind is np.ndarray or isinstance(value, np.generic):
        return _HERE
    if is_numeric and kind in _NUMBERS:
        return _HERE
    if kind is tuple or kind is list:
        return kind([_without(item, is_numeric) for item in value])
    return value


def _filled(shape: Any, operands: Iterator[Any]) -> Any:
    if shape is _HERE:
        return next(operands)
    if type(shape) in (tuple, list):
        return type(shape)([_filled(item, operands) for item in shape])
    return shape
