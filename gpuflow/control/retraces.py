"""Warn about a function whose repeated tracing and compilation has cost some seconds.

Traces are counted by the source line that defines the function. This covers one jitted function
with new arguments, and new functions, such as a closure in a loop. Most programs trace a function a
few times on purpose, so only the cost shows that the program should change.

Tests: tests/control/test_retraces.py.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable
from dataclasses import field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from gpuflow.base import tree_keys
from gpuflow.base.config import config
from gpuflow.base.recent import Recent
from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.control.jit_options import name_of
from gpuflow.control.signatures import Signature

# Training and evaluation, two dtypes and a smaller last batch: four traces are normal.
_MIN_TRACES = 4
_MAX_SIGNATURES, _MAX_DEFINITIONS = 4, 1024


@record(frozen=False)
class _Definition:
    """A source line that defines functions, and the cost of their traces after the first one.

    Attributes:
        traces: number of traces, including the first one.
        tracing, compiling: seconds spent, without the first trace.
        pending: compile time of the latest program, in a list: it is compiled after its trace.
        is_reported: whether the warning was issued.
    """

    traces: int = 0
    tracing: float = 0.0
    compiling: float = 0.0
    pending: list[float] = field(default_factory=lambda: [0.0])
    is_reported: bool = False


_definitions: Recent[tuple[str, int, str], _Definition] = Recent(_MAX_DEFINITIONS)


class Retraces:
    """Counts the traces of one jitted function, and warns if they are expensive.

    Args:
        function: the user's function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._code = code_of(function)
        self._is_traced = False
        self._signatures: list[Signature] = []

    def note(
        self, new: Signature, names: Callable[[], list[str]], seconds: float, compiling: list[float]
    ) -> None:
        """Count a trace.

        Args:
            new: the traced signature.
            names: returns the names of the leaves of the arguments.
            seconds: duration of the trace.
            compiling: a list of one number, the compile time, which is added later.

        Warns:
            UserWarning: if traces after the first one took ``retrace_warning_seconds``.
        """
        previous, was_traced = self._signatures, self._is_traced
        self._signatures, self._is_traced = [*previous, new][-_MAX_SIGNATURES:], True
        if self._code is None or (was_traced and not previous):  # the user cleared its cache
            return
        if any(new[:3] == other[:3] for other in previous):  # only settings differ
            return
        site = self._definition(self._code)
        if site.traces:
            site.tracing += seconds
            site.compiling += site.pending[0] if site.traces > 1 else 0.0
        site.traces, site.pending = site.traces + 1, compiling
        total, limit = site.tracing + site.compiling, config.retrace_warning_seconds
        if site.is_reported or site.traces < _MIN_TRACES or limit is None or total < limit:
            return
        site.is_reported = True
        changed, fix = self._reason(new, previous, names)
        location = f"{self._code.co_filename}:{self._code.co_firstlineno}"
        warn(
            f"[jit] {name_of(self._function)} should be traced rarely; got {site.traces} traces of "
            f"the function at {location}, of which all but the first took {total:.1f} s "
            f"({site.tracing:.1f} s tracing, {site.compiling:.1f} s compiling): {changed}. "
            f"Fix: {fix}; gf.explain_cache_misses() logs each trace."
        )

    def forget(self) -> None:
        """Forget all signatures."""
        self._signatures = []

    def _definition(self, code: CodeType) -> _Definition:
        key = code.co_filename, code.co_firstlineno, code.co_name
        site = _definitions.get(key)
        if site is None:
            site = _Definition()
            _definitions.put(key, site)
        return site

    def _reason(
        self, new: Signature, previous: list[Signature], names: Callable[[], list[str]]
    ) -> tuple[str, str]:
        """The difference from previous traces, and the fix."""
        if not previous:
            return (
                "each is of a new function, defined at this line",
                "call gf.jit once, outside of the loop, and pass what changes as arguments",
            )
        closest = max(reversed(previous), key=lambda other: _likeness(new, other))
        return _difference(self._function, new, closest, names())


def _check_seconds(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(
            f"[config] retrace_warning_seconds must be a number of at least 0; got {value!r}. "
            "Fix: 3.0, or None for no warning."
        )


config.register_check("retrace_warning_seconds", _check_seconds)


def code_of(function: Any) -> CodeType | None:
    """The code of a function, or of the one that a wrapper or a partial function calls."""
    while True:
        inner = getattr(function, "func", None) or getattr(function, "__wrapped__", None)
        if inner is None:
            return getattr(function, "__code__", None)
        function = inner


def _likeness(one: Signature, other: Signature) -> int:
    """The number of equal components of two signatures; types without and with sizes count."""
    pairs = [*zip(_types(one), _types(other), strict=False)]
    sizes = zip(one.avals, other.avals, strict=False)
    same = sum(a == b for a, b in pairs) + sum(a == b for a, b in sizes)
    return same + (one.treedef == other.treedef) + (one.statics == other.statics)


def _types(signature: Signature) -> tuple[tuple[Any, ...], ...]:
    """The types of the arguments without their sizes."""
    return tuple(
        [(type(aval), len(aval.shape), aval.dtype, aval.weak_type) for aval in signature.avals]
    )


def _difference(
    function: Callable[..., Any], new: Signature, before: Signature, names: list[str]
) -> tuple[str, str]:
    """The most relevant first difference, and the fix."""
    if new.treedef != before.treedef:
        trees = [tree_keys.skeleton(signature.treedef) for signature in (new, before)]
        text = f"the tree of arguments differs from the one before {tree_keys.difference(*trees)}"
        return text, "pass trees of one structure"
    for types in (_types, lambda signature: signature.avals):
        for k, (now, old) in enumerate(zip(types(new), types(before), strict=True)):
            if now != old:
                weak = ["", " (a Python number)"]
                texts = [f"{s.avals[k]}{weak[s.avals[k].weak_type]}" for s in (new, before)]
                text = f"argument {names[k]} is {texts[0]} and was {texts[1]}"
                same_kind = types is not _types
                return text, "pad to few shapes" if same_kind else "pass one dtype and rank"
        if new.statics != before.statics:
            return _static_difference(function, new, before)
    return "the settings differ", "leave gpuflow.config as it is"


def _static_difference(
    function: Callable[..., Any], new: Signature, before: Signature
) -> tuple[str, str]:
    """Describe the first static argument that differs, and the fix."""
    olds = {where: value for where, _, value in before.statics}
    for where, kind, value in new.statics:
        if (where, kind, value) in before.statics:
            continue
        name = f"static argument {_parameter(function, where)}"
        if where not in olds:
            return f"{name} was left out before", "pass the same static arguments"
        old, code = olds[where], code_of(value)
        if isinstance(value, FunctionType | partial) and code is not None and code is code_of(old):
            return (
                f"{name} is a new function each time, defined at {code.co_filename}:"
                f"{code.co_firstlineno}",
                f"define {code.co_name} once, outside of the loop or function that passes it",
            )
        if kind is type(old) and kind.__eq__ is object.__eq__:
            return (
                f"{name} is another object of {kind.__qualname__}, which has no __eq__, so that "
                "each object counts as new",
                f"give {kind.__qualname__} __eq__ and __hash__, or reuse one object",
            )
        return (
            f"{name} is {reprlib.repr(value)} and was {reprlib.repr(old)}",
            "pass it as an ordinary argument if it determines no shape",
        )
    return "static arguments were left out", "pass the same static arguments"


def _parameter(function: Callable[..., Any], where: int | str) -> str:
    """The name of a parameter, or its position if the signature is unknown."""
    if isinstance(where, str):
        return where
    try:
        return list(inspect.signature(function).parameters)[where]
    except (TypeError, ValueError, IndexError):
        return f"number {where}"
