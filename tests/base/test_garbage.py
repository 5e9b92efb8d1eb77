"""Garbage collections: whole ones beside others in the middle of one, and none during a call."""

import gc
import threading
import weakref

import pytest

from gpuflow.base import garbage
from gpuflow.base.garbage import collect_garbage, without_collection


class Cycle:
    """An object that only a collection frees."""

    def __init__(self, finalizer=None):
        self.itself, self.finalizer = self, finalizer

    def __del__(self):
        if self.finalizer is not None:
            self.finalizer()


@pytest.fixture
def collecting():
    """Another thread collects until the event is set."""
    begun, goes_on = threading.Event(), threading.Event()

    def work():
        Cycle(lambda: (begun.set(), goes_on.wait(60)))
        gc.collect()

    gc.disable()  # else this thread might be the one that finds the cycle
    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    yield goes_on
    goes_on.set()
    thread.join()
    gc.enable()


def test_it_waits_for_the_other_thread(collecting):
    gone = weakref.ref(Cycle())
    gc.collect()
    assert gone() is not None  # so gc.collect did nothing
    threading.Timer(0.1, collecting.set).start()
    assert collect_garbage(60) and gone() is None


def test_it_waits_no_longer_than_it_was_told(collecting):
    gone, hooks = weakref.ref(Cycle()), list(gc.callbacks)
    assert not collect_garbage(0.02) and gone() is not None
    assert gc.callbacks == hooks


def test_alone():
    gone = weakref.ref(Cycle())
    assert collect_garbage() and gone() is None


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on):
    was = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        assert without_collection(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            without_collection(lambda: 1 // 0)
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.skipif(not garbage._INTERRUPTS_C, reason="C code is not interrupted from 3.12 on")
def test_nothing_is_collected_in_between():
    """A thousand objects of the collector are more than its threshold."""
    phases = []

    def note(phase, info):
        phases.append((phase, info))

    gc.callbacks.append(note)
    try:
        made = without_collection(lambda: list(map(list, [()] * 10_000)))
        assert len(made) == 10_000 and phases == []
    finally:
        gc.callbacks.remove(note)


def test_a_fork_within_a_call_frees_the_lock_and_the_collector():
    collector = garbage._Collector()
    collector.lock.acquire()
    collector.is_stopped = True
    gc.disable()
    try:
        collector.renew()
        assert gc.isenabled() and not collector.lock.locked()
    finally:
        gc.enable()
