"""Source locations and scopes of equations: ``eqn.source_info``, and of the current operation.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation
from gpuflow.core.trace import made_at, source_location

_F = TypeVar("_F", bound=Callable[..., Any])


@record
class Scope:
    """A named scope of a program."""

    name: str

    def wrap(self, stack: list[str]) -> None:
        """Add the name to those of the scopes inside."""
        stack.append(self.name)


@record
class Transform:
    """A transformation that encloses scopes of a program."""

    name: str

    def wrap(self, stack: list[str]) -> None:
        """Write the scope inside as its argument."""
        if stack:
            stack[-1] = f"{self.name}({stack[-1]})"
        else:
            stack.append(f"{self.name}()")


@record
class NameStack:
    """The named scopes around an operation, outermost first; prints as ``outer/jvp(inner)``."""

    stack: tuple[Scope | Transform, ...] = ()

    def extend(self, name: str) -> NameStack:
        """The stack with one more inner scope."""
        return NameStack((*self.stack, Scope(name)))

    def transform(self, transform_name: str) -> NameStack:
        """The stack with one more inner transformation."""
        return NameStack((*self.stack, Transform(transform_name)))

    def __getitem__(self, index: slice) -> NameStack:
        return NameStack(self.stack[index])

    def __len__(self) -> int:
        return len(self.stack)

    def __add__(self, other: NameStack) -> NameStack:
        return NameStack(self.stack + other.stack)

    def __str__(self) -> str:
        names: list[str] = []
        for element in reversed(self.stack):
            element.wrap(names)
        return "/".join(reversed(names))


@record
class SourceInfo:
    """The origin of an equation.

    Attributes:
        traceback: the line of the user's program, or None.
        name_stack: the named scopes around it.
    """

    traceback: SourceLocation | None
    name_stack: NameStack

    def replace(
        self, *, traceback: SourceLocation | None = None, name_stack: NameStack | None = None
    ) -> SourceInfo:
        """A copy with the fields that are given."""
        stack = self.name_stack if name_stack is None else name_stack
        return SourceInfo(traceback or self.traceback, stack)

    def __str__(self) -> str:
        return str(self.traceback or "")


class DebugInfo(NamedTuple):
    """Facts about a traced function, for messages.

    Attributes:
        traced_for: the transformation, such as ``jit``.
        func_src_info: the name of the function, and its line.
        arg_names: names of the flat arguments, or None.
        result_paths: names of the flat results, or None.
    """

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None
    result_paths: Any = None


class _Scopes(threading.local):
    stack = NameStack()


_scopes = _Scopes()


def new_source_info() -> SourceInfo:
    """No line, and no scopes."""
    return SourceInfo(None, NameStack())


def new_name_stack(name: str = "") -> NameStack:
    """A stack of one scope, or of none."""
    return NameStack((Scope(name),)) if name else NameStack()


def current() -> SourceInfo:
    """The line of the user's program that runs now, and the scopes around it."""
    return SourceInfo(source_location(), _scopes.stack)


def current_name_stack() -> NameStack:
    """The named scopes around the code that runs now."""
    return _scopes.stack


def summarize(source_info: SourceInfo, num_frames: int = 1) -> str:
    """The line as ``file:line (function)``; an empty string if there is none."""
    del num_frames  # an equation has one line
    return str(source_info)


class user_context:
    """``with user_context(eqn.source_info.traceback):`` gives operations the line of an equation.

    Args:
        traceback: the line; None: operations have those of their calls.
        name_stack: the scopes inside the block; by default those around it.
    """

    __slots__ = ("_before", "_location", "_stack")

    def __init__(
        self, traceback: SourceLocation | None, *, name_stack: NameStack | None = None
    ) -> None:
        self._location, self._stack = made_at(traceback), name_stack

    def __enter__(self) -> None:
        self._before = _scopes.stack
        _scopes.stack = self._before if self._stack is None else self._stack
        self._location.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._location.__exit__(*exception)
        _scopes.stack = self._before


class set_name_stack:
    """A block, or the calls of a decorated function, with these scopes around it."""

    __slots__ = ("_before", "_make")

    def __init__(self, name_stack: NameStack) -> None:
        self._make: Callable[[NameStack], NameStack] = lambda _: name_stack

    def __enter__(self) -> NameStack:
        self._before = _scopes.stack
        _scopes.stack = self._make(self._before)
        return _scopes.stack

    def __exit__(self, *exception: object) -> None:
        _scopes.stack = self._before

    def __call__(self, function: _F) -> _F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            again = object.__new__(type(self))
            again._make = self._make
            with again:
                return function(*args, **kwargs)

        return cast(_F, wrapper)


class extend_name_stack(set_name_stack):
    """A block, or the calls of a decorated function, in one scope more."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._make = lambda stack: stack.extend(name)


class transform_name_stack(set_name_stack):
    """A block, or the calls of a decorated function, in one transformation more."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self._make = lambda stack: stack.transform(name)


@contextlib.contextmanager
def reset_name_stack() -> Iterator[None]:
    """A block without scopes around it."""
    with set_name_stack(NameStack()):
        yield
