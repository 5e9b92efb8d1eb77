"""``jax.experimental.hijax``: names that flax.nnx needs while it is imported.

It creates values and primitives of user-defined types (``Variable(hijax=True)``, which is not its
default). gpuflow does not support such types: using them raises an error.
"""

from __future__ import annotations

from typing import Any, NoReturn

from gpuflow.as_jax.internals.absent import absent_class
from gpuflow.as_jax.internals.effects import (
    control_flow_allowed_effects as control_flow_allowed_effects,
)
from gpuflow.core.aval import ShapedArray as ShapedArray
from gpuflow.core.refs import AbstractRef as AbstractRef
from gpuflow.core.rules import Zero as Zero
from gpuflow.core.rules import is_undefined as is_undefined_primal  # noqa: F401
from gpuflow.ops.zeros import instantiate as instantiate_zeros  # noqa: F401

_REASON = "values must be arrays or refs; got a custom type. Fix: hijax=False, its default."

AbstractValue = ShapedArray
AvalQDD = absent_class("jax.experimental.hijax.AvalQDD", _REASON)
AvalMutableQDD = absent_class("jax.experimental.hijax.AvalMutableQDD", _REASON)
HiPspec = absent_class("jax.experimental.hijax.HiPspec", _REASON)
TransformedRef = absent_class("jax.experimental.hijax.TransformedRef", _REASON)


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
        raise NotImplementedError(f"[{self.name}] {_REASON}")


VJPHiPrimitive = HiPrimitive


class aval_property(property):
    """A property of values that their type defines."""


class aval_method:
    """A method of values that their type defines."""

    def __init__(self, fun: Any) -> None:
        self.fun = fun


def register_hitype(cls: type, aval: Any) -> None:
    """Declare a type; no value is of it."""
    del cls, aval
