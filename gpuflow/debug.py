"""Debugging of traced functions: printing, breakpoints and callbacks.

Tests: tests/test_debug.py.
"""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.base.lazy import LazyModule
from gpuflow.base.names import public_names, publish
from gpuflow.ops.effects.callbacks import debug_callback
from gpuflow.parallel.pictures import inspect_array_sharding as inspect_array_sharding
from gpuflow.parallel.pictures import visualize_array_sharding as visualize_array_sharding
from gpuflow.parallel.pictures import visualize_sharding as visualize_sharding

if TYPE_CHECKING:
    import logging
    import pdb
else:
    logging, pdb = LazyModule("logging"), LazyModule("pdb")


def callback(
    callback: Callable[..., Any] | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a Python function on the host at this point of the program.

    It also runs under jit, and once for each element under vmap. Derivatives ignore it.

    Args:
        callback: a function of ``args`` and ``kwargs``, with NumPy arrays as leaves; its result is
            ignored.
        args, kwargs: pytrees of arrays.
        ordered: whether calls happen in program order.
        partitioned: no effect: the shards of an array are in one memory, and the function gets the
            whole array.

    Returns:
        None; without ``callback``, a function of a callback and its arguments.

    Raises:
        TypeError: if ``callback`` is not a function, or arguments are given without a callback.
    """
    del partitioned
    if callback is None:
        _check_no_values("debug.callback", args, kwargs)
        return functools.partial(_call, ordered)
    return _call(ordered, callback, *args, **kwargs)


def _check_no_values(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(
        not args and not kwargs,
        lambda: (
            f"[{op}] values must be passed to the second call; got {[*args, *kwargs]} together "
            f"with options. Fix: {op}(ordered=True)(..., x=x)."
        ),
    )


def _call(ordered: bool, callback: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    if not callable(callback):
        raise TypeError(
            f"[debug.callback] the first argument must be a function; got {callback!r}. "
            "Fix: debug.callback(f, x)."
        )
    leaves, treedef = tree.flatten((args, kwargs))

    def flat(*values: Any) -> None:
        call_args, call_kwargs = tree.unflatten(treedef, values)
        callback(*call_args, **call_kwargs)

    debug_callback(flat, *leaves, ordered=ordered)


def breakpoint(
    *,
    backend: str | None = None,
    filter_frames: bool = True,
    num_frames: int | None = None,
    ordered: bool = False,
    token: Any = None,
) -> None:
    """Open Python's debugger at this point of the program, also under jit.

    It shows the frame of the call. Under jit, arrays are tracers in that frame; ``debug.print`` and
    ``debug.callback`` show values.

    Args:
        backend: ``"cli"`` or None.
        filter_frames, num_frames: no effect: Python's debugger shows all frames.
        ordered: whether the debugger opens in program order with other ordered callbacks.
        token: must be None.

    Raises:
        NotImplementedError: if the backend is not supported, or a token is given.
    """
    del filter_frames, num_frames
    check(
        backend in (None, "cli") and token is None,
        lambda: (
            "[debug.breakpoint] the debugger must be that of the terminal, and token None; got "
            f"backend={backend!r}, token={token!r}. Fix: leave them out, and use ordered=True."
        ),
        NotImplementedError,
    )
    frame = sys._getframe(1)

    def stop() -> None:
        pdb.Pdb(nosigint=True).interaction(frame, None)

    callback(stop, ordered=ordered)


def print(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Any:
    """Print values when the program runs, also under jit, grad and vmap.

    Args:
        fmt: a format string such as ``"x = {}, loss = {loss:.3f}"``.
        args, kwargs: arrays, or pytrees of them, for the fields of ``fmt``.
        ordered: whether lines come in program order.
        partitioned: see ``callback``.
        skip_format_check: whether to skip the check of the format string during tracing.

    Returns:
        None; without ``fmt``, a function of a format string and its values.

    Raises:
        TypeError: if values are given without a format string.
        IndexError, KeyError: if a field has no value.
        ValueError: if a value has no field.
    """
    del partitioned
    write = functools.partial(_show, _write, ordered, not skip_format_check)
    if fmt is None:
        _check_no_values("debug.print", args, kwargs)
        return write
    return write(fmt, *args, **kwargs)


def log(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Any:
    """``print`` to the logger ``gpuflow.debug`` of Python's ``logging``, at level INFO."""
    del partitioned
    logger = logging.getLogger("gpuflow.debug")
    write = functools.partial(_show, logger.info, ordered, not skip_format_check)
    if fmt is None:
        _check_no_values("debug.log", args, kwargs)
        return write
    return write(fmt, *args, **kwargs)


def _show(
    write: Callable[[str], None],
    ordered: bool,
    checked: bool,
    fmt: str,
    /,
    *args: Any,
    **kwargs: Any,
) -> None:
    if checked:
        _check_fields(fmt, args, kwargs)

    def show(*values: Any, **named: Any) -> None:
        plain = [_plain(value) for value in values]
        write(fmt.format(*plain, **{k: _plain(v) for k, v in named.items()}))

    _call(ordered, show, *args, **kwargs)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """A 0-d array as a scalar, so that format specifications apply."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


class _NoSuchField(KeyError):
    """A format string names a value that is not given."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its text


def _check_fields(fmt: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Reject a wrong format string during tracing, not when the program runs."""
    used, automatic = set(), 0
    for _, name, _, _ in string.Formatter().parse(fmt):
        if name is None:
            continue
        stem = name.split(".")[0].split("[")[0]
        if stem == "":
            stem, automatic = str(automatic), automatic + 1
        used.add(stem)
    value_names = {str(k) for k in range(len(args))} | set(kwargs)
    if used != value_names:
        missing = sorted(used - value_names)
        kind = ValueError if not missing else IndexError if missing[0].isdigit() else _NoSuchField
        raise kind(
            f"[debug.print] the fields of the format string must match the values; got fields "
            f"{sorted(used)} and values {sorted(value_names)} for {fmt!r}. "
            "Fix: write one {} for each value, as in debug.print('x = {}', x)."
        )


_SHOWN = ["inspect_array_sharding", "visualize_array_sharding", "visualize_sharding"]

publish(globals(), "debug", [*public_names(globals(), __name__), *_SHOWN])
