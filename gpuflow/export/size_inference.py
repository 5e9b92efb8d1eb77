"""Size inference: one program for all sizes, from traces at several.

A function is traced at several sizes. If the records of the programs are equal except for numbers,
each number is inferred as a size expression: a polynomial of the symbols, a quotient, or for floats
a function of one. The inferred expression must give the number at every size exactly. Otherwise
there is no such program, and the error contains the difference.

Tests: tests/test_export_sizes.py, tests/test_export_shape_inference.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np

from gpuflow.base.cached import cached_property
from gpuflow.base.errors import ExportError, check
from gpuflow.core.dtype_names import dtype_of
from gpuflow.export.dimensions import Sizes, value_of
from gpuflow.export.records import number_of as scalar_of
from gpuflow.export.texts import SymbolicScope, parsed

# Sizes to trace at: neighbors, multiples of powers of two, and others.
_TRACED_SIZES = (2, 3, 8, 13, 64, 131, 1000, 16384)
_MORE_SIZES = (1, 4, 5, 6, 10, 16, 24, 32, 48, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
_MIN_SIZES = 4
_HIGHEST_POWER = 3
_DIVISORS = (2, 3, 4, 5, 6, 8, 16)
_FACTORS = (1, 2, 3)
# Functions of a size that a float may be; programs compute them in float64.
_OF_SIZES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "size": (float, float),
    "1/size": (lambda n: 1.0 / n, lambda x: 1.0 / x),
    "sqrt": (sqrt, lambda x: x * x),
    "1/sqrt": (lambda n: 1.0 / sqrt(n), lambda x: 1.0 / (x * x)),
}


def sizes_to_trace(symbols: Sequence[str], scope: SymbolicScope) -> list[dict[str, int]]:
    """Sizes at which to trace a function, within the constraints.

    Raises:
        ExportError: there are too few.
    """
    selected: list[dict[str, int]] = []
    for candidates in (_TRACED_SIZES, _MORE_SIZES, range(1, 65)):
        for sizes in _combinations(symbols, tuple(candidates), scope):
            if sizes not in selected:
                selected.append(sizes)
        if len(selected) >= 2 * _MIN_SIZES * len(symbols):
            break
    check(
        len(selected) >= _MIN_SIZES,
        lambda: (
            f"[export] constraints must leave at least {_MIN_SIZES} sizes to compare; got "
            f"{scope!r}: {selected}. Fix: looser constraints, or numbers instead of symbols."
        ),
        ExportError,
    )
    return sorted(selected, key=lambda sizes: sum(sizes.values()))


def _combinations(
    symbols: Sequence[str], candidates: tuple[int, ...], scope: SymbolicScope
) -> Iterable[dict[str, int]]:
    """Sizes of all symbols: separate sequences, or any allowed combination."""
    count = len(candidates)
    steps = [2 * k + 1 for k in range(len(symbols))]
    rows = [
        {s: candidates[(step * n + k) % count] for k, (s, step) in enumerate(zip(symbols, steps))}
        for n in range(count)
    ]
    allowed = [row for row in rows if _allowed(row, scope)]
    if len(symbols) > 1 and len(allowed) < 2 * _MIN_SIZES:
        several = itertools.product(candidates, repeat=len(symbols))
        more = (dict(zip(symbols, values)) for values in itertools.islice(several, 20_000))
        allowed += list(itertools.islice((row for row in more if _allowed(row, scope)), 12))
    return allowed


def _allowed(sizes: Sizes, scope: SymbolicScope) -> bool:
    return all(one.holds(sizes) for one in scope.constraints)


class SizeInference:
    """Merges the records of several sizes into one.

    Args:
        traced_sizes: the sizes, in the order of the records.
        scope: of the symbols.
    """

    def __init__(self, traced_sizes: Sequence[Sizes], scope: SymbolicScope) -> None:
        self._traced_sizes, self._scope = traced_sizes, scope
        self._monomials = _monomials(tuple(traced_sizes[0]), len(traced_sizes), scope)
        self._expressions: dict[tuple[Any, ...], str | None] = {}
        self._rows: dict[tuple[str, ...], list[list[Fraction]]] = {}

    def merged(self, records: Sequence[Any], location: str = "") -> Any:
        """The record with ``{"size": text}`` for integers that depend on the sizes.

        Raises:
            ExportError: the records differ in something else.
        """
        first = records[0]
        if all(type(record) is type(first) and record == first for record in records[1:]):
            return first
        if all(type(record) is int for record in records):
            text = self._size(tuple(records))
            return {"size": text} if text is not None else self._refuse(records, location)
        if all(type(record) is dict and record.keys() == first.keys() for record in records):
            return {
                key: self._merged_field(key, [record[key] for record in records], location)
                for key in first
            }
        if not all(type(record) is list and len(record) == len(first) for record in records):
            self._refuse(records, location)
        if first and first[0] in ("number", "float"):
            return self._float(records, location)
        return [self.merged(elements, location) for elements in zip(*records, strict=True)]

    def check_same_structure(self, records: Sequence[Any], location: str = "") -> None:
        """Raise ExportError if the first two records differ in more than numbers."""
        one, other = records
        if type(one) is dict and type(other) is dict and one.keys() == other.keys():
            for key in one:
                self.check_same_structure([one[key], other[key]], location)
        elif type(one) is list and type(other) is list and len(one) == len(other):
            for pair in zip(one, other, strict=True):
                self.check_same_structure(pair, location)
        elif one != other and not (type(one) is type(other) is int):
            is_number = isinstance(one, str) and isinstance(other, str)  # digits of one
            if not is_number:
                self._refuse(records, location)

    def _merged_field(self, key: str, values: list[Any], location: str) -> Any:
        if key != "eqns":
            return self.merged(values, location)
        if any(len(value) != len(values[0]) for value in values):
            self._refuse(values, location)
        return [
            self.merged(eqns, f" in {eqns[0][0]}, equation {k}")
            for k, eqns in enumerate(zip(*values, strict=True))
        ]

    def _refuse(self, records: Sequence[Any], location: str) -> Any:
        k = next(k for k, one in enumerate(records) if one != records[0])
        one, other = self._traced_sizes[k - 1], self._traced_sizes[k]
        shown = [_shown(records[k - 1]), _shown(records[k])]
        symbol = next(iter(other))
        raise ExportError(
            "[export] the program of a function with symbolic sizes must be the same for all "
            f"sizes; got {shown[0]} at {_sizes_text(one)} and {shown[1]} at "
            f"{_sizes_text(other)}{location}. Fix: symbolic_shape(..., constraints=['{symbol} >= "
            f"{other[symbol]}']) if larger sizes have one program, or numbers instead of symbols."
        )

    def _size(self, values: tuple[int, ...]) -> str | None:
        if values not in self._expressions:
            self._expressions[values] = self._inferred(values)
        return self._expressions[values]

    def _inferred(self, values: tuple[int, ...]) -> str | None:
        size = self._combined(values, self._monomials)
        if size is not None:
            return size
        # With one quotient: alone, plus a constant, then plus and times other symbols.
        for others in (lambda _: [], lambda _: [1], self._others):
            for symbol, quotient in self._quotients:
                more = others(symbol)
                basis = [quotient, *more, *(quotient * m for m in more if m != 1)]
                if len(basis) < len(values):
                    size = self._combined(values, basis)
                    if size is not None:
                        return size
        return None

    @cached_property
    def _quotients(self) -> list[tuple[str, Any]]:
        """Symbols, and ``floordiv(factor * symbol + rest, divisor)``, the simplest first."""
        by_text: dict[str, tuple[str, Any]] = {}
        for divisor in _DIVISORS:
            for remainder in sorted(range(-divisor, divisor + 1), key=abs):
                for factor, symbol in itertools.product(_FACTORS, self._traced_sizes[0]):
                    size = (factor * parsed(symbol, self._scope) + remainder) // divisor
                    by_text.setdefault(str(size), (symbol, size))
        return list(by_text.values())

    def _others(self, symbol: str) -> list[Any]:
        return [1, *(parsed(s, self._scope) for s in self._traced_sizes[0] if s != symbol)]

    def _combined(self, values: Sequence[int], basis: Sequence[Any]) -> str | None:
        """The linear combination with integer coefficients that has these values, or None."""
        key = tuple(map(str, basis))
        if key not in self._rows:
            self._rows[key] = [
                [Fraction(value_of(size, sizes)) for size in basis] for sizes in self._traced_sizes
            ]
        solution = _solved(self._rows[key], [Fraction(value) for value in values])
        if solution is None or any(c.denominator != 1 for c in solution):
            return None
        terms = [int(c) * size for c, size in zip(solution, basis, strict=True) if c]
        return str(sum(terms[1:], terms[0]) if terms else 0)

    def _float(self, records: Sequence[Any], location: str) -> Any:
        """A scalar that is a function of a size, with the function's name."""
        kind, dtype = records[0][0], records[0][1] if records[0][0] == "number" else "float64"
        if any(one[:-1] != records[0][:-1] and kind == "number" for one in records):
            self._refuse(records, location)
        values = [number_of(one) for one in records]
        if not all(np.isfinite(float(value)) for value in values):
            self._refuse(records, location)
        for name, (_, inverse) in _OF_SIZES.items():
            with np.errstate(all="ignore"):
                sizes = [inverse(float(value)) if float(value) else 0.0 for value in values]
            if not all(np.isfinite(size) and abs(size) < 1e15 for size in sizes):
                continue
            text = self._size(tuple(round(size) for size in sizes))
            if text is None:
                continue
            record = {"float": name, "of": text, "kind": kind, "dtype": dtype}
            size = parsed(text, self._scope)
            made = [number_record(record, value_of(size, s)) for s in self._traced_sizes]
            if made == list(records):
                return record
        return self._refuse(records, location)


def number_of(record: list[Any]) -> Any:
    """The scalar of a record."""
    if record[0] == "float":
        return float.fromhex(record[1])
    return scalar_of(record[1], record[2])


def number_record(record: dict[str, Any], size: int) -> list[Any]:
    """The record of a float that is a function of a size."""
    value = _OF_SIZES[record["float"]][0](size) if size else 0.0
    if record["kind"] == "float":
        return ["float", value.hex()]
    scalar = np.asarray(value).astype(dtype_of(record["dtype"]))
    return ["number", record["dtype"], scalar.tobytes().hex()]


def _monomials(symbols: tuple[str, ...], count: int, scope: SymbolicScope) -> list[Any]:
    """Products of symbols, the simplest first, fewer than there are sizes."""
    names = [parsed(symbol, scope) for symbol in symbols]
    products: list[Any] = [1]
    for power in range(1, _HIGHEST_POWER + 1):
        for factors in itertools.combinations_with_replacement(names, power):
            product: Any = 1
            for factor in factors:
                product = factor * product
            products.append(product)
    return products[: max(2, min(len(products), count - 2))]


def _solved(rows: list[list[Fraction]], values: list[Fraction]) -> list[Fraction] | None:
    """Solve an overdetermined system exactly; None if there is no solution, or several."""
    table = [[*row, value] for row, value in zip(rows, values, strict=True)]
    count = len(rows[0])
    for k in range(count):
        pivot = next((r for r in range(k, len(table)) if table[r][k]), None)
        if pivot is None:
            return None
        table[k], table[pivot] = table[pivot], table[k]
        table[k] = [x / table[k][k] for x in table[k]]
        for r, row in enumerate(table):
            if r != k and row[k]:
                table[r] = [x - row[k] * y for x, y in zip(row, table[k], strict=True)]
    if any(row[-1] for row in table[count:]):
        return None
    return [row[-1] for row in table[:count]]


def _sizes_text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {number}" for name, number in sizes.items())


def _shown(record: Any) -> str:
    """Describe the difference."""
    if isinstance(record, list) and record and record[0] in ("number", "float"):
        return str(number_of(record))
    if isinstance(record, list) and record and isinstance(record[0], list):
        return f"{len(record)} equations or parts"
    text = str(record)
    return text if len(text) < 60 else text[:57] + "..."


class Sized:
    """A record with symbolic sizes, to be evaluated at concrete ones.

    Args:
        record: from ``SizeInference.merged``.
        scope: of the symbols.
    """

    def __init__(self, record: Any, scope: SymbolicScope) -> None:
        self._record, self._scope = record, scope
        self._parsed: dict[str, Any] = {}
        self._fixed: dict[int, bool] = {}

    def at(self, sizes: Sizes) -> Any:
        """The record at concrete sizes."""
        return self._made(self._record, sizes)

    def _made(self, record: Any, sizes: Sizes) -> Any:
        if type(record) is dict:
            if "size" in record:
                return self._number(record["size"], sizes)
            if "float" in record:
                return number_record(record, self._number(record["of"], sizes))
            return {key: self._made(item, sizes) for key, item in record.items()}
        if type(record) is not list or self._is_fixed(record):
            return record
        return [self._made(item, sizes) for item in record]

    def _number(self, text: str, sizes: Sizes) -> int:
        if text not in self._parsed:
            self._parsed[text] = parsed(text, self._scope)
        return value_of(self._parsed[text], sizes)

    def _is_fixed(self, record: Any) -> bool:
        """Whether a record has no symbolic size."""
        if type(record) is dict:
            return (
                "size" not in record
                and "float" not in record
                and all(map(self._is_fixed, record.values()))
            )
        if type(record) is not list:
            return True
        is_fixed = self._fixed.get(id(record))
        if is_fixed is None:
            is_fixed = self._fixed[id(record)] = all(map(self._is_fixed, record))
        return is_fixed
