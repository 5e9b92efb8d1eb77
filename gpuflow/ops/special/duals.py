"""Dual numbers of a kernel: values with their derivative, for forward differentiation.

Tests: tests/ops/test_special_functions.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.base.records import record
from gpuflow.ops.special import expressions
from gpuflow.ops.special.expressions import Expression


@record(eq=False)
class Dual:
    """A value and its derivative; None if that is 0."""

    value: Expression
    slope: Expression | None = None

    def with_slope(self, factor: Expression, value: Expression) -> Dual:
        """A function of this, from its value and its derivative ``factor``."""
        return Dual(value, None if self.slope is None else self.slope * factor)

    def __add__(self, other: Dual | Expression | float) -> Dual:
        other = self.lifted(other)
        return Dual(self.value + other.value, _sum(self.slope, other.slope))

    def __radd__(self, other: Expression | float) -> Dual:
        return self + other

    def __sub__(self, other: Dual | Expression | float) -> Dual:
        return self + -self.lifted(other)

    def __rsub__(self, other: Expression | float) -> Dual:
        return self.lifted(other) + -self

    def __mul__(self, other: Dual | Expression | float) -> Dual:
        other = self.lifted(other)
        left = None if self.slope is None else self.slope * other.value
        right = None if other.slope is None else other.slope * self.value
        return Dual(self.value * other.value, _sum(left, right))

    def __rmul__(self, other: Expression | float) -> Dual:
        return self * other

    def __truediv__(self, other: Dual | Expression | float) -> Dual:
        return self * self.lifted(other).reciprocal()

    def __rtruediv__(self, other: Expression | float) -> Dual:
        return self.lifted(other) * self.reciprocal()

    def __neg__(self) -> Dual:
        return Dual(-self.value, None if self.slope is None else -self.slope)

    def reciprocal(self) -> Dual:
        """1 over this."""
        inverse = 1.0 / self.value
        return self.with_slope(-(inverse * inverse), inverse)

    def sqrt(self) -> Dual:
        """The square root of a positive number."""
        root = self.value.apply("sqrt")
        return self.with_slope(0.5 / root, root)

    def exp(self) -> Dual:
        """The exponential."""
        power = self.value.apply("exp")
        return self.with_slope(power, power)

    def lgamma(self) -> Dual:
        """The logarithm of the gamma function of a positive number."""
        value = self.value.apply("lgamma")
        if self.slope is None:
            return Dual(value)
        return Dual(value, self.slope * self.value.apply("digamma"))

    def lifted(self, other: Dual | Expression | float) -> Dual:
        """Convert a number to a dual number."""
        if isinstance(other, Dual):
            return other
        return Dual(other if isinstance(other, Expression) else self.value.number(other))


def _sum(left: Expression | None, right: Expression | None) -> Expression | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def where(predicate: Expression, on_true: Dual, on_false: Dual) -> Dual:
    """``on_true if predicate else on_false``; both are computed."""
    value = expressions.where(predicate, on_true.value, on_false.value)
    if on_true.slope is None and on_false.slope is None:
        return Dual(value)
    zero = value.number(0.0)
    slopes = [zero if dual.slope is None else dual.slope for dual in (on_true, on_false)]
    return Dual(value, expressions.where(predicate, *slopes))


def polynomial(x: Dual, coefficients: Sequence[float]) -> Dual:
    """Horner's rule; the highest power comes first."""
    total = x.lifted(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total
