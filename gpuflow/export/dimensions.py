"""Symbolic sizes: polynomials of named sizes, with floordiv, mod, max and min.

A size is at least 1. A comparison has a result if it is the same for all sizes that the scope
allows, and raises otherwise.

Tests: tests/test_export_sizes.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import total_ordering
from typing import Any, Protocol

from gpuflow.base.errors import ExportError, InconclusiveDimensionOperation
from gpuflow.base.records import record

Monomial = tuple[tuple[Any, int], ...]  # factors, symbols or calls, with their powers
Sizes = Mapping[str, int]

FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


class Scope(Protocol):
    """Facts about symbols; ``texts.SymbolicScope``."""

    def least(self, symbol: str) -> int: ...

    def most(self, symbol: str) -> int | None: ...


@record
class _Call:
    """A factor that is a function of two sizes."""

    name: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.name}({self.left}, {self.right})"


@total_ordering
class Dimension:
    """A symbolic size: ``2*b + 1``. Arithmetic with ints and other symbolic sizes gives more."""

    __slots__ = ("scope", "terms")

    def __init__(self, terms: Mapping[Monomial, int], scope: Scope) -> None:
        nonzero = [(monomial, count) for monomial, count in terms.items() if count]
        self.terms = dict(sorted(nonzero, key=lambda term: _order(term[0])))
        self.scope = scope

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        terms = dict(self.terms)
        for monomial, count in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + count
        return _simplest(terms, self.scope)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int | Dimension) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        terms: dict[Monomial, int] = {}
        for left, count in self.terms.items():
            for right, times in _terms(other).items():
                monomial = _product(left, right)
                terms[monomial] = terms.get(monomial, 0) + count * times
        return _simplest(terms, self.scope)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Any:
        result: Any = 1
        for _ in range(exponent):
            result = self * result
        return result

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        if isinstance(other, int) and other and all(n % other == 0 for n in self.terms.values()):
            return _simplest({m: n // other for m, n in self.terms.items()}, self.scope)
        return call("floordiv", self, other, self.scope)

    def __rfloordiv__(self, other: int) -> Any:
        return call("floordiv", other, self, self.scope)

    def __mod__(self, other: Any) -> Any:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        if isinstance(other, int) and other and all(n % other == 0 for n in self.terms.values()):
            return 0
        return call("mod", self, other, self.scope)

    def __rmod__(self, other: int) -> Any:
        return call("mod", other, self, self.scope)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        difference = self - other
        if isinstance(difference, int):
            return difference == 0
        low, high = _bounds(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return False
        return low == high == 0

    def __ge__(self, other: Any) -> bool:
        if not isinstance(other, int | Dimension):
            return NotImplemented
        difference = self - other
        low, high = (difference,) * 2 if isinstance(difference, int) else _bounds(difference)
        if low is not None and low >= 0:
            return True
        if high is not None and high < 0:
            return False
        raise InconclusiveDimensionOperation(
            f"[export] a comparison of symbolic sizes must have one answer; got {self} >= {other}. "
            f"Fix: symbolic_shape(..., constraints=['{self} >= {other}'])."
        )

    def __gt__(self, other: Any) -> bool:
        return self >= other + 1

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __le__(self, other: Any) -> bool:
        return not self >= other + 1

    def __hash__(self) -> int:
        return hash(tuple(self.terms.items()))

    def __bool__(self) -> bool:
        return self != 0

    def __int__(self) -> int:
        raise InconclusiveDimensionOperation(
            f"[export] a symbolic size must not be used as a number; got {self}. Fix: "
            "export.export(jit(f))(ShapeDtypeStruct(shape, dtype)), in which f sees numbers."
        )

    __index__ = __int__

    def __repr__(self) -> str:
        texts = []
        for monomial, count in self.terms.items():
            factors = [f"{f}^{power}" if power > 1 else str(f) for f, power in monomial]
            if not factors or abs(count) != 1:
                factors.insert(0, str(abs(count)))
            texts.append((" - " if count < 0 else " + ") + "*".join(factors))
        text = "".join(texts)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    __str__ = __repr__


def _order(monomial: Monomial) -> tuple[Any, ...]:
    return -sum(power for _, power in monomial), str(monomial)


def _terms(value: Any) -> Mapping[Monomial, int]:
    return value.terms if isinstance(value, Dimension) else {(): int(value)}


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for factor, power in right:
        powers[factor] = powers.get(factor, 0) + power
    return tuple(sorted(powers.items(), key=lambda pair: str(pair[0])))


def _simplest(terms: Mapping[Monomial, int], scope: Scope) -> Any:
    nonzero = {monomial: count for monomial, count in terms.items() if count}
    if not set(nonzero) - {()}:
        return nonzero.get((), 0)
    return Dimension(nonzero, scope)


def symbol(name: str, scope: Scope) -> Dimension:
    """The size of a name."""
    return Dimension({((name, 1),): 1}, scope)


def call(name: str, left: Any, right: Any, scope: Scope) -> Any:
    """A function of ``FUNCTIONS`` of two sizes."""
    if isinstance(left, int) and isinstance(right, int):
        return FUNCTIONS[name](left, right)
    return Dimension({((_Call(name, left, right), 1),): 1}, scope)


def _bounds(dimension: Dimension) -> tuple[int | None, int | None]:
    """Lower and upper bound; None if unbounded."""
    low: int | None = 0
    high: int | None = 0
    for monomial, count in dimension.terms.items():
        least: int | None = 1
        most: int | None = 1
        for factor, power in monomial:
            f_least, f_most = _factor_bounds(factor, dimension.scope)
            least = None if least is None or f_least is None else least * f_least**power
            most = None if most is None or f_most is None else most * f_most**power
        ends = (least, most) if count > 0 else (most, least)
        low = None if low is None or ends[0] is None else low + count * ends[0]
        high = None if high is None or ends[1] is None else high + count * ends[1]
    return low, high


def _factor_bounds(factor: Any, scope: Scope) -> tuple[int | None, int | None]:
    if isinstance(factor, str):
        return scope.least(factor), scope.most(factor)
    if factor.name == "mod" and isinstance(factor.right, int) and factor.right > 0:
        return 0, factor.right - 1
    if factor.name == "floordiv" and isinstance(factor.right, int) and factor.right > 0:
        ends = _bounds(factor.left) if isinstance(factor.left, Dimension) else (factor.left,) * 2
        low, high = (None if end is None else end // factor.right for end in ends)
        return (low if low is not None and low >= 0 else None), high
    return None, None


def value_of(size: Any, sizes: Sizes) -> int:
    """Evaluate a size at values of its symbols.

    Raises:
        ExportError: if it divides by 0.
    """
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return sizes[size]
    if isinstance(size, _Call):
        left, right = value_of(size.left, sizes), value_of(size.right, sizes)
        try:
            return FUNCTIONS[size.name](left, right)
        except ZeroDivisionError:
            raise ExportError(
                f"[export] symbolic sizes must not be divided by 0; got {size} for "
                f"{', '.join(f'{s} = {n}' for s, n in sizes.items())}. Fix: other sizes."
            ) from None
    total = 0
    for monomial, count in size.terms.items():
        for factor, power in monomial:
            count *= value_of(factor, sizes) ** power
        total += count
    return total


def symbols_of(size: Any) -> set[str]:
    """The names in a size."""
    if isinstance(size, int):
        return set()
    if isinstance(size, str):
        return {size}
    if isinstance(size, _Call):
        return symbols_of(size.left) | symbols_of(size.right)
    return {s for monomial in size.terms for factor, _ in monomial for s in symbols_of(factor)}
