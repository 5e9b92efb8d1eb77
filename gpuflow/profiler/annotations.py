"""Names for parts of the host's work, which a trace shows on the row of the host.

Tests: tests/test_profiler.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuflow.base.errors import check
from gpuflow.base.recording import Recording, clock, state


class TraceAnnotation:
    """Show a block in the trace: ``with TraceAnnotation(name):``.

    Args:
        name: text to show.
        kwargs: details to show with it.

    Raises:
        TypeError: if the name is not a string.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        check(
            isinstance(name, str),
            lambda: (
                f"[{type(self).__name__}] the name must be a string; got {name!r}. Fix: "
                f"{type(self).__name__}('part')."
            ),
            TypeError,
        )
        self._name, self._details = name, kwargs
        self._recording: Recording | None = None

    @staticmethod
    def is_enabled() -> bool:
        """Return whether a trace is being recorded."""
        return state.recording is not None

    def set_metadata(self, **kwargs: Any) -> None:
        """Add details to show."""
        self._details = {**self._details, **kwargs}

    def __enter__(self) -> TraceAnnotation:
        self._recording, self._start = state.recording, clock()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._recording is not None:
            self._recording.add("host", self._name, self._start, self._details)


class StepTraceAnnotation(TraceAnnotation):
    """Show a training step in the trace: ``with StepTraceAnnotation("train", step_num=k):``.

    Args:
        name: text to show, followed by the number of the step.
        kwargs: details to show with it; ``step_num`` is the number of the step.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        number = kwargs.get("step_num")
        super().__init__(name if number is None else f"{name} {number}", **kwargs)


def annotate_function(
    func: Callable[..., Any], name: str | None = None, **decorator_kwargs: Any
) -> Callable[..., Any]:
    """Return ``func`` with its calls shown in the trace.

    Args:
        func: a function.
        name: text to show; by default the function's name.
        decorator_kwargs: details to show with each call.
    """
    label = name or getattr(func, "__qualname__", None) or type(func).__name__

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(label, **decorator_kwargs):
            return func(*args, **kwargs)

    return wrapper
