"""What the rules of a primitive receive besides values: symbolic zeros, unknowns, mapped axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuflow.core.aval import ShapedArray, aval_of


@dataclass(frozen=True)
class Zero:
    """A tangent or cotangent that is known to be zero and was never made."""

    aval: ShapedArray


def zero_tangent(primal: Any) -> Zero:
    """The zero tangent of ``primal``."""
    return Zero(aval_of(primal).tangent())


@dataclass(frozen=True)
class UndefinedPrimal:
    """An operand with respect to which an equation is transposed."""

    aval: ShapedArray


def is_undefined(value: Any) -> bool:
    """Whether ``value`` is an operand to transpose with respect to."""
    return type(value) is UndefinedPrimal


@dataclass(frozen=True)
class AxisData:
    """The axis that a vmap maps over. ``name`` is None for an anonymous one."""

    name: Any
    size: int
    spmd_name: Any = None
