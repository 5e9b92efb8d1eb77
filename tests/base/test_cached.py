"""Attributes that are computed once."""

import threading

from gpuflow.base.cached import cached_property


def test_an_instance_does_not_wait_for_another_one():
    """Python 3.11 has one lock for all instances: a forked child waited for it for ever."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, waits):
            self.waits = waits

        @cached_property
        def value(self):
            """What took long."""
            if self.waits:
                begun.set()
                assert may_end.wait(20)
            return object()

    slow, quick = Slow(True), Slow(False)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert begun.wait(20)
    found = []
    other = threading.Thread(target=lambda: found.append(quick.value), daemon=True)
    other.start()
    other.join(10)
    may_end.set()
    thread.join()
    assert found == [quick.value]
    assert slow.value is slow.value
    assert Slow.value.__doc__ == "What took long."
