"""Source lines that created large arrays, recorded with GPUFLOW_SMI=1.

Finding the user's location takes a microsecond or more, so it is recorded only with that setting,
and never for small arrays.

Tests: tests/cli/test_smi.py.
"""

from __future__ import annotations

import weakref
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.util import SourceLocation, user_source_location

MIN_RECORDED_BYTES = 1 << 16  # bytes; also the smallest block of the CPU's pool


class Origins:
    """A weak dict from NumPy array to source location.

    Arrays cannot have attributes and are not hashable, so ids are keys.
    """

    def __init__(self) -> None:
        self._sources: dict[int, tuple[weakref.ref[Any], SourceLocation]] = {}

    def note(self, data: Any) -> None:
        """Record the user's current location for an array."""
        source = user_source_location()
        if source is None:
            return
        key, sources = id(data), self._sources

        def forget(reference: weakref.ref[Any]) -> None:
            pair = sources.get(key)
            if pair is not None and pair[0] is reference:  # else another array has this id now
                sources.pop(key, None)

        sources[key] = weakref.ref(data, forget), source

    def of(self, data: Any) -> SourceLocation | None:
        """The location that created an array, or the array of which it is a view."""
        while data is not None:
            pair = self._sources.get(id(data))
            if pair is not None and pair[0]() is data:
                return pair[1]
            data = getattr(data, "base", None)
        return None


origins = Origins() if config.environment.smi else None
