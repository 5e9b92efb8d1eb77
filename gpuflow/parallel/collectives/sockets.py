"""``SocketCommunicator``: collectives over sockets for CPU processes on one or more machines.

Large sums use the ring all-reduce (Patarasuk and Yuan, 2009). In its reduce-scatter phase, each
rank receives a partial sum of one chunk and adds its own data while more data arrive. In its
all-gather phase, complete chunks are sent around. All other collectives exchange data directly. The
order of additions depends only on sizes and ranks, so results are deterministic and equal on all
ranks.

Tests: tests/parallel/test_communicators.py, tests/parallel/test_mismatches.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.core.communicator import Groups, Immediate, Pairs
from gpuflow.parallel.collectives.checked import shortened
from gpuflow.parallel.collectives.combine import (
    OPERATIONS,
    bytes_of,
    combine,
    contiguous,
    empty,
    finished,
    output_for,
    working_dtype,
)
from gpuflow.parallel.processes.transfers import Call, Links, Receipt

# Smaller sums are exchanged directly: the latency of the ring's steps would dominate.
DIRECT_BYTES = 1 << 15
# Received data are added in blocks that fit a core's cache.
BLOCK_BYTES = 1 << 18


class SocketCommunicator(Immediate):
    """Collectives of processes that are connected by sockets; data are NumPy arrays.

    Args:
        links: connections of this process.
        members: for each rank of the communicator the rank of the process.
        name: name of the communicator, for messages.
    """

    def __init__(self, links: Links, members: tuple[int, ...], name: str = "processes") -> None:
        self.rank = members.index(links.rank)
        self.size = len(members)
        self.name = name
        self._links = links
        self._members = members
        self._among = "" if self.size == links.size else f" among {shortened(members)}"
        self._number = 0
        self._groups: dict[Groups, SocketCommunicator] = {}

    def _call(self, operation: str, array: np.ndarray | None = None, how: str = "") -> Call:
        self._number += 1
        of = "" if array is None else _described(array.dtype, array.shape)
        return Call(operation, self._number, f"{how and f' ({how})'}{of}{self._among}")

    def _others(self) -> list[int]:
        """The other ranks, starting with the next one, so that not all send to the same rank."""
        return [(self.rank + k) % self.size for k in range(1, self.size)]

    def _exchange_with_all(
        self, call: Call, data_for: Callable[[int], np.ndarray], into: np.ndarray
    ) -> None:
        """Send ``data_for(k)`` to each rank k, and receive its data in ``into[k]``."""
        sends = [(self._members[k], bytes_of(data_for(k))) for k in self._others()]
        receipts = [Receipt(self._members[k], bytes_of(into[k : k + 1])) for k in self._others()]
        self._links.exchange(call, sends, receipts)
        into[self.rank] = data_for(self.rank)

    def all_reduce(self, data: Any, op: str, out: np.ndarray | None = None) -> np.ndarray:
        array = contiguous(data)
        if self.size == 1:
            return combine([array], op, array.dtype, out)
        with self._links.lock:
            call = self._call("all_reduce", array, op)
            if array.nbytes <= DIRECT_BYTES:
                received = np.empty((self.size, *array.shape), array.dtype)
                self._exchange_with_all(call, lambda _: array, received)
                return combine(received, op, array.dtype, out)
            working = array.astype(working_dtype(array.dtype), copy=False)
            total = output_for(working, out)
            self._ring(call, working.reshape(-1), total.reshape(-1), op)
        return finished(total, array.dtype, out)

    def _ring(self, call: Call, local: np.ndarray, total: np.ndarray, op: str) -> None:
        """Ring all-reduce of flat arrays with at least as many elements as there are ranks."""
        size, function = self.size, OPERATIONS[op]
        after = self._members[(self.rank + 1) % size]
        before = self._members[(self.rank - 1) % size]
        bounds = [k * local.size // size for k in range(size + 1)]

        def chunk(array: np.ndarray, k: int) -> np.ndarray:
            return array[bounds[k % size] : bounds[k % size + 1]]

        spare = empty((int(max(np.diff(bounds))),), local.dtype)
        for step in range(size - 1):
            sent = chunk(total if step else local, self.rank - step)
            k = self.rank - step - 1
            arriving = spare[: chunk(local, k).size]
            add = _adder(function, chunk(local, k), arriving, chunk(total, k))
            receipt = Receipt(before, bytes_of(arriving), add)
            self._links.exchange(call, [(after, bytes_of(sent))], [receipt])
        for step in range(size - 1):
            sent, arriving = chunk(total, self.rank + 1 - step), chunk(total, self.rank - step)
            receipt = Receipt(before, bytes_of(arriving))
            self._links.exchange(call, [(after, bytes_of(sent))], [receipt])

    def all_gather(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        result = empty((self.size, *array.shape), array.dtype)
        with self._links.lock:
            self._exchange_with_all(self._call("all_gather", array), lambda _: array, result)
        return result

    def reduce_scatter(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        received = empty(array.shape, array.dtype)
        with self._links.lock:
            call = self._call("reduce_scatter", array)
            self._exchange_with_all(call, lambda k: array[k], received)
        return combine(received, "sum", array.dtype)

    def all_to_all(self, data: Any) -> np.ndarray:
        array = contiguous(data)
        result = empty(array.shape, array.dtype)
        with self._links.lock:
            self._exchange_with_all(self._call("all_to_all", array), lambda k: array[k], result)
        return result

    def permute(self, data: Any, pairs: Pairs) -> np.ndarray:
        array = contiguous(data)
        result = np.zeros_like(array)
        sends, receipts = [], []
        for source, target in pairs:
            if source == target == self.rank:
                result[...] = array
            elif source == self.rank:
                sends.append((self._members[target], bytes_of(array)))
            elif target == self.rank:
                receipts.append(Receipt(self._members[source], bytes_of(result)))
        with self._links.lock:
            call = self._call("permute", array, shortened(pairs))
            self._links.exchange(call, sends, receipts)
        return result

    def broadcast(self, data: Any, root: int) -> np.ndarray:
        result = contiguous(data).copy()
        payload, nothing = bytes_of(result), memoryview(b"")
        source = self._members[root]
        with self._links.lock:
            call = self._call("broadcast", result, f"from {root}")
            if self.rank == root:
                others = [self._members[k] for k in self._others()]
                sends = [(peer, payload) for peer in others]
                receipts = [Receipt(peer, memoryview(bytearray())) for peer in others]
            else:
                # An empty message to the root, whose header checks the call. No messages to other
                # ranks: if ranks disagree about the root, they could wait for each other.
                sends, receipts = [(source, nothing)], [Receipt(source, payload)]
            self._links.exchange(call, sends, receipts)
        return result

    def barrier(self) -> None:
        nothing = np.empty((self.size, 0), np.uint8)
        with self._links.lock:
            self._exchange_with_all(self._call("barrier"), lambda k: nothing[k], nothing)

    def split(self, groups: Groups) -> SocketCommunicator:
        communicator = self._groups.get(groups)
        if communicator is None:
            (ranks,) = [group for group in groups if self.rank in group]
            members = tuple(self._members[k] for k in ranks)
            communicator = SocketCommunicator(self._links, members, f"{self.name} {ranks}")
            self._groups[groups] = communicator
        return communicator


@lru_cache(512)
def _described(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    return f" of {dtype.name}{list(shape)}"


def _adder(
    function: Callable[..., Any], local: np.ndarray, arriving: np.ndarray, total: np.ndarray
) -> Callable[[int], None]:
    """A callback that adds received data in blocks; its argument is the number of bytes so far."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        here = count // local.itemsize
        if (here - done) * local.itemsize < BLOCK_BYTES and here < local.size:
            return
        function(local[done:here], arriving[done:here], out=total[done:here])
        done = here

    return add
