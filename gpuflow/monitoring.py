"""Events that libraries record and listen to, under the names of jax.monitoring.

gpuflow does not record events itself; use ``gpuflow.profiler`` and ``GPUFLOW_DEBUG``.

Tests: tests/test_monitoring.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.base.records import record

Listener = Callable[..., None]


@record(frozen=False)
class _Listeners:
    """The listeners of each kind of event, in the order of registration."""

    events: list[Listener] = field(default_factory=list)
    durations: list[Listener] = field(default_factory=list)
    spans: list[Listener] = field(default_factory=list)
    scalars: list[Listener] = field(default_factory=list)


_listeners = _Listeners()


def _remove(name: str, listeners: list[Listener], callback: Listener) -> None:
    check(
        callback in listeners,
        lambda: (
            f"[{name}] the listener must have been registered; got {callback!r}. "
            "Fix: register it before, and pass the same function."
        ),
        ValueError,
    )
    listeners.remove(callback)


def record_event(event: str, **kwargs: str | int) -> None:
    """Record an event: call the registered listeners.

    Args:
        event: name of the event.
        kwargs: additional data of the event.
    """
    for listener in tuple(_listeners.events):
        listener(event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: str | int) -> None:
    """Record the duration of an event in seconds: call the registered listeners."""
    for listener in tuple(_listeners.durations):
        listener(event, duration, **kwargs)


def record_event_time_span(
    event: str, start_time: float, end_time: float, **kwargs: str | int
) -> None:
    """Record the start and end of an event: call the registered listeners."""
    for listener in tuple(_listeners.spans):
        listener(event, start_time, end_time, **kwargs)


def record_scalar(event: str, value: float | int, **kwargs: str | int) -> None:
    """Record a scalar: call the registered listeners."""
    for listener in tuple(_listeners.scalars):
        listener(event, value, **kwargs)


def register_event_listener(callback: Listener) -> None:
    """Call ``callback(event, **kwargs)`` at each ``record_event``."""
    _listeners.events.append(callback)


def register_event_duration_secs_listener(callback: Listener) -> None:
    """Call ``callback(event, duration, **kwargs)`` at each ``record_event_duration_secs``."""
    _listeners.durations.append(callback)


def register_event_time_span_listener(callback: Listener) -> None:
    """Call ``callback(event, start, end, **kwargs)`` at each ``record_event_time_span``."""
    _listeners.spans.append(callback)


def register_scalar_listener(callback: Listener) -> None:
    """Call ``callback(event, value, **kwargs)`` at each ``record_scalar``."""
    _listeners.scalars.append(callback)


def unregister_event_listener(callback: Listener) -> None:
    """Undo ``register_event_listener``; raises ValueError if it is not registered."""
    _remove("unregister_event_listener", _listeners.events, callback)


def unregister_event_duration_listener(callback: Listener) -> None:
    """Undo ``register_event_duration_secs_listener``; raises ValueError if it is not registered."""
    _remove("unregister_event_duration_listener", _listeners.durations, callback)


def unregister_event_time_span_listener(callback: Listener) -> None:
    """Undo ``register_event_time_span_listener``; raises ValueError if it is not registered."""
    _remove("unregister_event_time_span_listener", _listeners.spans, callback)


def unregister_scalar_listener(callback: Listener) -> None:
    """Undo ``register_scalar_listener``; raises ValueError if it is not registered."""
    _remove("unregister_scalar_listener", _listeners.scalars, callback)


def clear_event_listeners() -> None:
    """Remove all listeners."""
    for listeners in vars(_listeners).values():
        listeners.clear()


publish(globals(), "monitoring", public_names(globals(), __name__))
