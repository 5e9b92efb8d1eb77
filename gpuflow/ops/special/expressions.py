"""Values of a kernel with Python's operators, for bodies that are long formulas.

Tests: tests/ops/test_special_functions.py, tests/scipy_surface/test_special_accuracy.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.records import record


@record(eq=False)
class Expression:
    """A float64 or bool value of KernelIR; operators emit the computation."""

    builder: Any
    value: Any

    def number(self, number: float) -> Expression:
        """A constant."""
        return Expression(self.builder, self.builder.const("float64", float(number)))

    def apply(self, name: str, *others: Expression | float) -> Expression:
        """Apply a function of kir.scalar to this and others."""
        operands = [self.value, *(self._coerced(other).value for other in others)]
        return Expression(self.builder, self.builder.apply(name, *operands))

    def _coerced(self, other: Expression | float) -> Expression:
        return other if isinstance(other, Expression) else self.number(other)

    def _with(self, name: str, other: Expression | float) -> Expression:
        # Other classes of numbers handle these.
        is_supported = isinstance(other, (Expression, float, int))
        return self.apply(name, other) if is_supported else NotImplemented

    def __add__(self, other: Expression | float) -> Expression:
        return self._with("add", other)

    def __radd__(self, other: float) -> Expression:
        return self._coerced(other) + self

    def __sub__(self, other: Expression | float) -> Expression:
        return self._with("sub", other)

    def __rsub__(self, other: float) -> Expression:
        return self._coerced(other) - self

    def __mul__(self, other: Expression | float) -> Expression:
        return self._with("mul", other)

    def __rmul__(self, other: float) -> Expression:
        return self._coerced(other) * self

    def __truediv__(self, other: Expression | float) -> Expression:
        return self._with("div", other)

    def __rtruediv__(self, other: float) -> Expression:
        return self._coerced(other) / self

    def __neg__(self) -> Expression:
        return self.apply("neg")

    def __lt__(self, other: Expression | float) -> Expression:
        return self.apply("lt", other)

    def __le__(self, other: Expression | float) -> Expression:
        return self.apply("le", other)

    def __gt__(self, other: Expression | float) -> Expression:
        return self.apply("gt", other)

    def __ge__(self, other: Expression | float) -> Expression:
        return self.apply("ge", other)

    def __and__(self, other: Expression) -> Expression:
        return self.apply("and", other)

    def __or__(self, other: Expression) -> Expression:
        return self.apply("or", other)

    def equals(self, other: Expression | float) -> Expression:
        """Whether both are equal; false with nan."""
        return self.apply("eq", other)


def widened_operands(builder: Any, values: Sequence[Any]) -> list[Expression]:
    """The operands of a body in float64, whose rounding errors float32 does not show."""
    return [Expression(builder, builder.cast(value, "float64")) for value in values]


def where(
    predicate: Expression, on_true: Expression | float, on_false: Expression | float
) -> Expression:
    """``on_true if predicate else on_false``; both are computed."""
    if not isinstance(on_true, Expression):
        on_true = predicate.number(on_true)
    if not isinstance(on_false, Expression):
        on_false = predicate.number(on_false)
    builder = predicate.builder
    return Expression(builder, builder.select(predicate.value, on_true.value, on_false.value))


def at_most(x: Expression, bound: float) -> Expression:
    """Minimum of ``x`` and ``bound``; nan stays nan."""
    return where(x > bound, bound, x)


def at_least(x: Expression, bound: float) -> Expression:
    """Maximum of ``x`` and ``bound``; nan stays nan."""
    return where(x < bound, bound, x)


def polynomial(x: Expression, coefficients: Sequence[float]) -> Expression:
    """Horner's rule; the highest power comes first."""
    total = x.number(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def fits_single(*avals: Any) -> bool:
    """For ``Elementwise.holds``: operands of at most 32 bits, whose formulas are in float64."""
    return all(aval.dtype.itemsize <= 4 for aval in avals)
