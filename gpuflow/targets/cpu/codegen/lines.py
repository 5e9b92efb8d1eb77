"""Numbers that grow evenly with the elements of a loop over vectors."""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.targets.llvm.lanes import Lane

# How far apart the elements of a vector are that is put together from whole loads.
_FARTHEST = 4


@record(eq=False)
class Line(Lane):
    """An int64 that grows with the elements; ``value`` is that of the loop's first one.

    Attributes:
        step: by how much.
    """

    step: int = 1


def factor_of(operator: str, a: Lane, b: Lane) -> int:
    """By which small number a Line is multiplied; 0: by none."""
    for line, other in ((a, b), (b, a)):
        is_single = other.is_constant and other.width == 1
        if operator == "*" and isinstance(line, Line) and is_single:
            factor = other.value.constant
            return factor if 1 < line.step * factor <= _FARTHEST else 0
    return 0


def first_of(x: Lane) -> Lane:
    """A Line's first value as a plain number; other numbers are unchanged."""
    return Lane(x.builder, x.value, x.dtype)
