"""Source lines of large arrays, if the process records them (GPUFLOW_SMI=1).

To find the user's line takes a microsecond and more, so that nothing is remembered otherwise, and
never for small arrays.
"""

from __future__ import annotations

import weakref
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.util import SourceLine, user_source_line

SMALLEST = 1 << 16  # bytes; as of what the CPU's pool hands out


class Origins:
    """Lines of NumPy arrays, which cannot have attributes and cannot be keys."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], SourceLine]] = {}

    def note(self, data: Any) -> None:
        """Remember that the user's line has made an array."""
        line = user_source_line()
        if line is None:
            return
        key, known = id(data), self._known

        def forget(reference: weakref.ref[Any]) -> None:
            pair = known.get(key)
            if pair is not None and pair[0] is reference:  # or another array has its place
                known.pop(key, None)

        known[key] = weakref.ref(data, forget), line

    def of(self, data: Any) -> SourceLine | None:
        """The line that made an array, or the memory that it is a view of."""
        while data is not None:
            pair = self._known.get(id(data))
            if pair is not None and pair[0]() is data:
                return pair[1]
            data = getattr(data, "base", None)
        return None


origins = Origins() if config.environment.smi else None
