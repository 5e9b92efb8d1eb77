"""Attributes that are computed once, without a lock.

``functools.cached_property`` of Python 3.11 has one lock for all instances of a class, which it
holds while it computes: other threads wait, and a child that is forked meanwhile waits for ever.
From 3.12 on it is as the one here.

Tests: tests/base/test_cached.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """A method whose result becomes an attribute of its instance.

        Two threads that ask at the same time may each compute it; the last one's is kept.
        """

        def __init__(self, function: Any) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._function(instance)
            return value


__all__ = ["cached_property"]
