"""Python's garbage collector is paused in blocks, and runs again after them."""

import gc
import os
import subprocess
import sys

import pytest

from gpuflow.base import collector


@pytest.fixture
def pause():
    was = gc.isenabled()
    gc.enable()
    yield collector._Pause()
    (gc.enable if was else gc.disable)()


def test_the_collector_runs_again_after_the_last_block(pause):
    with pause:
        assert not gc.isenabled()
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), pause:
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(pause):
    gc.disable()
    with pause:
        pass
    assert not gc.isenabled()


def test_a_fork_within_a_block_frees_the_lock_and_the_collector(pause):
    with pause:
        pause.lock.acquire()
        pause.renew()  # as in the child
        assert gc.isenabled() and pause.lock.acquire(blocking=False)
        pause.lock.release()
    with pause:  # the block that the fork left counts no more
        assert not gc.isenabled()
    assert gc.isenabled()


def test_objects_that_a_user_froze_stay_frozen():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        collector.count_as_old()
        assert gc.get_freeze_count() >= count > 0
    finally:
        gc.unfreeze()
    collector.count_as_old()
    assert gc.get_freeze_count() == 0


IMPORT = """
import gc
phases = []
gc.callbacks.append(lambda phase, info: phases.append(phase))
import numpy
before = phases.count("start")
import gpuflow
assert gc.isenabled() and gc.get_freeze_count() == 0
print(phases.count("start") - before)
"""


def test_the_import_collects_no_garbage():
    """Collections took a sixth of the import: there were 130, and few objects to free."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert int(done.stdout) < 30
