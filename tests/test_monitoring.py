"""Listeners hear what is recorded, until they are taken away."""

from __future__ import annotations

import pytest

from gpuflow import monitoring

KINDS = [
    (monitoring.record_event, monitoring.register_event_listener,
     monitoring.unregister_event_listener, ()),
    (monitoring.record_event_duration_secs, monitoring.register_event_duration_secs_listener,
     monitoring.unregister_event_duration_listener, (1.5,)),
    (monitoring.record_event_time_span, monitoring.register_event_time_span_listener,
     monitoring.unregister_event_time_span_listener, (1.0, 2.0)),
    (monitoring.record_scalar, monitoring.register_scalar_listener,
     monitoring.unregister_scalar_listener, (7,)),
]  # fmt: skip


@pytest.mark.parametrize(("record", "register", "unregister", "numbers"), KINDS)
def test_a_listener(record, register, unregister, numbers):
    heard = []

    def listen(event, *args, **kwargs):
        heard.append((event, args, kwargs))

    register(listen)
    record("/a/b", *numbers, model="x")
    unregister(listen)
    record("/a/b", *numbers)
    assert heard == [("/a/b", numbers, {"model": "x"})]
    with pytest.raises(ValueError, match=r"the listener must have been registered"):
        unregister(listen)


def test_clear():
    heard = []
    monitoring.register_event_listener(heard.append)
    monitoring.clear_event_listeners()
    monitoring.record_event("x")
    assert not heard
