"""Calls that nothing breaks off in the middle.

Ctrl-C, and exceptions that one thread raises in another (notebooks, debuggers, tests with a time
limit), can occur between any two lines of Python. A library that acquires and releases a lock in
Python, as llvmlite does, then never releases the lock, or frees a resource twice.
"""

from __future__ import annotations

import atexit
import os
from _thread import start_new_thread
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

Result = TypeVar("Result")
_Outcome = tuple[list[Any], BaseException | None]
_Task = tuple[Callable[[], Any], SimpleQueue[_Outcome]]

# Seconds. While Python starts a thread, what is raised in the starting one may end the new one.
_TO_BEGIN = 1.0


class _Worker:
    """A thread that makes one call after the other.

    Attributes:
        tasks: the calls, and the destinations of their outcomes.
        began: whether the thread runs.
        busy: locked during a call.
    """

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task] = SimpleQueue()
        self.began = False
        self.busy = Lock()

    def ensure_thread(self) -> bool:
        """Whether there is a thread for it; not where Python is ending or has no threads."""
        if not self.began:
            try:
                start_new_thread(self._run, ())
            except RuntimeError:
                return False
        return True

    def _run(self) -> None:
        self.began = True
        while True:
            self._make(*self.tasks.get())

    def _make(self, call: Callable[[], Any], outcomes: SimpleQueue[_Outcome]) -> None:
        outcome: _Outcome
        with self.busy:
            try:
                outcome = [call()], None
            except BaseException as error:
                outcome = [], error
        # Not by the caller, who may have gone.
        _idle.append(self)
        outcomes.put(outcome)


_idle: list[_Worker] = []
_workers: list[_Worker] = []


def undisturbed(call: Callable[[], Result]) -> Result:
    """The result of ``call()``, which another thread makes from its beginning to its end.

    An interrupt reaches the waiting caller alone, which goes on with it. Cost: 0.05 ms.

    Args:
        call: it must release resources that it creates and does not return.
    """
    return begun(call)()


def begun(call: Callable[[], Result]) -> Callable[[], Result]:
    """Begin a call as of ``undisturbed``; the returned function waits for its result, once."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        _workers.append(worker)
    outcomes: SimpleQueue[_Outcome] = SimpleQueue()
    worker.tasks.put((call, outcomes))
    has_thread = worker.ensure_thread()

    def result() -> Result:
        if not has_thread:
            return call()
        while True:
            try:
                results, error = outcomes.get(timeout=_TO_BEGIN)
            except Empty:
                if not worker.ensure_thread():
                    return call()
                continue
            if error is not None:
                raise error
            return results[0]  # type: ignore[no-any-return]

    return result


@atexit.register
def _wait() -> None:
    """A process does not end while a library works in it."""
    for worker in _workers:
        with worker.busy:
            pass


def _forget() -> None:
    """In a forked child: the threads are gone."""
    _idle.clear()
    _workers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
