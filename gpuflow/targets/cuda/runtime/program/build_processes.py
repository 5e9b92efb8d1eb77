"""Process pool for builds of CUDA kernels; each worker builds one kernel at a time.

Numba and NVVM hold one lock, so threads do not help. A worker starts if there are enough kernels to
build, and imports the compilers (a second). It ends with this process, or after ``_IDLE_SECONDS``.
Builds and cache entries are pickled over pipes between processes of the same program.

Tests: tests/targets/cuda/test_build_processes.py.
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
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache

# Least kernels per process: fewer are built before a new process has imported the compilers.
_LEAST_BUILDS = 4
_IDLE_SECONDS = 30.0
# In a frozen program, sys.executable is that program instead of Python.
_NO_PYTHON = not sys.executable or getattr(sys, "frozen", False)
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {__name__} import serve; serve()"
)


class Build(Protocol):
    """A build of a kernel, which must be picklable.

    Attributes:
        key: key of the kernel in the cache.
    """

    key: str

    def entry(self) -> CacheEntry:
        """Build the kernel and return its cache entry."""


def build_missing(builds: Iterable[Build], cache: KernelCache) -> None:
    """Build the kernels that a cache lacks, if there are enough for several processes.

    Failed builds of workers are ignored: the caller builds these kernels again when it needs them,
    and then raises the error.
    """
    if config.environment.build_processes < 2 or _NO_PYTHON:
        return
    missing = {
        build.key: build
        for build in builds
        if not cache.is_loaded(build.key) and not cache.is_stored(build.key)
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
            cache.prebuild(build.key, build.entry)
        for thread in threads:
            thread.join()
    finally:
        queue.clear()  # stops the threads after an error or Ctrl-C


def _build_elsewhere(queue: deque[Build], cache: KernelCache) -> None:
    """Let a worker build kernels until the queue is empty."""
    try:
        worker = _workers.take()
    except OSError:  # the process cannot be started
        return
    try:
        while (build := _next(queue)) is not None:
            cache.prebuild(build.key, partial(worker.entry, build))
    except Exception:  # the caller repeats this build; other workers continue with the queue
        worker.end()
    else:
        _workers.give_back(worker)


def _next(queue: deque[Build]) -> Build | None:
    """Take a build from the queue; None if it is empty."""
    with suppress(IndexError):
        return queue.popleft()
    return None


class _Worker:
    """A worker process, which runs ``serve``."""

    def __init__(self) -> None:
        # -P: ignore modules in the working folder.
        path = json.dumps([str(folder) for folder in sys.path])
        command = [sys.executable, "-P", "-c", _PROGRAM, path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def entry(self, build: Build) -> CacheEntry:
        """Build in the worker; raises if the build failed or the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(build, self._process.stdin)
        self._process.stdin.flush()
        entry = pickle.load(self._process.stdout)
        if not isinstance(entry, CacheEntry):
            raise RuntimeError(entry)
        return entry

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()

    def forget(self) -> None:
        """In a forked child: drop the process, which belongs to the parent."""
        self._close()
        self._process.returncode = 0  # so that Popen does not warn about a running process

    def end(self) -> None:
        """End the process; kill it if it does not end at once."""
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        if self.is_alive():
            self._process.kill()
            self._process.wait()


class _Workers:
    """The pool of idle workers; thread-safe, as operations of a deque are."""

    def __init__(self) -> None:
        self._idle: deque[_Worker] = deque()

    def take(self) -> _Worker:
        """Take an idle worker, or start one."""
        with suppress(IndexError):
            while True:
                worker = self._idle.popleft()
                if worker.is_alive():
                    return worker
                worker.end()
        return _Worker()

    def give_back(self, worker: _Worker) -> None:
        """Return a worker to the pool, for the next program."""
        self._idle.append(worker)

    def end(self) -> None:
        """End all idle workers."""
        while self._idle:
            self._idle.popleft().end()

    def forget(self) -> None:
        """In a forked child: drop all workers, which belong to the parent."""
        while self._idle:
            self._idle.popleft().forget()


_workers = _Workers()
atexit.register(_workers.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.forget)


def serve() -> None:
    """Main loop of a worker: build for the parent until that ends, or sends nothing for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the compilers goes to stderr, as stdout has entries
    while select.select([source], [], [], _IDLE_SECONDS)[0]:
        try:
            build = pickle.load(source)
        except EOFError:
            return
        pickle.dump(_outcome(build), target)
        target.flush()


def _outcome(build: Build) -> CacheEntry | str:
    """Build; returns the entry, or the text of an error."""
    try:
        return build.entry()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
