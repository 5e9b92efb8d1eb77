"""The thread pool of the CPU: starts and stops the workers.

Workers are Python threads that run native code (``gf_worker``) without the GIL until the process
ends. ``pool.ll`` defines how they claim chunks of a job. Only Linux has workers, because they sleep
on POSIX semaphores; elsewhere the calling thread does all of the work.

Any thread may call the functions and methods here, except ``reset_after_fork``.

Tests: tests/targets/cpu/test_cpu_pool.py.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import NamedTuple

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.base.util import warn
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.runtime.memory import address, aligned_bytes
from gpuflow.targets.cpu.runtime.native.object_code import LoadedModule, core_module, load_native

SPINS = 4000  # polls of the ticket before a worker sleeps: about 20 to 50 us
_FLAG_BYTES = 64  # a cache line, so that threads do not write to the same one
_JOIN_SECONDS = 1.0  # longest wait for a worker when the process ends
_KERNEL_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class ScratchSlots(NamedTuple):
    """Scratch memory with a slot per thread, in the order of the argument slots of its users.

    Attributes:
        flags: address of the flags of claimed slots, one in ``_FLAG_BYTES``.
        memory: address of the first slot, aligned to 64 bytes.
        count: number of slots.
        slot_bytes: size of a slot.
    """

    flags: int
    memory: int
    count: int
    slot_bytes: int


class ThreadPool:
    """The worker threads, which the first plan starts. The child of a fork starts new ones.

    Args:
        runtime: the core module, which has the pool's functions and state. One pool per process:
            a second one would reset that state.
        threads: number of threads that work on a job, including the caller; see ``pool_threads``.
    """

    def __init__(self, runtime: LoadedModule, threads: int) -> None:
        self.runtime = runtime
        self.threads = threads
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._slots: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._reset()

    def _reset(self) -> None:
        ctypes.CFUNCTYPE(None)(self.runtime.addresses["gf_pool_reset"])()

    def start(self) -> None:
        """Start the workers, if they do not run yet; fewer if the system does not allow more."""
        if len(self._workers) == self.threads - 1:
            return
        run = _KERNEL_PROTOTYPE(self.runtime.addresses["gf_worker"])
        with self._lock:
            while len(self._workers) < self.threads - 1:
                worker = threading.Thread(
                    target=run, args=(None, SPINS, 0), name="gpuflow-worker", daemon=True
                )
                try:
                    worker.start()
                except RuntimeError:  # a limit on threads or on address space
                    self._continue_with(len(self._workers) + 1)
                    return
                self._workers.append(worker)

    def _continue_with(self, threads: int) -> None:
        requested, self.threads = self.threads, threads
        warn(
            f"[threads] the system must let {requested} threads run; got {threads}, with which "
            "programs go on. Fix: raise the limit (ulimit -u, ulimit -v), or export "
            f"GPUFLOW_NUM_THREADS={threads}."
        )

    def stop(self) -> None:
        """Let the workers return before the process unmaps their code."""
        with self._lock:
            stop = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.runtime.addresses["gf_stop"])
            stop(len(self._workers))
            for worker in self._workers:
                worker.join(_JOIN_SECONDS)

    def reset_after_fork(self) -> None:
        """In a forked child, which has no workers: reset the pool, its lock and its slots."""
        self._lock = threading.Lock()
        self._workers = []
        for flags, _ in self._slots.values():
            flags[:] = 0
        self._reset()

    def slots(self, slot_bytes: int) -> ScratchSlots:
        """Return scratch memory: one slot per thread, which it claims while it runs a chunk.

        All users of slots of one size share the memory, which lives until the process ends.
        """
        with self._lock:
            if slot_bytes not in self._slots:
                flags = np.zeros(self.threads * _FLAG_BYTES // 8, np.int64)
                self._slots[slot_bytes] = flags, aligned_bytes(self.threads * slot_bytes)
        flags, memory = self._slots[slot_bytes]
        return ScratchSlots(address(flags), address(memory), self.threads, slot_bytes)

    def run(self, function: int, arguments: int, extent: int, chunk: int) -> None:
        """Run ``function(arguments, lo, hi)`` over ``0..extent`` in chunks, and wait for it.

        ``function`` and ``arguments`` are addresses, which must be valid during the call.
        """
        dispatch = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)
        self.start()
        dispatch(self.runtime.addresses["gf_dispatch"])(function, arguments, extent, chunk)


def pool_threads() -> int:
    """Number of threads of the pool, whether or not the pool exists yet."""
    return config.environment.num_threads if sys.platform == "linux" else 1


def pool() -> ThreadPool:
    """Return the process's only pool, of GPUFLOW_NUM_THREADS threads; the first call creates it."""
    if not pool_exists():
        with _creation_lock:
            return _cached_pool()
    return _cached_pool()


def pool_exists() -> bool:
    """Whether the pool exists."""
    return _cached_pool.cache_info().currsize > 0


@cache
def _cached_pool() -> ThreadPool:
    """The pool. The first call, which creates it, needs ``_creation_lock``."""
    created = ThreadPool(load_native(core_module(), kernel_cache()), pool_threads())
    atexit.register(created.stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=created.reset_after_fork)
    return created


_creation_lock = threading.Lock()


def _replace_creation_lock() -> None:
    """In a forked child: replace the lock, since the thread that held it may be gone."""
    global _creation_lock
    _creation_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_creation_lock)
