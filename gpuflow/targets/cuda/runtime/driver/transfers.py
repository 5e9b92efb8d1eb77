"""Copies between host and GPU: small ones on the compute stream, large ones concurrently.

Large copies have a separate stream. They go in chunks through pinned staging buffers: the device
copies one buffer while the host fills or drains another.

Tests: tests/targets/cuda/test_cuda_driver.py.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.runtime.driver.api import DeviceEvent, GpuApi

# Most bytes of a small copy. CUDA stages copies of pageable memory up to this size and returns (the
# CUDA Runtime's documentation on asynchronous copies); larger ones would wait for the stream.
SMALL = 1 << 16
_CHUNK_BYTES = 1 << 22
_STAGING_BUFFERS = 4


class Transfers:
    """The copies of one device; thread-safe.

    Args:
        api: the device.
        compute: the compute stream.

    Attributes:
        stream: the stream of large copies.
    """

    def __init__(self, api: GpuApi, compute: int) -> None:
        self._api, self._compute = api, compute
        self.stream = api.stream()
        self._lock = threading.Lock()
        self._buffers: list[np.ndarray] = []  # pinned; empty until the first large copy
        self._events: list[DeviceEvent] = []  # after the last copy from or to each buffer
        self._next = 0  # index of the least recently used buffer

    def to_device(self, target: int, source: np.ndarray) -> None:
        """Copy a row-major array to an address; kernels that are launched later see it.

        The target of a large copy must be from the pool of ``stream``, and recorded
        (``DeviceAllocator.record_stream``) for the compute stream.
        """
        if source.nbytes <= SMALL:
            if source.nbytes:
                self._api.copy_in(target, address(source), source.nbytes, self._compute)
            return
        data = _bytes_of(source)
        with self._lock:
            for start in range(0, len(data), _CHUNK_BYTES):
                chunk = data[start : start + _CHUNK_BYTES]
                index = self._free_buffer()
                buffer = self._buffers[index]
                np.copyto(buffer[: len(chunk)], chunk)
                self._api.copy_in(target + start, address(buffer), len(chunk), self.stream)
                self._events[index] = self._api.event(self.stream)
        self._api.wait_event(self._compute, self._api.event(self.stream))

    def to_host(self, target: np.ndarray, source: int) -> None:
        """Copy from an address to a row-major array, after the kernels launched so far; waits."""
        if target.nbytes <= SMALL:
            if target.nbytes:
                self._api.copy_out(address(target), source, target.nbytes, self._compute)
                self._api.synchronize(self._compute)
            return
        data = _bytes_of(target)
        self._api.wait_event(self.stream, self._api.event(self._compute))
        with self._lock:
            pending: deque[tuple[int, np.ndarray]] = deque()
            for start in range(0, len(data), _CHUNK_BYTES):
                chunk = data[start : start + _CHUNK_BYTES]
                if len(pending) == _STAGING_BUFFERS:
                    self._drain_buffer(*pending.popleft())
                index = self._free_buffer()
                buffer_address = address(self._buffers[index])
                self._api.copy_out(buffer_address, source + start, len(chunk), self.stream)
                self._events[index] = self._api.event(self.stream)
                pending.append((index, chunk))
            while pending:
                self._drain_buffer(*pending.popleft())

    def _free_buffer(self) -> int:
        """Wait for the least recently used staging buffer; returns its index.

        The lock must be held.
        """
        if not self._buffers:
            self._buffers = [self._api.pinned(_CHUNK_BYTES) for _ in range(_STAGING_BUFFERS)]
            self._events = [None] * _STAGING_BUFFERS
        index = self._next
        self._next = (index + 1) % _STAGING_BUFFERS
        if self._events[index] is not None:
            self._api.synchronize_event(self._events[index])
        return index

    def _drain_buffer(self, index: int, chunk: np.ndarray) -> None:
        self._api.synchronize_event(self._events[index])
        np.copyto(chunk, self._buffers[index][: len(chunk)])


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """The bytes of a row-major array, without a copy."""
    return array.reshape(-1).view(np.uint8)
