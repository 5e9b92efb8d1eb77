"""Whole garbage collections, while another thread is in the middle of one."""

import gc
import threading
import weakref

import pytest

from gpuflow.base.garbage import collect_garbage


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
