"""``jax._src.config``: settings as objects with a value.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base.config import config as config


class State:
    """A setting; ``value`` is its value in this thread.

    Args:
        name: of the setting.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def value(self) -> Any:
        """Its value."""
        return config.read(self.name)


def __getattr__(name: str) -> State:
    if name.startswith("_") or f"jax_{name}" not in config.names():
        raise AttributeError(name)  # missing.explain replaces it
    return State(name)
