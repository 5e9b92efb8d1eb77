"""Names for regions of a program: named_scope and named_call, which the profiler shows.

Tests: tests/test_profiler.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gpuflow.base.errors import check
from gpuflow.base.recording import span
from gpuflow.core.argument_kinds import explained
from gpuflow.core.source_info import extend_name_stack

_P = ParamSpec("_P")
_T = TypeVar("_T")


class named_scope(contextlib.ContextDecorator):
    """Name the operations that are traced or run in a block or decorated function.

    The profiler shows the block on the row of the host. It does not change the behavior of compiled
    programs.

    Args:
        name: name of the scope.

    Raises:
        TypeError: if the name is not a string.
    """

    def __init__(self, name: str) -> None:
        check(
            isinstance(name, str),
            lambda: (
                f"[named_scope] the name must be a string; got {name!r}. Fix: named_scope('layer')."
            ),
            TypeError,
        )
        self.name = name
        self._open: list[tuple[span, extend_name_stack]] = []

    def __enter__(self) -> named_scope:
        opened = span("host", self.name), extend_name_stack(self.name)
        for block in opened:
            block.__enter__()
        self._open.append(opened)
        return self

    def __exit__(self, *exception: object) -> None:
        for block in self._open.pop():
            block.__exit__(*exception)


@explained
def named_call(fun: Callable[_P, _T], *, name: str | None = None) -> Callable[_P, _T]:
    """Return ``fun`` inside a ``named_scope`` with its name, or ``name``.

    Args:
        fun: a function.
        name: name of the scope; the name of ``fun`` by default.

    Returns:
        A function of the same arguments with the same results.

    Example:
        >>> gf.named_call(lambda x: x + 1, name="one_more")(1)
        2
    """
    label = name or getattr(fun, "__name__", type(fun).__name__)

    @functools.wraps(fun)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with named_scope(label):
            return fun(*args, **kwargs)

    return call
