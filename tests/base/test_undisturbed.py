"""Calls that are made in threads which nobody interrupts."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import pytest

from gpuflow.base import undisturbed as module
from gpuflow.base.undisturbed import start_call, undisturbed


class Stop(Exception):
    pass


def test_the_result_and_the_error_are_those_of_the_call():
    assert undisturbed(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        undisturbed(lambda: 1 // 0)
    assert undisturbed(lambda: undisturbed(lambda: undisturbed(threading.get_ident))) not in (
        threading.get_ident(),
        undisturbed(threading.get_ident),
    )


def test_calls_run_side_by_side():
    meet = threading.Barrier(3)
    waits = [start_call(lambda: meet.wait(20)) for _ in range(3)]
    assert sorted(wait() for wait in waits) == [0, 1, 2]


def test_an_interrupted_caller_goes_and_the_call_ends():
    has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    outcomes = []

    def call():
        has_begun.set()
        may_end.wait(60)
        ended.set()

    def work():
        try:
            undisturbed(call)
        except Stop:
            outcomes.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    assert has_begun.wait(60)
    time.sleep(0.1)  # until the caller waits
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(Stop)
    )
    assert raised == 1
    thread.join(60)
    assert outcomes == ["stopped"]
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(20)
    assert undisturbed(lambda: 3) == 3


def test_a_thread_that_dies_while_it_starts_is_replaced(monkeypatch):
    starts = []

    def start(run, arguments):
        starts.append(run)
        if len(starts) > 1:
            threading.Thread(target=run, daemon=True).start()

    monkeypatch.setattr(module, "_idle", [])
    monkeypatch.setattr(module, "start_new_thread", start)
    assert undisturbed(lambda: 3) == 3
    assert len(starts) == 2


def test_without_threads_the_caller_makes_the_call(monkeypatch):
    def start(run, arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(module, "_idle", [])
    monkeypatch.setattr(module, "start_new_thread", start)
    assert undisturbed(threading.get_ident) == threading.get_ident()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own():
    undisturbed(lambda: 3)
    program = (
        "import os; from gpuflow.base.undisturbed import undisturbed\n"
        "undisturbed(lambda: 3); child = os.fork()\n"
        "if child == 0: os._exit(undisturbed(lambda: 7))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout.strip(), ended.returncode) == ("7", 0), ended.stderr


def test_the_process_waits_for_a_call_and_makes_those_of_its_end():
    program = (
        "import atexit, time; from gpuflow.base.undisturbed import start_call, undisturbed\n"
        "atexit.register(lambda: print(undisturbed(lambda: 'at the end')))\n"
        "def call(): time.sleep(0.5); print('whole', flush=True)\n"
        "start_call(call); time.sleep(0.1)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert sorted(ended.stdout.splitlines()) == ["at the end", "whole"], ended.stderr
    assert (ended.stderr, ended.returncode) == ("", 0)
