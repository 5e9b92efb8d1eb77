"""Copies between host and GPU: small ones in order with kernels, large ones concurrently.

Large copies have a separate stream and go through pinned memory, piece by piece: the device copies
one piece while the host fills or empties another.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent, GpuApi

# CUDA takes up to so many bytes of pageable memory at once and returns (the CUDA Runtime's
# documentation on asynchronous copies); larger ones would wait for the stream.
SMALL = 1 << 16
_PIECE = 1 << 22
_PIECES = 4


class Transfers:
    """The copies of one device.

    Args:
        api: of the device.
        compute: the stream that kernels run on.

    Attributes:
        stream: that large copies run on.
    """

    def __init__(self, api: GpuApi, compute: int) -> None:
        self._api, self._compute = api, compute
        self.stream = api.stream()
        self._lock = threading.Lock()
        self._pieces: list[np.ndarray] = []
        self._marks: list[DeviceEvent] = []
        self._next = 0

    def to_device(self, target: int, source: np.ndarray) -> None:
        """Copy a row-major array; kernels that are launched later see it.

        A large one must go to memory of the pool of ``stream`` that is guarded for kernels.
        """
        if source.nbytes <= SMALL:
            if source.nbytes:
                self._api.copy_in(target, address(source), source.nbytes, self._compute)
            return
        data = _bytes_of(source)
        with self._lock:
            for start in range(0, len(data), _PIECE):
                part = data[start : start + _PIECE]
                number = self._free_piece()
                piece = self._pieces[number]
                np.copyto(piece[: len(part)], part)
                self._api.copy_in(target + start, address(piece), len(part), self.stream)
                self._marks[number] = self._api.event(self.stream)
        self._api.wait_event(self._compute, self._api.event(self.stream))

    def to_host(self, target: np.ndarray, source: int) -> None:
        """Copy to a row-major array, after previously launched kernels."""
        if target.nbytes <= SMALL:
            if target.nbytes:
                self._api.copy_out(address(target), source, target.nbytes, self._compute)
                self._api.synchronize(self._compute)
            return
        data = _bytes_of(target)
        self._api.wait_event(self.stream, self._api.event(self._compute))
        with self._lock:
            under_way: deque[tuple[int, np.ndarray]] = deque()
            for start in range(0, len(data), _PIECE):
                part = data[start : start + _PIECE]
                if len(under_way) == _PIECES:
                    self._empty_piece(*under_way.popleft())
                number = self._free_piece()
                place = address(self._pieces[number])
                self._api.copy_out(place, source + start, len(part), self.stream)
                self._marks[number] = self._api.event(self.stream)
                under_way.append((number, part))
            while under_way:
                self._empty_piece(*under_way.popleft())

    def _free_piece(self) -> int:
        """The number of a piece of pinned memory that no copy uses."""
        if not self._pieces:
            self._pieces = [self._api.pinned(_PIECE) for _ in range(_PIECES)]
            self._marks = [None] * _PIECES
        number = self._next
        self._next = (number + 1) % _PIECES
        if self._marks[number] is not None:
            self._api.synchronize_event(self._marks[number])
        return number

    def _empty_piece(self, number: int, part: np.ndarray) -> None:
        self._api.synchronize_event(self._marks[number])
        np.copyto(part, self._pieces[number][: len(part)])


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The memory of a row-major array."""
    return array.reshape(-1).view(np.uint8)
