"""Special arguments of a primitive's rules: symbolic zeros, unknowns, mapped axes.

Tests: tests/ops/test_every_op.py, tests/ops/test_elementwise_rules.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base.records import record
from gpuflow.core.aval import ShapedArray, aval_of, register_value_type


@record
class Zero:
    """A symbolic zero tangent or cotangent, without an array."""

    aval: ShapedArray


def zero_tangent(primal: Any) -> Zero:
    """The zero tangent of ``primal``."""
    return Zero(aval_of(primal).tangent())


@record
class UndefinedPrimal:
    """An operand with respect to which an equation is transposed."""

    aval: ShapedArray


class UnknownOperandError(TypeError):
    """A transpose rule needs the value of an operand that it transposes with respect to."""


def _refuse_unknown(value: UndefinedPrimal) -> ShapedArray:
    raise UnknownOperandError(f"[transpose] the value must be known; got {value}.")


# A rule that computes with an unknown raises, and the reverse pass names the op that is not linear.
register_value_type(UndefinedPrimal, _refuse_unknown)


def is_undefined(value: Any) -> bool:
    """Whether ``value`` is an operand to transpose with respect to."""
    return type(value) is UndefinedPrimal


USER, NAN, DIVISION, INDEX = "user", "nan", "division", "index"


@record
class Fault:
    """A possible error in the operands of an equation.

    Attributes:
        category: USER, NAN, DIVISION or INDEX.
        text: the fault, a format string for values.
        wrong: bool[...], flags of the wrong elements.
        values: arrays of that shape, of which the text has those of the first wrong element.
    """

    category: str
    text: str
    wrong: Any
    values: tuple[Any, ...]


@record
class Uniform:
    """Replaces a mapped dimension of an output: its elements along ``dim`` are all equal.

    They are mapped for their derivatives alone, which may differ.
    """

    dim: int


@record
class AxisData:
    """The axis that a vmap maps over.

    Attributes:
        name: its name, for collectives; None for an anonymous axis.
        size: its length.
        spmd_name: ``spmd_axis_name`` of vmap: the mesh axis over which shardings inside of it split
            it; None: they leave it unconstrained.
        has_devices: its elements are the devices of shard_map or pmap: each runs the program.
        varies: the axis of shard_map along which types of mapped values vary.
    """

    name: Any
    size: int
    spmd_name: Any = None
    has_devices: bool = False
    varies: Any = None
