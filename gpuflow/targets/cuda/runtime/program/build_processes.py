"""Parallel builds of a program's CUDA kernels: several processes build one kernel at a time.

Numba and NVVM hold one lock. A process starts when there are enough kernels to build, imports the
compilers (a second), and builds one kernel after the other. It ends with this process, or when it
has been idle.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from gpuflow.base.config import config
from gpuflow.compiler.cache.kernel_cache import Entry, KernelCache

# Kernels for each process: fewer are built before a new process has imported the compilers.
_LEAST_BUILDS = 4
_IDLE_SECONDS = 30.0
# In a frozen program, sys.executable is that program.
_NO_PYTHON = not sys.executable or getattr(sys, "frozen", False)
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import serve; serve()"
)


class Build(Protocol):
    """A build of a kernel; it can be pickled."""

    key: str

    def entry(self) -> Entry:
        """Build it."""


def build_missing(builds: Iterable[Build], cache: KernelCache) -> None:
    """Build the kernels that a cache lacks, if there are enough of them for several processes.

    A failed build is repeated by the caller, which raises the error where the kernel is needed.
    """
    if config.environment.build_processes < 2 or _NO_PYTHON:
        return
    missing = {
        build.key: build
        for build in builds
        if not cache.has(build.key) and not cache.is_stored(build.key)
    }
    count = min(config.environment.build_processes, len(missing) // _LEAST_BUILDS)
    if count < 2:
        return
    queue = deque(missing.values())
    threads = [
        threading.Thread(target=_build_elsewhere, args=(queue, cache), daemon=True)
        for _ in range(count - 1)
    ]
    for thread in threads:
        thread.start()
    try:
        while (build := _next(queue)) is not None:
            cache.add(build.key, build.entry)
        for thread in threads:
            thread.join()
    finally:
        queue.clear()  # after an error or Ctrl-C the others are not needed now


def _build_elsewhere(queue: deque[Build], cache: KernelCache) -> None:
    """Have another process build kernels, until there are no more."""
    try:
        worker = _workers.take()
    except OSError:  # no process can be started
        return
    try:
        while (build := _next(queue)) is not None:
            cache.add(build.key, partial(worker.entry, build))
    except Exception:  # the caller repeats this build; other processes take the rest
        worker.end()
    else:
        _workers.give_back(worker)


def _next(queue: deque[Build]) -> Build | None:
    """A build that no other thread has taken; None: there are no more."""
    with suppress(IndexError):
        return queue.popleft()
    return None


class _Worker:
    """A process that builds."""

    def __init__(self) -> None:
        # -P: ignore modules in the working folder.
        path = json.dumps([str(folder) for folder in sys.path])
        command = [sys.executable, "-P", "-c", _PROGRAM, path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def entry(self, build: Build) -> Entry:
        """The entry of a build; raises if it failed, or if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(build, self._process.stdin)
        self._process.stdin.flush()
        entry = pickle.load(self._process.stdout)
        if not isinstance(entry, Entry):
            raise RuntimeError(entry)
        return entry

    def is_alive(self) -> bool:
        """Whether it waits for builds."""
        return self._process.poll() is None

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()

    def forget(self) -> None:
        """Leave the process to the parent that started it."""
        self._close()
        self._process.returncode = 0  # else Popen warns that it still runs

    def end(self) -> None:
        """End the process, after its build."""
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        if self.is_alive():
            self._process.kill()
            self._process.wait()


class _Workers:
    """The idle processes."""

    def __init__(self) -> None:
        self._idle: deque[_Worker] = deque()

    def take(self) -> _Worker:
        """An idle process or a new one."""
        with suppress(IndexError):
            while True:
                worker = self._idle.popleft()
                if worker.is_alive():
                    return worker
                worker.end()
        return _Worker()

    def give_back(self, worker: _Worker) -> None:
        """Keep a process for the next program."""
        self._idle.append(worker)

    def end(self) -> None:
        """End all idle processes."""
        while self._idle:
            self._idle.popleft().end()

    def forget(self) -> None:
        """In a forked child: the processes are the parent's."""
        while self._idle:
            self._idle.popleft().forget()


_workers = _Workers()
atexit.register(_workers.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.forget)


def serve() -> None:
    """Serve builds of the parent process, until that ends or is idle for long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the compilers' output
    while select.select([source], [], [], _IDLE_SECONDS)[0]:
        try:
            build = pickle.load(source)
        except EOFError:
            return
        pickle.dump(_outcome(build), target)
        target.flush()


def _outcome(build: Build) -> Entry | str:
    """The entry, or the text of an error."""
    try:
        return build.entry()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
