"""``CheckedCommunicator``: compares each collective with those of the other ranks (debugging).

Tests: tests/parallel/test_mismatches.py, tests/parallel/test_nccl_watch.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuflow.base.errors import CommunicationError
from gpuflow.core.communicator import Communicator, Groups, Immediate, Pairs

_TEXT_BYTES = 160


class CheckedCommunicator(Immediate):
    """A wrapper that checks that all ranks call the same collective; else the error names both.

    GPUFLOW_CHECK=1 wraps the communicators of all processes. It costs a small all_gather per call.
    """

    def __init__(self, inner: Communicator) -> None:
        self.inner: Any = inner
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self._number = 0
        self._groups: dict[Groups, CheckedCommunicator] = {}

    def _compare(self, operation: str, data: Any, *more: Any) -> None:
        self._number += 1
        about = "" if data is None else f" of {data.dtype.name}{list(data.shape)}"
        extra = "".join(f" {item}" for item in more)
        description = f"{operation} number {self._number}{about}{extra}"
        compare(self.inner, description)

    def all_reduce(self, data: Any, op: str, out: Any = None) -> Any:
        self._compare("all_reduce", data, op)
        return self.inner.all_reduce(data, op, out)

    def all_gather(self, data: Any) -> Any:
        self._compare("all_gather", data)
        return self.inner.all_gather(data)

    def reduce_scatter(self, data: Any) -> Any:
        self._compare("reduce_scatter", data)
        return self.inner.reduce_scatter(data)

    def all_to_all(self, data: Any) -> Any:
        self._compare("all_to_all", data)
        return self.inner.all_to_all(data)

    def permute(self, data: Any, pairs: Pairs) -> Any:
        self._compare("permute", data, shortened(pairs))
        return self.inner.permute(data, pairs)

    def broadcast(self, data: Any, root: int) -> Any:
        self._compare("broadcast", data, f"from {root}")
        return self.inner.broadcast(data, root)

    def barrier(self) -> None:
        self._compare("barrier", None)
        self.inner.barrier()

    def split(self, groups: Groups) -> CheckedCommunicator:
        communicator = self._groups.get(groups)
        if communicator is None:
            communicator = self._groups[groups] = CheckedCommunicator(self.inner.split(groups))
        return communicator


def compare(communicator: Any, description: str) -> None:
    """Compare the pending operations of the ranks of a communicator.

    Args:
        communicator: the communicator, of which only all_gather is used.
        description: the operation of this rank; its first word is the name of the collective.

    Raises:
        CommunicationError: if two ranks have different operations. All ranks raise.
    """
    text = description.encode()
    encoded = text[:_TEXT_BYTES].ljust(_TEXT_BYTES) + zlib.crc32(text).to_bytes(4, "little")
    rows: Any = communicator.all_gather(np.frombuffer(encoded, np.uint8))
    if hasattr(rows, "get"):  # CuPy copies to the host only on request
        rows = rows.get()
        communicator.check()  # after an abort the gathered data are garbage
    records = [bytes(row) for row in rows]
    other = next((k for k, entry in enumerate(records) if entry != records[0]), None)
    if other is None:
        return
    first, second = (
        entry[:_TEXT_BYTES].decode(errors="replace").rstrip()
        for entry in (records[0], records[other])
    )
    raise CommunicationError(
        f"[{description.split()[0]}] all ranks must call the same collectives in the same order; "
        f"got {first} on rank 0 and {second} on rank {other} ({communicator.name}). "
        "Fix: let no rank skip or reorder a collective, and give all the same shapes and dtypes."
    )


def shortened(items: Iterable[Any]) -> str:
    """A text of at most 60 characters for ranks or pairs of ranks; a checksum keeps it unique."""
    text = ", ".join(map(str, items))
    return text if len(text) <= 60 else f"{text[:49]}.. {zlib.crc32(text.encode()):08x}"
