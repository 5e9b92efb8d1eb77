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
_kept: list[mmap.mmap] = []  # views of them live as long as the tests


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy that ends where a page that may not be read begins, or begins where one ends."""
    page = mmap.PAGESIZE
    pages = max(1, -(-array.nbytes // page))
    memory = mmap.mmap(-1, (pages + 2) * page)
    _kept.append(memory)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for place in (begin, begin + (pages + 1) * page):
        assert protect(ctypes.c_void_p(place), ctypes.c_size_t(page), 0) == 0
    first = page + (pages * page - array.nbytes if at_end else 0)
    bytes_ = np.frombuffer(memory, np.uint8, array.nbytes, first)
    copy = bytes_.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
