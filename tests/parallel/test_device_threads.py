"""The threads in which the memories of a process run a program: they stay, and keep nothing."""

import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.core.communicator import DRIVERS, served
from gpuflow.parallel.collectives import device_threads, memory_threads
from gpuflow.runtime.device import Device
from gpuflow.targets.cuda_sim.driver import SimApi

VARIABLE = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def two(monkeypatch):
    """Two devices without threads, which end with the test."""
    monkeypatch.setattr(memory_threads, "_teams", {})
    threads = {}
    monkeypatch.setattr(device_threads, "_threads", threads)
    yield Device("cuda_sim", 0), Device("cuda_sim", 1)
    for thread in threads.values():
        thread.tasks.put(None)


def on_both(two, run):
    return memory_threads.in_threads(run, two, two)


def test_threads_stay(two):
    """Each call started and ended a thread for each device."""
    before = threading.active_count()
    first = on_both(two, lambda device: threading.get_ident())
    for _ in range(5):
        assert on_both(two, lambda device: threading.get_ident()) == first
    assert len({*first, threading.get_ident()}) == 3
    assert threading.active_count() == before + 2
    names = on_both(two, lambda device: threading.current_thread().name)
    assert names == [f"gpuflow-{device}" for device in two]


def test_threads_keep_nothing_of_a_call(two):
    class Held:
        pass

    held = [Held(), Held()]
    seen = [weakref.ref(one) for one in held]
    results = on_both(two, lambda device, held=held: held[device.id])
    del held, results
    until = time.monotonic() + 60  # a thread lets go after it has said that it is done
    while any(one() is not None for one in seen) and time.monotonic() < until:
        time.sleep(0.01)
    assert [one() for one in seen] == [None, None]


def test_errors_reach_the_caller_and_threads_go_on(two):
    idents = on_both(two, lambda device: threading.get_ident())

    def fail(device):
        if device.id:
            raise FloatingPointError("of the second")
        served(DRIVERS).barrier()  # where it would wait in vain

    for _ in range(2):
        with pytest.raises(FloatingPointError, match="of the second"):
            on_both(two, fail)
    assert on_both(two, lambda device: threading.get_ident()) == idents
    with pytest.raises(SystemExit):
        device_threads.for_each(two, lambda number: sys.exit(number))
    assert on_both(two, lambda device: threading.get_ident()) == idents


def test_calls_see_the_settings_and_context_of_their_caller(two):
    def seen(device):
        found = VARIABLE.get(), config.debug_nans
        VARIABLE.set(f"left by {device.id}")
        return found

    assert on_both(two, seen) == [("unset", False)] * 2
    token = VARIABLE.set("of the caller")
    try:
        with gf.debug_nans(True):
            assert on_both(two, seen) == [("of the caller", True)] * 2
    finally:
        VARIABLE.reset(token)
    assert on_both(two, seen) == [("unset", False)] * 2 and VARIABLE.get() == "unset"


@pytest.fixture
def interrupts():
    """Ctrl-C raises, also where tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_wait_and_the_next_call_works(two, interrupts):
    started, released = threading.Event(), threading.Event()

    def wait(device):
        started.set()
        if device.id:
            released.wait(60)
        else:
            served(DRIVERS).barrier()  # for the other, which is busy

    def interrupt():
        started.wait(60)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = on_both(two, lambda device: threading.current_thread())
    threading.Thread(target=interrupt, daemon=True).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        on_both(two, wait)
    assert time.monotonic() - begun < 50
    assert on_both(two, lambda device: device.id) == [0, 1]  # while the second one is busy
    now = on_both(two, lambda device: threading.current_thread())
    assert not {*before} & {*now}
    released.set()


FORKED = """
import os, threading
from gpuflow.parallel.collectives import memory_threads
from gpuflow.runtime.device import Device
two = Device("cuda_sim", 0), Device("cuda_sim", 1)
def ids():
    return memory_threads.in_threads(lambda device: device.id, two, two)
assert ids() == [0, 1]
child = os.fork()
if child == 0:
    os._exit(7 if ids() == [0, 1] and threading.active_count() == 3 else 1)
assert ids() == [0, 1]
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("passed")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_starts_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (0, "passed\n"), done.stderr


@requires_cuda_tools
def test_checks_that_a_block_asks_for_hold_in_the_threads():
    """Settings of a block were those of the caller's thread only, and nan went unnoticed.

    Its step is not looked for: the other device would not take part in the collective.
    """
    devices = gpu_devices("cuda_device_threads", SimApi(), SimApi())
    x = np.array([[1.0, 2.0], [-1.0, 2.0]], np.float32)
    with gf.debug_nans(True):
        mapped = gf.pmap(lambda v: jnp.log(v) + gf.lax.psum(v, "i"), "i", devices=devices)
        begun = time.monotonic()
        with pytest.raises(FloatingPointError, match=r"\[jit\] results must be finite.*nan"):
            mapped(x)
        assert time.monotonic() - begun < 60
