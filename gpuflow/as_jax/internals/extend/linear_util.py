"""``jax.extend.linear_util``: a function with what is known about its call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
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


def transformation(generator: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """A transformation of WrappedFuns, written as a generator.

    Args:
        generator: called with what it was made with, then the arguments; it yields
            ``(args, kwargs)`` for the function, is sent its result, and yields its own.
    """

    def transform(fun: WrappedFun, *made_with: Any) -> WrappedFun:
        def call(*args: Any, **kwargs: Any) -> Any:
            return _run(generator(*made_with, *args, **kwargs), fun)

        return WrappedFun(call, fun.debug_info)

    return transform


def transformation_with_aux(
    generator: Callable[..., Any],
) -> Callable[..., tuple[WrappedFun, Callable[[], Any]]]:
    """The same, whose generator yields its result and something more.

    The transformation returns a function that gives the latter after a call.
    """

    def transform(fun: WrappedFun, *made_with: Any) -> tuple[WrappedFun, Callable[[], Any]]:
        more: list[Any] = []

        def call(*args: Any, **kwargs: Any) -> Any:
            out, aux = _run(generator(*made_with, *args, **kwargs), fun)
            more.append(aux)
            return out

        return WrappedFun(call, fun.debug_info), lambda: more[-1]

    return transform


def _run(steps: Generator[Any, Any, None], fun: WrappedFun) -> Any:
    args, kwargs = next(steps)
    result = steps.send(fun.call_wrapped(*args, **kwargs))
    steps.close()
    return result


def transformation2(function: Callable[..., Any]) -> Callable[..., WrappedFun]:
    """A transformation of WrappedFuns, written as a function ``(f, *made_with, *args) -> out``."""

    def transform(fun: WrappedFun, *made_with: Any) -> WrappedFun:
        call = functools.partial(function, fun.call_wrapped, *made_with)
        return WrappedFun(call, fun.debug_info)

    return transform
