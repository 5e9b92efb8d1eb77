"""Analysis of a loop's conditions: affine comparisons of its index, and loop invariants.

``boundaries`` splits loops by the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, Name
from gpuflow.targets.cpu.codegen.loops.text import expression_text

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

_COMPARISONS = ("lt", "le", "gt", "ge")


@record
class Sum:
    """An affine integer: ``multiple * stride * index + terms + constant``.

    Attributes:
        multiple: constant factor of the loop's index.
        stride: dynamic factor of the index, a stride; None: 1.
        terms: loop-invariant values, each with a constant factor.
        constant: the constant term.
    """

    multiple: int
    stride: Expression | None
    terms: tuple[tuple[Expression, int], ...]
    constant: int

    def plus(self, other: Sum, sign: int = 1) -> Sum | None:
        """Return ``self + sign * other``; None if the strides differ."""
        if self.multiple and other.multiple and self.stride != other.stride:
            return None
        terms = dict(self.terms)
        for term, count in other.terms:
            terms[term] = terms.get(term, 0) + sign * count
        multiple = self.multiple + sign * other.multiple
        nonzero = ((term, count) for term, count in terms.items() if count)
        ordered = tuple(sorted(nonzero, key=lambda pair: expression_text(pair[0])))
        stride = (self.stride or other.stride) if multiple else None
        return Sum(multiple, stride, ordered, self.constant + sign * other.constant)

    def times(self, factor: int) -> Sum:
        """``factor * self``."""
        nothing = Sum(0, None, (), 0)
        terms = tuple((term, factor * count) for term, count in self.terms)
        scaled = Sum(factor * self.multiple, self.stride, terms, factor * self.constant)
        return scaled if factor else nothing


@record
class Below:
    """The condition ``sum < 0``, which holds below a boundary; ``sum.multiple`` is positive."""

    sum: Sum


@record
class Holds:
    """A loop-invariant condition; ``number`` is that of its value."""

    number: int


Literal = tuple[Below | Holds, bool]  # a condition, and whether it must be true or false
Assumed = dict[Below | Holds, bool]


class Facts:
    """Facts about the values of a loop's body.

    Attributes:
        position: index of the loop's axis among the kernel's axes.
        inner: indices of the axes of inner loops.
        axis: name of the loop's axis.
        is_short: whether the loop is exact, so that it is unrolled.
        definitions: statements by the numbers of their values.
        sums: affine forms by value number; None if a value is not affine.
        invariant: numbers of the loop-invariant values, which may be hoisted.
    """

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis, body: Block) -> None:
        self.printer = printer
        names = [a.name for a in printer.kernel.axes]
        inner = {s.axis for s in statements(body) if isinstance(s, nodes.For) and s.axis}
        self.position = names.index(axis.name)
        self.inner = [names.index(name) for name in inner]
        self.axis = axis.name
        # Then invariants do not unswitch it: the branch would be in the enclosing loop.
        self.is_short = axis.exact is not None
        self.definitions: dict[int, Statement] = {}
        self.sums: dict[int, Sum | None] = {}
        self.invariant: set[int] = set()
        self._literals: dict[int, Literal | None] = {}
        for statement in statements(printer.kernel.body):
            if isinstance(statement, nodes.Const) or self._mode(statement) is Mode.SCALAR:
                self._note(statement, always_runs=True)
        self._note_block(body, always_runs=True)

    def _mode(self, statement: Statement) -> Mode | None:
        if not isinstance(statement, nodes.Load) or statement.operand in self.printer.locals:
            return None
        return self.printer.operands[statement.operand].mode

    def _note_block(self, block: Block, always_runs: bool) -> None:
        for statement in block.body:
            self._note(statement, always_runs)
            if isinstance(statement, nodes.If | nodes.For):
                for owned in owned_blocks(statement):
                    self._note_block(owned, always_runs=False)

    def _note(self, statement: Statement, always_runs: bool) -> None:
        for value in results_of(statement):
            self.definitions[value.number] = statement
        if len(results_of(statement)) != 1:
            return
        (out,) = results_of(statement)
        if (always_runs or self.never_fails(statement)) and self._is_invariant(statement):
            self.invariant.add(out.number)
        total = self._sum(statement) if out.dtype == "int64" else None
        if total is None and out.number in self.invariant:
            total = Sum(0, None, ((self.printer.value(out), 1),), 0)
        self.sums[out.number] = total

    def _is_invariant(self, statement: Statement) -> bool:
        """Whether the value of a statement is loop-invariant."""
        if not isinstance(
            statement, nodes.Const | nodes.Load | nodes.Apply | nodes.Select | nodes.Cast
        ):
            return False
        if isinstance(statement, nodes.Load):
            if statement.operand in self.printer.locals:
                return False
            operand = self.printer.operands[statement.operand]
            varies = any(
                operand.strides[position : position + 1] not in ((), (Stride.ZERO,))
                for position in (self.position, *self.inner)
            )
            is_fixed = operand.mode in (Mode.IN, Mode.SCALAR, Mode.INDEX)
            if varies or not is_fixed or statement.where is not None:
                return False
        return all(value.number in self.invariant for value in uses_of(statement))

    def never_fails(self, statement: Statement) -> bool:
        """Whether a statement may be speculated: it is safe even if its branch is not taken."""
        match statement:
            case nodes.Load(_, name):
                operand = self.printer.operands.get(name)
                return operand is not None and operand.mode in (Mode.SCALAR, Mode.INDEX)
            case nodes.Apply(_, fn):
                return fn not in ("div", "rem")
        return isinstance(statement, nodes.Const | nodes.Select | nodes.Cast)

    def _sum(self, statement: Statement) -> Sum | None:
        match statement:
            case nodes.Const(_, value):
                return Sum(0, None, (), int(value))
            case nodes.Load(_, name, None, None, None) if name in self.printer.operands:
                return self._loaded(self.printer.operands[name])
            case nodes.Apply(_, ("add" | "sub") as fn, (a, b)):
                left, right = self.sums.get(a.number), self.sums.get(b.number)
                if left is None or right is None:
                    return None
                return left.plus(right, 1 if fn == "add" else -1)
            case nodes.Apply(_, "mul", (a, b)):
                left, right = self.sums.get(a.number), self.sums.get(b.number)
                if left is None or right is None:
                    return None
                for one, other in ((left, right), (right, left)):
                    if not one.multiple and not one.terms:
                        return other.times(one.constant)
        return None

    def _loaded(self, operand: nodes.Operand) -> Sum | None:
        if operand.mode is Mode.SCALAR:
            return Sum(0, None, ((self.printer.pointer(operand.name), 1),), 0)
        inner = {operand.strides[d] for d in self.inner if d < len(operand.strides)}
        if operand.mode is not Mode.INDEX or inner - {Stride.ZERO}:
            return None
        base = self.printer.offsets[operand.name]
        terms = () if base == ZERO else ((base, 1),)
        stride = operand.strides[self.position]
        if stride is Stride.ZERO:
            return Sum(0, None, terms, 0)
        # Strides of INDEX operands are positive, unlike those of arrays.
        if stride is Stride.ANY:
            return Sum(1, Name(self.printer.names.stride(operand.name, self.axis)), terms, 0)
        return Sum(int(stride.value), None, terms, 0)

    def literals(self, condition: Value) -> Iterator[Literal]:
        """Yield the terms of a conjunction that are literals."""
        statement = self.definitions.get(condition.number)
        if isinstance(statement, nodes.Apply) and statement.fn == "and":
            for value in statement.args:
                yield from self.literals(value)
            return
        literal = None if isinstance(statement, nodes.Const) else self.literal(condition)
        if literal is not None:
            yield literal

    def literal(self, condition: Value) -> Literal | None:
        """Return a condition as a literal; None if a loop cannot be split by it."""
        number = condition.number
        if number not in self._literals:
            self._literals[number] = self._literal(condition)
        return self._literals[number]

    def _literal(self, condition: Value) -> Literal | None:
        statement = self.definitions.get(condition.number)
        if isinstance(statement, nodes.Apply) and statement.fn in _COMPARISONS:
            comparison = self._comparison(statement)
            if comparison is not None:
                return comparison
        if self.is_short or condition.number not in self.invariant:
            return None
        return Holds(condition.number), True

    def _comparison(self, statement: nodes.Apply) -> Literal | None:
        a, b = statement.args
        left, right = self.sums.get(a.number), self.sums.get(b.number)
        if a.dtype != "int64" or left is None or right is None:
            return None
        difference = left.plus(right, -1)
        if difference is None or not difference.multiple:
            return None
        one = Sum(0, None, (), 1)
        is_below = statement.fn in ("lt", "le")
        if statement.fn in ("le", "gt"):  # a <= b is a - b - 1 < 0
            difference = difference.plus(one, -1)
        assert difference is not None
        if difference.multiple < 0:  # d < 0 is not -d - 1 < 0
            difference, is_below = difference.times(-1).plus(one, -1), not is_below
        assert difference is not None
        return Below(difference), is_below

    def truth(self, value: Value, assumed: Assumed, truths: dict[int, bool | None]) -> bool | None:
        """Whether the assumed conditions imply a condition or its negation; None: undecided.

        ``truths`` caches the results.
        """
        if value.number not in truths:
            truths[value.number] = self._truth(value, assumed, truths)
        return truths[value.number]

    def _truth(self, value: Value, assumed: Assumed, truths: dict[int, bool | None]) -> bool | None:
        statement = self.definitions.get(value.number)
        match statement:
            case nodes.Const(_, number):
                return bool(number)
            case nodes.Apply(_, ("and" | "or") as fn, (a, b)):
                sides = (self.truth(a, assumed, truths), self.truth(b, assumed, truths))
                decisive = fn == "or"
                if decisive in sides:
                    return decisive
                return None if None in sides else not decisive
            case nodes.Apply(_, "not", (a,)):
                inner = self.truth(a, assumed, truths)
                return None if inner is None else not inner
        literal = self.literal(value)
        if literal is None:
            return None
        holds = implied(literal[0], assumed)
        return None if holds is None else holds is literal[1]

    def print_invariants(self, conditions: Iterable[Below | Holds], sums: Iterable[Sum]) -> None:
        """Emit the invariant statements on which conditions and sums depend, before the loop."""
        required: set[int] = set()
        ids = {self.printer.value(v): n for n in self.invariant for v in self._results(n)}
        needed = list(sums)
        for on in conditions:
            if isinstance(on, Below):
                needed.append(on.sum)
            else:
                required.add(on.number)
        terms = [term for total in needed for term, _ in total.terms]
        required.update(ids[term] for term in terms if term in ids)
        pending = list(required)
        while pending:
            for value in uses_of(self.definitions[pending.pop()]):
                if value.number not in required:
                    required.add(value.number)
                    pending.append(value.number)
        for number in sorted(required):
            self.printer.statement(self.definitions[number])

    def _results(self, number: int) -> tuple[Value, ...]:
        return results_of(self.definitions[number])


def implied(on: Below | Holds, assumed: Assumed) -> bool | None:
    """Whether the assumed conditions imply a condition or its negation; None: undecided."""
    if on in assumed:
        return assumed[on]
    if isinstance(on, Holds):
        return None
    for other, holds in assumed.items():
        if isinstance(other, Below) and replace(other.sum, constant=0) == replace(
            on.sum, constant=0
        ):
            further = on.sum.constant - other.sum.constant
            if (holds and further <= 0) or (not holds and further >= 0):
                return holds
    return None
