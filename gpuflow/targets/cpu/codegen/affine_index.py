"""Affine index expressions, base + step * i, in loops over vectors."""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.targets.llvm.ir_values import IRValue

# The largest stride for which ``strided_loads`` is used.
_LARGEST_STEP = 4


@record(eq=False)
class AffineIndex(IRValue):
    """An int64 that is affine in the induction variable; ``value`` is the scalar ``base``.

    Attributes:
        step: the difference between consecutive iterations.
    """

    step: int = 1


def factor_of(operator: str, a: IRValue, b: IRValue) -> int:
    """The constant by which an operation multiplies an affine index.

    0: it is another operation, or the step of the result would be too large.
    """
    for affine, other in ((a, b), (b, a)):
        is_single = other.is_constant and other.width == 1
        if operator == "*" and isinstance(affine, AffineIndex) and is_single:
            factor = other.value.constant
            return factor if 1 < affine.step * factor <= _LARGEST_STEP else 0
    return 0


def first_of(x: IRValue) -> IRValue:
    """The base of an affine index as a plain scalar; other scalars unchanged."""
    return IRValue(x.builder, x.value, x.dtype)
