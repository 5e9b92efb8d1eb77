"""The caches of this process, each with a name, a bound and a count of entries.

``cache`` and ``lru_cache`` are those of functools, and register what they return. Functions inside
functions use functools': the registry would keep their values alive.

Tests: tests/base/test_caches.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any, NamedTuple


class CacheSize(NamedTuple):
    """The size of a cache.

    Attributes:
        name: module and name of a function, or the values of a table in words.
        entries: count of cached values.
        bound: the most entries; None: as many as there are different keys.
    """

    name: str
    entries: int
    bound: int | None


_sizes: dict[str, Callable[[], tuple[int, int | None]]] = {}


def cache_sizes() -> list[CacheSize]:
    """The caches that are not empty, the largest first."""
    sizes = [CacheSize(name, *size()) for name, size in list(_sizes.items())]
    return sorted([size for size in sizes if size.entries], key=lambda size: -size.entries)


def register_table(name: str, table: Sized, bound: int | None = None) -> None:
    """Register a mapping that is a cache.

    Args:
        name: its values in words.
        table: the mapping; it must stay the same object.
        bound: the most entries.
    """
    _sizes[name] = lambda: (len(table), bound)


if TYPE_CHECKING:
    from functools import cache, lru_cache
else:

    def cache(function: Callable[..., Any]) -> Any:
        """``functools.cache``, registered."""
        return _registered(function, functools.cache(function))

    def lru_cache(maxsize: int, typed: bool = False) -> Any:
        """``functools.lru_cache``, registered."""

        def decorate(function: Callable[..., Any]) -> Any:
            return _registered(function, functools.lru_cache(maxsize, typed)(function))

        return decorate


def _registered(function: Callable[..., Any], cached: Any) -> Any:
    def size() -> tuple[int, int | None]:
        info = cached.cache_info()
        return info.currsize, info.maxsize

    _sizes[f"{function.__module__}.{function.__qualname__}"] = size
    return cached


__all__ = ["CacheSize", "cache", "cache_sizes", "lru_cache", "register_table"]
