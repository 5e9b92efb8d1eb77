"""Modules that are imported at their first use, so that importing gpuflow stays cheap.

Tests: tests/test_import.py.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Placeholder of a module until one of its attributes is accessed, in any thread.

    Type checkers see the module itself: ``if TYPE_CHECKING: import it``.

    Args:
        name: of a module that is installed.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value
