"""What jit tells of its work: ``log_compiles``, ``explain_cache_misses``, and of many retraces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpuflow.base import tree, tree_keys
from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.base.util import warn
from gpuflow.control.jit_options import name_of
from gpuflow.control.signatures import Signature
from gpuflow.core.aval import ShapedArray

if TYPE_CHECKING:
    import logging
else:
    logging = LazyModule("logging")

_MOST_RETRACES = 3  # kinds of calls after the first one, of which the last is told


def _warn(text: str, *arguments: Any) -> None:
    """Users turn it up, down or elsewhere with ``logging.getLogger("gpuflow")``."""
    logging.getLogger("gpuflow").warning(text, *arguments)


@contextmanager
def told_time(work: str, name: str, avals: Sequence[ShapedArray]) -> Iterator[None]:
    """Log how long the block took: tracing or compiling a function for arguments of these types."""
    start = perf_counter()
    yield
    took = (perf_counter() - start) * 1e3
    types = ", ".join(map(str, avals))
    _warn("%s %s for (%s) in %.1f ms", work, name, types, took)


def check_may_trace(name: str) -> None:
    """Refuse to trace where ``no_tracing`` is set.

    Raises:
        RuntimeError: it is.
    """
    if config.switches().no_tracing:
        raise RuntimeError(
            f"[jit] {name} must have been traced for these arguments, as no_tracing is set; got "
            "new types or static values. Fix: call it once before, or leave no_tracing."
        )


def explain_miss(name: str, new: Signature, known: Sequence[Signature]) -> None:
    """Log why a call found no program: what differs from the signature closest to its own.

    Args:
        name: of the function.
        new: the signature of the call.
        known: those of the programs that exist.
    """
    if not known:
        _warn("no program for %s: it was never called, or is a new function", name)
        return
    closest = max(known, key=lambda other: _likeness(new, other))
    parts = []
    if new.treedef != closest.treedef:
        trees = tree.text(new.treedef), tree.text(closest.treedef)
        parts.append(f"another tree of arguments, {trees[0]} and before {trees[1]}")
    elif new.avals != closest.avals:
        changed = [
            f"{now} and before {before}"
            for now, before in zip(new.avals, closest.avals, strict=True)
            if now != before
        ]
        parts.append(f"other types, {'; '.join(changed)}")
    if new.statics != closest.statics:
        before = _values(closest.statics)
        parts.append(f"other static arguments, {_values(new.statics)} and before {before}")
    if new.settings is not closest.settings:
        parts.append("other settings (gpuflow.config)")
    _warn("no program for %s: %s", name, "; ".join(parts))


def _likeness(one: Signature, other: Signature) -> int:
    """How many parts of two signatures agree, types of arguments one by one."""
    types = sum(a == b for a, b in zip(one.avals, other.avals, strict=False))
    return types + sum([
        one.treedef == other.treedef,
        one.statics == other.statics,
        one.settings == other.settings,
    ])


class Retraces:
    """Counts the kinds of calls that a function is traced for, and warns once when there are many.

    Sizes make no kind of their own: templates take them. Nor do settings.
    """

    def __init__(self) -> None:
        self._kinds: dict[Any, Signature] | None = {}

    def note(
        self, function: Callable[..., Any], new: Signature, names: Callable[[], list[str]]
    ) -> None:
        """The function is traced for a signature.

        Args:
            function: the function.
            new: the signature.
            names: gives the names of the leaves of its arguments.

        Warns:
            UserWarning: it is the third kind after the first one.
        """
        if self._kinds is None:
            return
        kind = (new.treedef, _types(new), new.statics)
        if kind not in self._kinds and len(self._kinds) == _MOST_RETRACES:
            known, self._kinds = list(self._kinds.values()), None
            closest = max(reversed(known), key=lambda other: _likeness_of_kinds(new, other))
            changed = _changed(function, new, closest, names())
            warn(
                f"[jit] {name_of(function)} should be traced for few kinds of arguments; got the "
                f"third retrace: {changed}. Each costs a trace and new programs. Fix: pass what "
                "changes as arrays of one dtype and rank, in one tree; "
                "gf.explain_cache_misses() tells of each trace."
            )
            return
        self._kinds[kind] = new

    def forget(self) -> None:
        """Hold no signature any more, and count anew if nothing was told yet."""
        if self._kinds is not None:
            self._kinds = {}


def _likeness_of_kinds(one: Signature, other: Signature) -> int:
    alike = sum(a == b for a, b in zip(_types(one), _types(other), strict=False))
    return alike + (one.treedef == other.treedef) + (one.statics == other.statics)


def _types(signature: Signature) -> tuple[tuple[Any, ...], ...]:
    """The types of the arguments without their sizes."""
    return tuple([
        (type(aval), len(aval.shape), aval.dtype, aval.weak_type) for aval in signature.avals
    ])


def _changed(
    function: Callable[..., Any], new: Signature, before: Signature, names: list[str]
) -> str:
    """The first argument that differs in more than its sizes, and how."""
    if new.treedef != before.treedef:
        trees = [tree_keys.skeleton(signature.treedef) for signature in (new, before)]
        return f"the tree of arguments differs from that of before {tree_keys.difference(*trees)}"
    pairs = zip(_types(new), _types(before), strict=True)
    for k, (now, old) in enumerate(pairs):
        if now != old:
            weak = ["", " (a Python number)"]
            texts = [f"{s.avals[k]}{weak[s.avals[k].weak_type]}" for s in (new, before)]
            return f"argument {names[k]} is {texts[0]} and was {texts[1]}"
    olds = {where: value for where, _, value in before.statics}
    changed = [
        f"static argument {_parameter(function, where)} is {value!r} and was {olds.get(where)!r}"
        for where, kind, value in new.statics
        if (where, kind, value) not in before.statics
    ]
    return "; ".join(changed) or "static arguments are left out that were there"


def _parameter(function: Callable[..., Any], where: int | str) -> str:
    """The name of a parameter, of which the place may be known alone."""
    if isinstance(where, str):
        return where
    try:
        return list(inspect.signature(function).parameters)[where]
    except (TypeError, ValueError, IndexError):
        return f"number {where}"


def _values(statics: Sequence[tuple[Any, type, Any]]) -> str:
    return ", ".join(f"{where}={value!r}" for where, _, value in statics)
