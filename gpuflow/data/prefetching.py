"""Prefetching: another thread makes batches and puts them on devices, while a step runs.

    iterator --> worker thread --> queue of a few batches --> consumer

The worker references the queue, not the consumer's end of it: when that is closed or
garbage-collected, or the interpreter ends, the worker is notified, and stops after its current
batch.

Tests: tests/test_data.py.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from gpuflow.base import tree
from gpuflow.base.config import Blocks, config
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.data.batching import Batches
from gpuflow.data.foreign import to_device
from gpuflow.parallel.placement import as_sharding

# How long to wait for a worker whose iterator is in the middle of something, in seconds.
_PATIENCE = 5.0
# Interval at which a waiting consumer checks that the worker is alive, in seconds.
_LOOK = 1.0


@record
class _End:
    """After the last batch.

    Attributes:
        error: the error that stopped the iterator, if it did not end by itself.
    """

    error: BaseException | None = None


class _Queue:
    """Bounded queue of batches, between two threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self.is_closed = False

    def wait_for_slot(self) -> bool:
        """Wait for a free slot; False if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or len(self._items) < self._size)
            return not self.is_closed

    def put(self, item: Any) -> None:
        """Put a batch in the slot that ``wait_for_slot`` found."""
        with self._changed:
            if not self.is_closed:
                self._items.append(item)
                self._changed.notify_all()

    def get(self, worker: threading.Thread) -> Any:
        """Wait for the next batch, or the end.

        Raises:
            RuntimeError: the worker is gone: this is a child that was forked.
        """
        with self._changed:
            while not self._items:
                if self.is_closed:
                    return _End()
                check(
                    worker.is_alive(),
                    lambda: (
                        "[prefetch_to_device] batches must be taken in the process that makes "
                        "them; got a forked child. Fix: call prefetch_to_device in the child."
                    ),
                    RuntimeError,
                )
                self._changed.wait(_LOOK)
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Release all batches, and notify both threads."""
        with self._changed:
            self.is_closed = True
            self._items.clear()
            self._changed.notify_all()


def _work(
    iterator: Iterator[Any], sharding: Any, is_own: bool, queue: _Queue, blocks: Blocks
) -> None:
    """Make batches until the iterator ends or the queue is closed."""
    try:
        with config.within(blocks):
            while queue.wait_for_slot():
                try:
                    batch = next(iterator)
                except StopIteration:
                    queue.put(_End())
                    return
                queue.put(_on_device(batch, sharding, is_own))
    except BaseException as error:
        error.add_note("[prefetch_to_device] raised in the thread that makes batches.")
        queue.put(_End(error))
    finally:
        _running.pop(threading.current_thread(), None)


def _on_device(batch: Any, sharding: Any, is_own: bool) -> Any:
    """A batch with its arrays on their devices."""
    leaves, structure = tree.flatten(batch)
    if sharding is None:
        return tree.unflatten(structure, [to_device(leaf, None, is_own) for leaf in leaves])
    op = "prefetch_to_device"
    targets = [as_sharding(target, op) for target in tree.broadcast_prefix(sharding, batch, op)]
    pairs = zip(leaves, targets, strict=True)
    return tree.unflatten(structure, [to_device(leaf, target, is_own) for leaf, target in pairs])


# Running workers, and their queues.
_running: dict[threading.Thread, _Queue] = {}
os.register_at_fork(after_in_child=_running.clear)


def _stop_all() -> None:
    """Stop all workers before the interpreter shuts down."""
    running = list(_running.items())
    for _, queue in running:
        queue.close()
    for thread, _ in running:
        thread.join(_PATIENCE)


atexit.register(_stop_all)


class Prefetched:
    """Iterator over batches that a background thread prepares, returned by ``prefetch_to_device``.

    The thread ends when the iterator is exhausted, closed, left as a ``with`` block, or
    garbage-collected.
    """

    def __init__(self, iterable: Iterable[Any], size: int, sharding: Any) -> None:
        self._queue = _Queue(size)
        # A daemon: the interpreter does not wait for an iterator that never comes back.
        self._worker = threading.Thread(
            target=_work,
            name="gpuflow-prefetch",
            daemon=True,
            args=(
                iter(iterable),
                sharding,
                isinstance(iterable, Batches),
                self._queue,
                config.blocks(),
            ),
        )
        _running[self._worker] = self._queue
        weakref.finalize(self, self._queue.close).atexit = False
        self._worker.start()

    def __iter__(self) -> Prefetched:
        return self

    def __next__(self) -> Any:
        item = self._queue.get(self._worker)
        if not isinstance(item, _End):
            return item
        self.close()
        if item.error is not None:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """Release prefetched batches, and stop the thread.

        It returns when the thread has finished its current batch, or after five seconds; the thread
        then ends by itself.
        """
        self._queue.close()
        if self._worker is not threading.current_thread():
            self._worker.join(_PATIENCE)

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def prefetch_to_device(
    iterator: Iterable[Any], size: int = 2, *, sharding: Any = None
) -> Prefetched:
    """Iterate over batches that a background thread loads and copies to devices in advance.

    The thread takes batches from the iterator in order. On a GPU it copies them through pinned
    memory, on a separate stream (see ``docs/data.md`` for measurements).

    Args:
        iterator: any iterable of pytrees: ``batches(...)``, a torch DataLoader, a generator. Leaves
            are scalars, or arrays of NumPy, gpuflow or a library with ``__dlpack__`` or
            ``__array__``. Other leaves, such as strings, are passed unchanged. Arrays are copied,
            so the iterator may reuse its buffers; arrays of ``batches`` are not copied.
        size: maximum number of batches that are ready or in preparation.
        sharding: a Device, Sharding or PartitionSpec for all leaves, or a tree prefix of them; None
            uses the default device.

    Returns:
        A Prefetched: an iterator of pytrees of Arrays, and a context manager that closes it.

    Raises:
        TypeError: if ``iterator`` is not iterable.
        ValueError: if ``size`` is below 1.
        Exception: when you take a batch, errors of the iterator or of copying in the thread are
            raised with their traceback, after the batches that came before.

    Cost: the memory of ``size`` additional batches.

    Example:
        >>> import numpy as np
        >>> from gpuflow import data
        >>> rows = data.batches({"x": np.arange(6.0)}, 4)
        >>> with data.prefetch_to_device(rows) as ready:
        ...     for batch in ready:
        ...         print(batch["x"])
        [0. 1. 2. 3.]
        [4. 5.]
    """
    check(
        isinstance(size, int) and not isinstance(size, bool) and size >= 1,
        lambda: (
            f"[prefetch_to_device] size must be an integer of at least 1; got {size!r}. "
            "Fix: size=2."
        ),
        ValueError,
    )
    check(
        hasattr(iterator, "__iter__") or hasattr(iterator, "__getitem__"),
        lambda: (
            f"[prefetch_to_device] iterator must be one, or give one; got a "
            f"{type(iterator).__name__}. Fix: data.batches(arrays, batch_size), or a generator."
        ),
    )
    return Prefetched(iterator, size, sharding)
