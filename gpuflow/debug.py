"""Looking into running programs: printing and calling Python from traced functions."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuflow.base import tree
from gpuflow.base.lazy import LazyModule
from gpuflow.ops.callbacks import debug_callback
from gpuflow.parallel.pictures import inspect_array_sharding as inspect_array_sharding
from gpuflow.parallel.pictures import visualize_array_sharding as visualize_array_sharding
from gpuflow.parallel.pictures import visualize_sharding as visualize_sharding

if TYPE_CHECKING:
    import pdb
else:
    pdb = LazyModule("pdb")


def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any
) -> None:
    """Call a Python function on the host whenever the program gets here.

    It also happens under jit, and once for each element under vmap. Derivatives ignore it.

    Args:
        callback: gets ``args`` and ``kwargs`` with NumPy arrays as leaves; its result is dropped.
        args, kwargs: trees of arrays.
        ordered: whether calls happen in program order.

    Raises:
        TypeError: ``callback`` is not a function.
    """
    if not callable(callback):
        raise TypeError(
            f"[debug.callback] the first argument must be a function; got {callback!r}. "
            "Fix: debug.callback(f, x)."
        )
    leaves, treedef = tree.flatten((args, kwargs))

    def flat(*values: Any) -> None:
        own_args, own_kwargs = tree.unflatten(treedef, values)
        callback(*own_args, **own_kwargs)

    debug_callback(flat, *leaves, ordered=ordered)


def breakpoint(*, ordered: bool = False) -> None:
    """Open Python's debugger whenever the program gets here, also under jit.

    It shows the frame of the call. Under jit, arrays are tracers there; ``debug.print`` and
    ``debug.callback`` show values.

    Args:
        ordered: whether it opens in program order with other ordered callbacks.
    """
    frame = sys._getframe(1)

    def stop() -> None:
        pdb.Pdb(nosigint=True).interaction(frame, None)

    callback(stop, ordered=ordered)


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print values when the program runs, also under jit, grad and vmap.

    Args:
        fmt: a format string such as ``"x = {}, loss = {loss:.3f}"``.
        args, kwargs: arrays or trees of them for its fields.
        ordered: whether lines come in program order.

    Raises:
        ValueError: fields and values do not fit.
    """
    _check_fields(fmt, args, kwargs)

    def show(*values: Any, **named: Any) -> None:
        plain = [_plain(value) for value in values]
        sys.stdout.write(fmt.format(*plain, **{k: _plain(v) for k, v in named.items()}) + "\n")
        sys.stdout.flush()

    callback(show, *args, ordered=ordered, **kwargs)


def _plain(value: Any) -> Any:
    """A 0-d array as a number, so that format specifications apply."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _check_fields(fmt: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Find a wrong format string where it is written, not when the program runs."""
    used, automatic = set(), 0
    for _, name, _, _ in string.Formatter().parse(fmt):
        if name is None:
            continue
        stem = name.split(".")[0].split("[")[0]
        if stem == "":
            stem, automatic = str(automatic), automatic + 1
        used.add(stem)
    given = {str(k) for k in range(len(args))} | set(kwargs)
    if used != given:
        raise ValueError(
            f"[debug.print] the fields of the format string must match the values; got fields "
            f"{sorted(used)} and values {sorted(given)} for {fmt!r}. "
            "Fix: write one {} for each value, as in debug.print('x = {}', x)."
        )
