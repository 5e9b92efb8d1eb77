"""Communicators: data exchange between memories, and the communicator of each named axis.

A named axis may have a factor whose neighbors share no memory (docs/design/0016-many-devices.md).
Such a factor is named by an ``Across``; vmap does not remove it, and the ``impl`` of a collective
gets its communicator from ``communicator_of``.

Tests: tests/parallel/test_nccl_streams.py, tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from gpuflow.base.caches import lru_cache
from gpuflow.base.errors import CommunicationError
from gpuflow.base.records import record

Groups = tuple[tuple[int, ...], ...]
Pairs = Sequence[tuple[int, int]]

PROCESSES = "processes"  # the key of all processes of a program, in the order of their ranks
HOSTS = "hosts"  # the same processes, for data in the host's memory
DRIVERS = "drivers"  # the key of memories that run a program jointly, several of a process


@record
class Across:
    """The factor of a named axis along which neighbors share no memory.

    Attributes:
        name: the user's name of the axis.
        key: the key of the registered communicator.
        groups: the communicator's ranks in independent groups; None: one group of all.
    """

    name: Any
    key: Hashable = PROCESSES
    groups: Groups | None = None


@record
class Within:
    """The factor of a named axis whose devices are elements of one batch: a name for vmap."""

    name: Any


class Communicator(Protocol):
    """Collectives of some ranks over arrays that their memories hold.

    Every rank calls the same methods in the same order, with data of one shape and dtype. Data are
    the driver's form of arrays, and results are separate row-major arrays. Sums of 16-bit floats
    are computed in float32, or, by NCCL, in their own dtype: then each addition rounds. Sums have
    equal bits on all ranks.

    Attributes:
        rank: of this caller, from 0.
        size: the number of ranks.
        name: for messages.
    """

    rank: int
    size: int
    name: str

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        """The "sum", "max" or "min" of all ranks' data; in ``out``, a row-major array, if given."""
        ...

    def begin(self, data: Any, op: str, out: Any) -> None:
        """Begin an ``all_reduce`` into ``out``; neither array may be touched before ``end``."""
        ...

    def end(self, out: Any) -> None:
        """Wait for the operations that were started into ``out``."""
        ...

    def all_gather(self, data: Any) -> Any:
        """``[size, *shape]``: the data of all ranks, in order."""
        ...

    def reduce_scatter(self, data: Any) -> Any:
        """``[*shape]`` of data ``[size, *shape]``: chunk k of the sum goes to rank k."""
        ...

    def all_to_all(self, data: Any) -> Any:
        """``[size, *shape]`` of data of this shape: chunk k goes to rank k, chunks in order."""
        ...

    def permute(self, data: Any, pairs: Pairs) -> Any:
        """Return the data sent to this rank by (source, target) pairs; zeros if there are none."""
        ...

    def broadcast(self, data: Any, root: int) -> Any:
        """The data of rank ``root``."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        ...

    def split(self, groups: Groups) -> Communicator:
        """The communicator of this rank's group; ranks there are positions in the group."""
        ...


class Immediate:
    """A communicator that completes each operation immediately."""

    def begin(self: Any, data: Any, op: str, out: Any) -> None:
        self.all_reduce(data, op, out)

    def end(self, out: Any) -> None:
        del out


# --- unfinished sums of failed programs ----------------------------------------------------


class Settling(Protocol):
    """An object that starts asynchronous sums."""

    def settle(self) -> None:
        """Wait for the sums that this thread started and will not end, and forget them."""
        ...


_settling: WeakSet[Settling] = WeakSet()
_settling_lock = threading.Lock()


def watch(one: Settling) -> None:
    """Register an object for ``settle``, as long as it lives."""
    with _settling_lock:
        _settling.add(one)


def settle() -> None:
    """Wait for all started sums, before their arrays are reused."""
    with _settling_lock:
        watched = list(_settling)
    for one in watched:
        one.settle()


# --- one program over several memories of a process at a time ------------------------------

_dispatch_lock = threading.Lock()


def dispatch_lock() -> threading.Lock:
    """The lock to hold while work is queued on several devices that wait for one another.

    Otherwise two threads could queue their work in different orders, and each device would wait
    for work that is queued after the other's wait: a deadlock.
    """
    return _dispatch_lock


def _reset_lock() -> None:
    """In a forked child: the thread that may have held the lock is gone."""
    global _dispatch_lock
    _dispatch_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)


# --- the communicator of a factor of an axis -----------------------------------------------


class _Local(threading.local):
    """Communicators of this thread, before those of the process."""

    def __init__(self) -> None:
        self.served: dict[Hashable, Communicator] = {}


_process: dict[Hashable, Communicator] = {}
_local = _Local()


def serve(key: Hashable, communicator: Communicator | None) -> None:
    """Register the communicator of a key for all threads; None removes it."""
    if communicator is None:
        _process.pop(key, None)
    else:
        _process[key] = communicator


@contextmanager
def serving(key: Hashable, communicator: Communicator) -> Iterator[None]:
    """Register the communicator of a key for this thread, inside the block."""
    before = _local.served
    _local.served = {**before, key: communicator}
    try:
        yield
    finally:
        _local.served = before


def served(key: Hashable) -> Communicator | None:
    """The communicator of a key in this thread, if there is one."""
    return _local.served.get(key) or _process.get(key)


def communicator_of(op: str, names: Sequence[Any]) -> Communicator | None:
    """The communicator of the axes ``names``, row-major; None if a name is not such an axis.

    Several axes have one communicator: one all-reduce over 4 x 2 ranks sends 1.75 times the data,
    one over 4 and then one over 2 sends 2.5 times.

    Raises:
        CommunicationError: an axis has no communicator, or the axes have different keys.
    """
    if not all(isinstance(name, Across) for name in names):
        return None
    return _serving(op, names[0] if len(names) == 1 else product_axis(op, tuple(names)))


@lru_cache(1024)
def product_axis(op: str, axes: tuple[Across, ...]) -> Across:
    """The row-major product of several axes of a mesh, as one ``Across``."""
    first, *others = axes
    if len({axis.key for axis in axes}) > 1 or any(axis.groups is None for axis in axes):
        raise CommunicationError(
            f"[{op}] the axes of a collective must be those of one mesh; got "
            f"{[axis.name for axis in axes]} of {[axis.key for axis in axes]}. "
            "Fix: one collective after another, each over the axes of one mesh."
        )
    groups = first.groups or ()
    for axis in others:
        along = {rank: group for group in axis.groups or () for rank in group}
        products = (tuple(r for rank in group for r in along[rank]) for group in groups)
        groups = tuple(dict.fromkeys(products))  # all groups of one product give the same
    return Across(tuple(axis.name for axis in axes), first.key, groups)


def _serving(op: str, axis: Across) -> Communicator:
    communicator = served(axis.key)
    if communicator is None:
        raise CommunicationError(
            f"[{op}] the axis {axis.name!r} must be served by a communicator; got none for "
            f"{axis.key!r}. Fix: call distributed.initialize() before the program."
        )
    if axis.groups in (None, (tuple(range(communicator.size)),)):
        return communicator
    return communicator.split(axis.groups)
