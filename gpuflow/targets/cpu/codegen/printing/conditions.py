"""Analysis of a loop's conditions: affine comparisons of its index, and loop invariants.

``boundaries`` splits loops by the results.

Tests: tests/targets/cpu/test_cpu_boundaries.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.kir.walk import owned_blocks, results_of, statements, uses_of
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, Name
from gpuflow.targets.cpu.codegen.loops.text import expression_text

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

_COMPARISONS = ("lt", "le", "gt", "ge")


class Term(NamedTuple):
    """A loop-invariant int64 value, and its constant factor."""

    value: Expression
    factor: int


@record
class AffineSum:
    """An affine integer: ``multiple * stride * index + terms + constant``.

    Two are equal if they have the same form: terms are sorted by their texts, and no factor is 0.

    Attributes:
        multiple: constant factor of the loop's index; 0 if the sum is loop-invariant.
        stride: dynamic factor of the index, a positive stride in elements; None if the factor is 1.
        terms: loop-invariant terms.
        constant: the constant term.
    """

    multiple: int
    stride: Expression | None
    terms: tuple[Term, ...]
    constant: int

    def plus(self, other: AffineSum, sign: int = 1) -> AffineSum | None:
        """Return ``self + sign * other``; None if the strides differ."""
        if self.multiple and other.multiple and self.stride != other.stride:
            return None
        factors = dict(self.terms)
        for value, factor in other.terms:
            factors[value] = factors.get(value, 0) + sign * factor
        multiple = self.multiple + sign * other.multiple
        nonzero = (Term(value, factor) for value, factor in factors.items() if factor)
        ordered = tuple(sorted(nonzero, key=lambda term: expression_text(term.value)))
        stride = (self.stride or other.stride) if multiple else None
        return AffineSum(multiple, stride, ordered, self.constant + sign * other.constant)

    def times(self, factor: int) -> AffineSum:
        """``factor * self``."""
        zero = AffineSum(0, None, (), 0)
        terms = tuple(Term(value, factor * term_factor) for value, term_factor in self.terms)
        scaled = AffineSum(factor * self.multiple, self.stride, terms, factor * self.constant)
        return scaled if factor else zero


@record
class Below:
    """The condition ``sum < 0``, which holds below a boundary.

    Attributes:
        sum: an affine sum of the loop's index with a positive ``multiple``.
    """

    sum: AffineSum


@record
class InvariantCondition:
    """A loop-invariant condition.

    Attributes:
        number: number of its value in KernelIR.
    """

    number: int


Condition = Below | InvariantCondition


class Literal(NamedTuple):
    """A condition, or its negation.

    Attributes:
        condition: the condition.
        holds: whether it must be true; else it must be false.
    """

    condition: Condition
    holds: bool


# Whether conditions are true at the points of a loop.
Assumptions = dict[Condition, bool]


class LoopAnalysis:
    """Analysis of the values of a loop's body: affine forms, invariants, and conditions.

    Values are named by their numbers in KernelIR. The analysis is valid at the printer's current
    position, before the loop: it uses the offsets of operands there. Like KernelIR's indices,
    affine forms must not overflow an int64.

    Args:
        printer: printer of the kernel.
        axis: axis of the loop.
        body: body of the loop.

    Attributes:
        axis_index: index of the loop's axis among the kernel's axes.
        inner_axis_indices: indices of the axes of inner loops.
        axis_name: name of the loop's axis.
        is_unrolled: whether the loop is unrolled, because its extent is exact.
        definitions: statements by the numbers of their values.
        affine_forms: affine forms by value number; None if a value is not affine.
        invariant_numbers: numbers of the loop-invariant values, which may be hoisted.
    """

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis, body: Block) -> None:
        self.printer = printer
        names = [a.name for a in printer.kernel.axes]
        inner_axis_names = {s.axis for s in statements(body) if isinstance(s, nodes.For) and s.axis}
        self.axis_index = names.index(axis.name)
        self.inner_axis_indices = [names.index(name) for name in inner_axis_names]
        self.axis_name = axis.name
        # Then invariants do not unswitch it: the branch would be in the enclosing loop.
        self.is_unrolled = axis.exact is not None
        self.definitions: dict[int, Statement] = {}
        self.affine_forms: dict[int, AffineSum | None] = {}
        self.invariant_numbers: set[int] = set()
        self._literals: dict[int, Literal | None] = {}
        for statement in statements(printer.kernel.body):
            if isinstance(statement, nodes.Const) or self._mode(statement) is Mode.SCALAR:
                self._analyze_statement(statement, always_runs=True)
        self._analyze_block(body, always_runs=True)

    def _mode(self, statement: Statement) -> Mode | None:
        """The mode of the operand that a statement loads; None for other statements."""
        if not isinstance(statement, nodes.Load) or statement.operand in self.printer.locals:
            return None
        return self.printer.operands[statement.operand].mode

    def _analyze_block(self, block: Block, always_runs: bool) -> None:
        """Analyze statements in order; ``always_runs``: the block is not in a branch or a loop."""
        for statement in block.body:
            self._analyze_statement(statement, always_runs)
            if isinstance(statement, nodes.If | nodes.For):
                for owned in owned_blocks(statement):
                    self._analyze_block(owned, always_runs=False)

    def _analyze_statement(self, statement: Statement, always_runs: bool) -> None:
        for value in results_of(statement):
            self.definitions[value.number] = statement
        if len(results_of(statement)) != 1:
            return
        (out,) = results_of(statement)
        if (always_runs or self.can_speculate(statement)) and self._is_invariant(statement):
            self.invariant_numbers.add(out.number)
        affine_form = self._affine_form(statement) if out.dtype == "int64" else None
        if affine_form is None and out.number in self.invariant_numbers:
            affine_form = AffineSum(0, None, (Term(self.printer.value(out), 1),), 0)
        self.affine_forms[out.number] = affine_form

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
                operand.strides[axis_index : axis_index + 1] not in ((), (Stride.ZERO,))
                for axis_index in (self.axis_index, *self.inner_axis_indices)
            )
            is_readonly = operand.mode in (Mode.IN, Mode.SCALAR, Mode.INDEX)
            if varies or not is_readonly or statement.where is not None:
                return False
        return all(value.number in self.invariant_numbers for value in uses_of(statement))

    def can_speculate(self, statement: Statement) -> bool:
        """Whether a statement may be speculated: it is safe even if its branch is not taken."""
        match statement:
            case nodes.Load(_, name):
                operand = self.printer.operands.get(name)
                return operand is not None and operand.mode in (Mode.SCALAR, Mode.INDEX)
            case nodes.Apply(_, fn):
                return fn not in ("div", "rem")
        return isinstance(statement, nodes.Const | nodes.Select | nodes.Cast)

    def _affine_form(self, statement: Statement) -> AffineSum | None:
        match statement:
            case nodes.Const(_, value):
                return AffineSum(0, None, (), int(value))
            case nodes.Load(_, name, None, None, None) if name in self.printer.operands:
                return self._affine_load(self.printer.operands[name])
            case nodes.Apply(_, ("add" | "sub") as fn, (a, b)):
                left, right = self.affine_forms.get(a.number), self.affine_forms.get(b.number)
                if left is None or right is None:
                    return None
                return left.plus(right, 1 if fn == "add" else -1)
            case nodes.Apply(_, "mul", (a, b)):
                left, right = self.affine_forms.get(a.number), self.affine_forms.get(b.number)
                if left is None or right is None:
                    return None
                for constant_form, other_form in ((left, right), (right, left)):
                    if not constant_form.multiple and not constant_form.terms:
                        return other_form.times(constant_form.constant)
        return None

    def _affine_load(self, operand: nodes.Operand) -> AffineSum | None:
        """The affine form of a load of a scalar or of an index at the current point."""
        if operand.mode is Mode.SCALAR:
            return AffineSum(0, None, (Term(self.printer.pointer(operand.name), 1),), 0)
        inner_axes = (k for k in self.inner_axis_indices if k < len(operand.strides))
        inner_strides = {operand.strides[k] for k in inner_axes}
        if operand.mode is not Mode.INDEX or inner_strides - {Stride.ZERO}:
            return None
        base = self.printer.offsets[operand.name]
        terms = () if base == ZERO else (Term(base, 1),)
        stride = operand.strides[self.axis_index]
        if stride is Stride.ZERO:
            return AffineSum(0, None, terms, 0)
        # Strides of INDEX operands are positive, unlike those of arrays.
        if stride is Stride.ANY:
            dynamic_stride = Name(self.printer.names.stride(operand.name, self.axis_name))
            return AffineSum(1, dynamic_stride, terms, 0)
        return AffineSum(int(stride.value), None, terms, 0)

    def literals(self, predicate: Value) -> Iterator[Literal]:
        """Yield the terms of a conjunction by which the loop can be split."""
        statement = self.definitions.get(predicate.number)
        if isinstance(statement, nodes.Apply) and statement.fn == "and":
            for value in statement.args:
                yield from self.literals(value)
            return
        literal = None if isinstance(statement, nodes.Const) else self.literal(predicate)
        if literal is not None:
            yield literal

    def literal(self, predicate: Value) -> Literal | None:
        """Return a predicate as a literal; None if the loop cannot be split by it."""
        number = predicate.number
        if number not in self._literals:
            self._literals[number] = self._literal(predicate)
        return self._literals[number]

    def _literal(self, predicate: Value) -> Literal | None:
        statement = self.definitions.get(predicate.number)
        if isinstance(statement, nodes.Apply) and statement.fn in _COMPARISONS:
            comparison = self._comparison(statement)
            if comparison is not None:
                return comparison
        if self.is_unrolled or predicate.number not in self.invariant_numbers:
            return None
        return Literal(InvariantCondition(predicate.number), True)

    def _comparison(self, statement: nodes.Apply) -> Literal | None:
        """A comparison of affine values as a literal; None if it does not vary with the index."""
        a, b = statement.args
        left, right = self.affine_forms.get(a.number), self.affine_forms.get(b.number)
        if a.dtype != "int64" or left is None or right is None:
            return None
        difference = left.plus(right, -1)
        if difference is None or not difference.multiple:
            return None
        one = AffineSum(0, None, (), 1)
        is_below = statement.fn in ("lt", "le")
        if statement.fn in ("le", "gt"):  # a <= b is a - b - 1 < 0
            difference = difference.plus(one, -1)
        assert difference is not None
        if difference.multiple < 0:  # d < 0 is not -d - 1 < 0
            difference, is_below = difference.times(-1).plus(one, -1), not is_below
        assert difference is not None
        return Literal(Below(difference), is_below)

    def truth(
        self, predicate: Value, assumed: Assumptions, truths: dict[int, bool | None]
    ) -> bool | None:
        """The value of a predicate under the assumed conditions; None if they do not imply it.

        Args:
            predicate: a bool value of the loop's body.
            assumed: the assumed conditions.
            truths: cache of the results by value number, for these assumptions.
        """
        if predicate.number not in truths:
            truths[predicate.number] = self._truth(predicate, assumed, truths)
        return truths[predicate.number]

    def _truth(
        self, predicate: Value, assumed: Assumptions, truths: dict[int, bool | None]
    ) -> bool | None:
        statement = self.definitions.get(predicate.number)
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
        candidate = self.literal(predicate)
        if candidate is None:
            return None
        holds = implied(candidate.condition, assumed)
        return None if holds is None else holds is candidate.holds

    def emit_invariants(self, conditions: Iterable[Condition], sums: Iterable[AffineSum]) -> None:
        """Emit the invariant statements on which conditions and sums depend, before the loop."""
        required: set[int] = set()
        number_of = {
            self.printer.value(result): number
            for number in self.invariant_numbers
            for result in results_of(self.definitions[number])
        }
        required_sums = list(sums)
        for condition in conditions:
            if isinstance(condition, Below):
                required_sums.append(condition.sum)
            else:
                required.add(condition.number)
        values = [term.value for affine_sum in required_sums for term in affine_sum.terms]
        required.update(number_of[value] for value in values if value in number_of)
        pending = list(required)
        while pending:
            for value in uses_of(self.definitions[pending.pop()]):
                if value.number not in required:
                    required.add(value.number)
                    pending.append(value.number)
        for number in sorted(required):  # a value has a larger number than its operands
            self.printer.statement(self.definitions[number])


def implied(condition: Condition, assumed: Assumptions) -> bool | None:
    """The value of a condition under the assumed ones; None if they do not imply it."""
    if condition in assumed:
        return assumed[condition]
    if isinstance(condition, InvariantCondition):
        return None
    for assumed_condition, holds in assumed.items():
        if isinstance(assumed_condition, Below) and _same_but_constant(
            condition, assumed_condition
        ):
            offset = condition.sum.constant - assumed_condition.sum.constant
            if (holds and offset <= 0) or (not holds and offset >= 0):
                return holds
    return None


def _same_but_constant(a: Below, b: Below) -> bool:
    """Whether the sums of two conditions differ by a constant."""
    return replace(a.sum, constant=0) == replace(b.sum, constant=0)
