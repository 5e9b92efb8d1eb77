"""Affine index expressions, base + step * i, in loops over vectors.

Tests: tests/targets/cpu/test_strided_vectors.py, tests/targets/cpu/test_cpu_vectors.py.
"""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.targets.llvm.ir_values import IRValue

# The largest stride, in elements, for which ``strided_loads`` is used.
_MAX_STRIDE = 4


@record(eq=False)
class AffineIndex(IRValue):
    """An int64 that is affine in the induction variable; ``value`` is the scalar ``base``.

    ``base`` is loop-invariant. The index of iteration i is ``base + step * i``, with wrapping.

    Attributes:
        step: the difference between consecutive iterations, 1 to 4.
    """

    step: int = 1


def affine_factor(operator: str, left: IRValue, right: IRValue) -> int:
    """The constant by which an operation multiplies an affine index.

    Args:
        operator: an operator of ``loops.nodes.ARITHMETIC``.
        left, right: its operands; at most one is affine.

    Returns:
        The constant; 0 if it is another operation, or the step of the result would exceed 4.
    """
    for affine, factor_value in ((left, right), (right, left)):
        is_scalar_constant = factor_value.is_constant and factor_value.width == 1
        if operator == "*" and isinstance(affine, AffineIndex) and is_scalar_constant:
            factor = factor_value.value.constant
            return factor if 1 < affine.step * factor <= _MAX_STRIDE else 0
    return 0


def affine_base(index: IRValue) -> IRValue:
    """The base of an affine index as a plain scalar; other scalars unchanged."""
    return IRValue(index.builder, index.value, index.dtype)
