"""``jax.extend.linear_util``: a function with what is known about its call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


class WrappedFun:
    """A function that ``jax.api_util`` and ``jax.interpreters.partial_eval`` take.

    Args:
        f: the function.
        debug_info: what messages would say of it.
    """

    def __init__(self, f: Callable[..., Any], debug_info: Any = None) -> None:
        self.f, self.debug_info = f, debug_info

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.f(*args, **kwargs)


def wrap_init(
    f: Callable[..., Any], params: Mapping[str, Any] | None = None, *, debug_info: Any = None
) -> WrappedFun:
    """``f``, with keywords ``params``, as a WrappedFun."""
    return WrappedFun(functools.partial(f, **params) if params else f, debug_info)
