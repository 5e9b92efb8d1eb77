"""Log messages of ``log_compiles`` and ``explain_cache_misses``, and the check ``no_tracing``.

Tests: tests/test_config_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.lazy import LazyModule
from gpuflow.control.signatures import Signature
from gpuflow.core.aval import ShapedArray

if TYPE_CHECKING:
    import logging
else:
    logging = LazyModule("logging")


def _warn(text: str, *arguments: Any) -> None:
    """Log a warning; users configure it by ``logging.getLogger("gpuflow")``."""
    logging.getLogger("gpuflow").warning(text, *arguments)


@contextmanager
def log_time(work: str, name: str, avals: Sequence[ShapedArray]) -> Iterator[None]:
    """Log the duration of a with block that traces or compiles a function for these types."""
    start = perf_counter()
    yield
    took = (perf_counter() - start) * 1e3
    types = ", ".join(map(str, avals))
    _warn("%s %s for (%s) in %.1f ms", work, name, types, took)


def check_may_trace(name: str) -> None:
    """Check that tracing is allowed.

    Raises:
        RuntimeError: if ``no_tracing`` is set.
    """
    if config.switches().no_tracing:
        raise RuntimeError(
            f"[jit] {name} must have been traced for these arguments, as no_tracing is set; got "
            "new types or static values. Fix: call it once before, or leave no_tracing."
        )


def explain_miss(name: str, new: Signature, known: Sequence[Signature]) -> None:
    """Log the reason of a cache miss: the difference from the closest signature.

    Args:
        name: name of the function.
        new: the signature of the call.
        known: the cached signatures.
    """
    if not known:
        _warn("no program for %s: it was never called, or is a new function", name)
        return
    closest = max(known, key=lambda other: _likeness(new, other))
    differences = []
    if new.treedef != closest.treedef:
        trees = tree.text(new.treedef), tree.text(closest.treedef)
        differences.append(f"another tree of arguments, {trees[0]} and before {trees[1]}")
    elif new.avals != closest.avals:
        changed = [
            f"{now} and before {before}"
            for now, before in zip(new.avals, closest.avals, strict=True)
            if now != before
        ]
        differences.append(f"other types, {'; '.join(changed)}")
    if new.statics != closest.statics:
        before = _values(closest.statics)
        differences.append(f"other static arguments, {_values(new.statics)} and before {before}")
    if new.settings is not closest.settings:
        differences.append("other settings (gpuflow.config)")
    _warn("no program for %s: %s", name, "; ".join(differences))


def _likeness(one: Signature, other: Signature) -> int:
    """The number of equal components of two signatures; each argument type counts."""
    types = sum(a == b for a, b in zip(one.avals, other.avals, strict=False))
    return types + sum(
        [
            one.treedef == other.treedef,
            one.statics == other.statics,
            one.settings == other.settings,
        ]
    )


def _values(statics: Sequence[tuple[Any, type, Any]]) -> str:
    return ", ".join(f"{where}={value!r}" for where, _, value in statics)
