"""A table of recently used values.

Tests: tests/base/test_recent.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A least recently used cache of at most ``most`` values.

    While it is at most half full, a lookup costs as much as in a dict. Any thread may use it; there
    is no lock that a fork could leave locked. In the worst case a lookup misses a value that
    another thread moves at that moment.

    Args:
        most: the maximum number of values.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[K, V] = {}  # in the order of their use

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._values))

    def get(self, key: K) -> V | None:
        """The value of ``key``, or None.

        Raises:
            TypeError: ``key`` cannot be hashed.
        """
        value = self._values.get(key)
        if value is not None and len(self._values) > self._most // 2:
            self._values.pop(key, None)
            self._values[key] = value  # as the most recent one
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value, which is not None."""
        self._values[key] = value
        while len(self._values) > self._most:
            try:
                oldest = next(iter(self._values))
            except (RuntimeError, StopIteration):  # another thread changes it
                continue
            old = self._values.pop(oldest, None)
            if old is not None:
                self.drop(old)

    def drop(self, value: V) -> None:
        """Called with each evicted value."""

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
