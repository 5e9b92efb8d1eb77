"""The options of ``jit``, checked against the function's signature.

Tests: tests/control/test_jit_options.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from gpuflow.base.arguments import as_argnums
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.runtime.device import Device, devices


def _indices(what: str, value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    argnums = as_argnums("jit", what, value)
    return (argnums,) if isinstance(argnums, int) else argnums


def _names(value: str | Iterable[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        check(
            isinstance(name, str),
            lambda name=name: (
                f"[jit] argnames must be strings; got {name!r}. Fix: argnums for positions."
            ),
        )
    return names


@record
class JitOptions:
    """The options of ``jit``; argnums and argnames name the same parameters.

    Attributes:
        static_argnums, static_argnames: static arguments.
        donate_argnums, donate_argnames: donated arguments.
        inline: whether calls in a trace copy the equations instead of binding ``jit_p``.
        device: the device to run on; None is the device of the operands.
        in_shardings: tree prefix of shardings; None means the shardings of the operands.
        out_shardings: tree prefix of shardings; None means that they are propagated.
    """

    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    inline: bool = False
    device: Device | None = None
    in_shardings: Any = None
    out_shardings: Any = None


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _complete(function: Callable[..., Any], options: JitOptions) -> JitOptions:
    """Add the argnames of given argnums and vice versa, if the signature is available.

    Raises:
        ValueError: if an index or name is not a parameter, or is both static and donated.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return options
    kinds = {p.kind for p in parameters}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, *VARIADIC)
    positional = [p.name for p in parameters if p.kind not in by_keyword]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, *VARIADIC)
    named = [p.name for p in parameters if p.kind not in by_position]
    count = len(positional)
    has_more = inspect.Parameter.VAR_POSITIONAL in kinds
    takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
    for k in (*options.static_argnums, *options.donate_argnums):
        if not has_more and not -count <= k < count:
            raise ValueError(
                f"[jit] argnums must name a parameter of {name_of(function)}; got {k} for "
                f"{count} positional parameters. Fix: use numbers below {count}."
            )
    for name in (*options.static_argnames, *options.donate_argnames):
        if not takes_any_name and name not in named:
            raise ValueError(
                f"[jit] argnames must name a parameter of {name_of(function)}; got {name!r} for "
                f"{named}. Fix: use one of these."
            )

    def both(argnums: tuple[int, ...], names: tuple[str, ...]) -> tuple[Any, Any]:
        # With *args a negative index counts from the end of each call's arguments.
        argnums = tuple(k + count if k < 0 and not has_more else k for k in argnums)
        more = tuple(positional.index(name) for name in names if name in positional)
        other = tuple(positional[k] for k in argnums if 0 <= k < count and positional[k] in named)
        return tuple(sorted({*argnums, *more})), tuple(sorted({*names, *other}))

    static = both(options.static_argnums, options.static_argnames)
    donated = both(options.donate_argnums, options.donate_argnames)
    shared = sorted({*static[0]} & {*donated[0]}) or sorted({*static[1]} & {*donated[1]})
    if shared:
        raise ValueError(
            f"[jit] an argument of {name_of(function)} must not be both static and donated; got "
            f"{shared} as both. Fix: donate arrays only."
        )
    return replace(
        options,
        static_argnums=static[0],
        static_argnames=static[1],
        donate_argnums=donated[0],
        donate_argnames=donated[1],
    )


def check_callable(fun: Any, what: str) -> None:
    """Raise TypeError unless ``fun`` is callable and not a generator function."""
    if not callable(fun):
        raise TypeError(
            f"[{what}] the first argument must be a function; got {fun!r}. Fix: {what}(f)(x)."
        )
    if inspect.isgeneratorfunction(fun):
        raise TypeError(
            f"[{what}] the function must return its results; got the generator function {fun!r}. "
            "Fix: return a list or a tuple."
        )


def name_of(function: Any) -> str:
    """The name of a function; for a partial one, the name of the inner function."""
    while isinstance(function, partial) and not hasattr(function, "__name__"):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def make_options(
    function: Callable[..., Any],
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    inline: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
) -> JitOptions:
    """The options of ``gpuflow.jit``, completed from the signature.

    Raises:
        TypeError: if ``device`` is not a Device.
        ValueError: if an index or name is not a parameter, or both device and backend are given.
    """
    if device is not None and backend is not None:
        raise ValueError(
            f"[jit] device or backend may be given; got both, {device} and {backend!r}. "
            "Fix: give the device."
        )
    if device is not None and not isinstance(device, Device):
        raise TypeError(
            f"[jit] device must be a Device or None; got {device!r}. Fix: gpuflow.devices()[0]."
        )
    options = JitOptions(
        _indices("static_argnums", static_argnums),
        _names(static_argnames),
        _indices("donate_argnums", donate_argnums),
        _names(donate_argnames),
        bool(inline),
        devices(backend)[0] if backend is not None else device,
        tuple(in_shardings) if isinstance(in_shardings, list) else in_shardings,
        out_shardings,
    )
    return _complete(function, options)
