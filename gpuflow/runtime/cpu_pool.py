"""Worker threads for large kernels: each takes chunks of the split axis until none are left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from gpuflow.base.config import config

Call = Callable[[int, int, int], None]
_CANCEL_SECONDS = 1e-3  # between two looks at a cancelled job


class _Job:
    """One launch: chunks are claimed one at a time, so that a late worker finds nothing to do."""

    __slots__ = ("address", "call", "chunk", "extent", "finished", "lock", "next", "running")

    def __init__(self, call: Call, address: int, extent: int, chunk: int) -> None:
        self.call, self.address, self.extent, self.chunk = call, address, extent, chunk
        self.next = 0
        self.running = 0
        self.lock = threading.Lock()
        self.finished = threading.Event()

    def work(self) -> None:
        """Run chunks until all are claimed; the last to finish reports."""
        while True:
            with self.lock:
                start = self.next
                if start >= self.extent:
                    if self.running == 0:
                        self.finished.set()
                    return
                self.next = start + self.chunk
                self.running += 1
            try:
                self.call(self.address, start, min(start + self.chunk, self.extent))
            finally:
                with self.lock:
                    self.running -= 1

    def cancel(self) -> None:
        """Start no more chunks, and wait for those that run: they write to the caller's memory."""
        with self.lock:
            self.next = self.extent
        while True:
            with self.lock:
                if self.running == 0:
                    return
            time.sleep(_CANCEL_SECONDS)


class ThreadPool:
    """Threads that wait for jobs. Started at first use; gone after a fork, and started again."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._workers: list[threading.Thread] = []
        self._job: _Job | None = None
        self._wake = threading.Semaphore(0)
        self._busy = threading.Lock()

    def run(self, call: Call, address: int, extent: int, chunk: int) -> None:
        """Run ``call(address, lo, hi)`` over ``0..extent`` in chunks, and wait for the end."""
        if self.threads == 1 or extent <= chunk or not self._busy.acquire(blocking=False):
            call(address, 0, extent)
            return
        try:
            self._start()
            job = self._job = _Job(call, address, extent, chunk)
            for _ in self._workers:
                self._wake.release()
            try:
                job.work()
                job.finished.wait()
            except BaseException:  # Ctrl-C, which may come at any line
                job.cancel()
                raise
        finally:
            self._job = None
            self._busy.release()

    def _start(self) -> None:
        while len(self._workers) < self.threads - 1:
            worker = threading.Thread(target=self._loop, name="gpuflow-worker", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _loop(self) -> None:
        while True:
            self._wake.acquire()
            job = self._job
            if job is not None:
                job.work()

    def forget_workers(self) -> None:
        """In a forked child: the threads are gone."""
        self.__init__(self.threads)


pool = ThreadPool(config.environment.num_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.forget_workers)
