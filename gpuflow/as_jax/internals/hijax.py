"""``jax.experimental.hijax``: classes that flax.nnx needs while it is imported.

It creates values and primitives of user-defined types (``Variable(hijax=True)``, which is not its
default). gpuflow does not support such types: using them raises an error.

Tests: tests/test_as_jax_names.py, tests/test_as_jax_table.py.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gpuflow.as_jax.surfaces import REASONS


class HiType:
    """A user-defined type: it can be declared, but no value has it."""


class MutableHiType(HiType):
    """A user-defined type with mutable values."""


class HiPrimitive:
    """An operation on such values: it can be declared, not applied."""

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Raise NotImplementedError: there are no values of such types."""
        del args, params
        raise NotImplementedError(f"[{self.name}] {REASONS['hijax']}")


class aval_property(property):
    """A property of values that their type defines."""


class aval_method:
    """A method of values that their type defines."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun


def register_hitype(cls: type, aval: Any) -> None:
    """Declare a type; no value is of it."""
    del cls, aval
