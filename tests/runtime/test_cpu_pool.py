"""The thread pool runs every chunk once, also when it is interrupted or forked."""

import threading
import time

import pytest

from gpuflow.runtime.cpu_pool import ThreadPool


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(("extent", "chunk"), [(0, 5), (1, 5), (5, 5), (100, 7), (64, 1)])
def test_every_index_runs_once(threads, extent, chunk):
    pool = ThreadPool(threads)
    seen = []
    for _ in range(5):
        pool.run(lambda address, lo, hi: seen.extend(range(lo, hi)), 0, extent, chunk)
    assert sorted(seen) == sorted(list(range(extent)) * 5)


def test_a_call_inside_a_call_runs_inline():
    pool = ThreadPool(2)
    seen = []

    def inner(address, lo, hi):
        seen.append((lo, hi))

    pool.run(lambda address, lo, hi: pool.run(inner, 0, 10, 1), 0, 2, 1)
    assert seen == [(0, 10)] * 2


def test_an_interrupt_waits_for_running_chunks():
    """After Ctrl-C the workers went on writing to memory that others had been given."""
    pool = ThreadPool(2)
    main, started, finished = threading.get_ident(), threading.Event(), []

    def call(address, lo, hi):
        if threading.get_ident() == main:
            started.wait(10)
            raise KeyboardInterrupt
        started.set()
        time.sleep(0.1)
        finished.append(lo)

    with pytest.raises(KeyboardInterrupt):
        pool.run(call, 0, 100, 1)
    before = list(finished)
    time.sleep(0.3)
    assert before and finished == before
    seen = []
    pool.run(lambda address, lo, hi: seen.append(lo), 0, 4, 1)
    assert sorted(seen) == [0, 1, 2, 3]
