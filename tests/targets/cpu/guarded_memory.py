"""Arrays at the border of what is mapped: whoever reads past them dies, or takes long."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest

needs_guards = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory is protected by mprotect"
)
_regions: list[Region] = []  # views of them live as long as the tests


class Region:
    """Memory between two pages that may not be read or written.

    Args:
        size: bytes that it has at least.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        pages = max(1, -(-size // page))
        self._memory = mmap.mmap(-1, (pages + 2) * page)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for guard in (begin, begin + (pages + 1) * page):
            assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        self.bytes = np.frombuffer(self._memory, np.uint8, pages * page, page)

    def put(self, array: np.ndarray, at_end: bool) -> np.ndarray:
        """A copy that ends where the memory ends, or begins where it begins."""
        start = self.start(array.nbytes, at_end)
        copy = self.bytes[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def start(self, size: int, at_end: bool) -> int:
        """The offset of such a copy of so many bytes."""
        return self.bytes.size - size if at_end else 0


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy that ends where a page that may not be read begins, or begins where one ends."""
    _regions.append(Region(array.nbytes))
    return _regions[-1].put(array, at_end)
