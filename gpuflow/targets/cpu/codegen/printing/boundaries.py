"""Index set splitting: loops are split at the indices at which conditions of accesses change.

A roll reads an array at one offset below some index, and at another offset from there on. LLVM
would emit a masked load over the whole loop for each read. Its inactive elements may be out of
bounds. If that memory is not mapped, a processor takes 150 ns for each such load, to find out that
no active element has faulted. So a loop is split at its boundaries:

    for i in range(0, n):                       border = clamp(n - 1, 0, n)
        if i < n - 1: a = x[i + 1]       ->     for i in range(0, border): o[i] = x[i + 1]
        else: a = x[i - (n - 1)]                for i in range(border, n): o[i] = x[i - (n - 1)]
        o[i] = a

Loop-invariant conditions are evaluated before the loop (loop unswitching). Two cases remain:

- A loop has too many boundaries to split at each. It is split into three ranges: between the last
  boundary that enables an access and the first that disables one, all accesses are unconditional.
- Conditions on data, and conditions before and after that range: the load is guarded
  (``guarded_reader`` in ``functions``), so that a disabled element reads an argument slot.

A condition of a branch or an access is a predicate, a bool Value of KernelIR. ``conditions`` finds
the conditions that it consists of: comparisons with a boundary, and invariants.

Tests: tests/targets/cpu/test_cpu_boundaries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce as fold
from typing import TYPE_CHECKING, NamedTuple

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.kir.walk import owned_blocks, statements, without_dead_code
from gpuflow.targets.cpu.codegen.loops.nodes import Expression, IntLiteral, Name, call
from gpuflow.targets.cpu.codegen.printing.conditions import (
    AffineSum,
    Assumptions,
    Below,
    Condition,
    InvariantCondition,
    Literal,
    LoopAnalysis,
    implied,
)
from gpuflow.targets.cpu.codegen.printing.program_builder import Span
from gpuflow.targets.cpu.codegen.printing.selected_loads import (
    SelectedLoad,
    elements_of,
    emit_selection,
    predicates_of,
    with_selected_loads,
)

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

MAX_LOOPS = 64  # loops that one loop may become
MAX_STATEMENTS = 512  # statements of all these loops


@record
class Leaf:
    """One loop over a range of points.

    Attributes:
        body: statements of the loop, for the points of the range.
    """

    body: Block


@record
class Split:
    """A range that is split at a boundary (Below), or unswitched by an invariant.

    Attributes:
        condition: the condition.
        when_true, when_false: trees of the points at which it holds, and of the others. For a
            boundary, the former come first.
    """

    condition: Condition
    when_true: SplitTree
    when_false: SplitTree


@record
class InteriorSplit:
    """A range in three parts: before the interior, the interior, and after it.

    Attributes:
        literals: the conditions, and the value of each in the interior.
        interior: the loop over the points at which all of them have these values.
        around: the loop over the points before and after these.
    """

    literals: tuple[Literal, ...]
    interior: Leaf
    around: Leaf


SplitTree = Leaf | Split | InteriorSplit


class _TooManyLoopsError(Exception):
    """The loop would be split into too many loops."""


class Subrange(NamedTuple):
    """The body of a loop for a part of its range, and that part."""

    body: Block
    span: Span


def subranges(printer: CpuPrinter, axis: nodes.Axis, span: Span, body: Block) -> Iterator[Subrange]:
    """Emit the code around the subranges of a loop; yields the body and range of each.

    The caller must emit the loop over each subrange before it requests the next one.

    Args:
        printer: the ``CpuPrinter`` of the kernel, positioned before the loop.
        axis: axis of the loop.
        span: range of the loop.
        body: body of the loop.
    """
    exact_extents = {a.name: a.exact for a in printer.kernel.axes}
    loops = (s.axis for s in statements(body) if isinstance(s, nodes.For) and s.axis is not None)
    is_innermost = all(
        exact_extents[name] is not None for name in loops
    )  # exact loops are unrolled
    if not is_innermost or next(_conditions(body), None) is None:
        yield Subrange(body, span)
        return
    analysis = LoopAnalysis(printer, axis, body)
    if not analysis.is_unrolled:
        body = with_selected_loads(analysis, body)
    loads = [statement for statement in body.body if isinstance(statement, SelectedLoad)]
    if printer.has_zero_bases:
        tree = _split_tree(analysis, body)
    else:
        tree = Leaf(_if_converted(analysis, body))
    predicates = [v for load in loads for v in predicates_of(load.source)]
    selections = [InvariantCondition(predicate.number) for predicate in predicates]
    offsets = [element.offset for load in loads for element in elements_of(load.source)]
    analysis.emit_invariants([*_tested_conditions(tree), *selections], offsets)
    for load in loads:
        emit_selection(printer, load)
    yield from _Subranges(printer, axis).emit(tree, span)


def short_counters(kernel: nodes.Kernel) -> list[str]:
    """Index operands that vary along a short innermost axis only, if there are conditions.

    Their base is nearly always 0. Then boundaries are constants, and such a row is unrolled.
    """
    if kernel.kind != "map" or not kernel.axes or kernel.axes[-1].exact is None:
        return []
    if next(_conditions(kernel.body), None) is None:
        return []
    axis_index = len(kernel.axes) - 1
    return [
        operand.name
        for operand in kernel.operands
        if operand.mode is Mode.INDEX
        and operand.strides[axis_index:] == (Stride.UNIT,)
        and set(operand.strides[:axis_index]) <= {Stride.ZERO}
    ]


# --- the subranges of a loop ---------------------------------------------------------------


def _tested_conditions(tree: SplitTree) -> Iterator[Condition]:
    """Yield the conditions that the code of a tree evaluates."""
    if isinstance(tree, Split):
        yield tree.condition
        yield from _tested_conditions(tree.when_true)
        yield from _tested_conditions(tree.when_false)
    elif isinstance(tree, InteriorSplit):
        yield from (condition for condition, _ in tree.literals)


def _conditions(block: Block) -> Iterator[Value]:
    """Yield the predicates of accesses and branches; those of outer branches come first."""
    for statement in block.body:
        if isinstance(statement, nodes.If):
            yield statement.predicate
            yield from _conditions(statement.then)
            yield from _conditions(statement.orelse)
        elif isinstance(statement, nodes.Load | nodes.Store) and statement.where is not None:
            yield statement.where
        elif isinstance(statement, nodes.For) and statement.axis is not None:
            yield from _conditions(statement.body)


def _split_tree(analysis: LoopAnalysis, body: Block) -> SplitTree:
    """Split at each boundary; if that takes too many loops, into an interior and the rest."""
    max_statements = MAX_STATEMENTS // 4 if analysis.is_unrolled else MAX_STATEMENTS
    try:
        return _TreeBuilder(analysis, max_statements).build(body, {})
    except _TooManyLoopsError:
        return _interior_split(analysis, body)


class _TreeBuilder:
    """Builds a tree whose leaves have no conditions that can be decided by splitting.

    It has at most ``MAX_LOOPS`` leaves, with at most ``max_statements`` statements in all; else
    ``build`` raises _TooManyLoopsError. A tree without conditions has no limit. Each builder builds
    one tree.
    """

    def __init__(self, analysis: LoopAnalysis, max_statements: int) -> None:
        self.analysis, self.max_statements = analysis, max_statements
        self.loop_count = self.statement_count = 0

    def build(self, block: Block, assumed: Assumptions) -> SplitTree:
        """The tree of a block, for the points at which the assumed conditions hold."""
        analysis = self.analysis
        block = fold_assumptions(analysis, block, assumed)
        undecided = (
            condition
            for predicate in _conditions(block)
            for condition, _ in analysis.literals(predicate)
            if implied(condition, assumed) is None
        )
        condition = next(undecided, None)
        if condition is not None:
            sides = (self.build(block, {**assumed, condition: holds}) for holds in (True, False))
            return Split(condition, *sides)
        self.loop_count += 1
        self.statement_count += sum(1 for _ in statements(block))
        if assumed and (self.loop_count > MAX_LOOPS or self.statement_count > self.max_statements):
            raise _TooManyLoopsError
        return Leaf(_if_converted(analysis, block))


def _interior_split(analysis: LoopAnalysis, body: Block) -> SplitTree:
    """Split into the points at which all accesses are unconditional, and those around them."""
    flat = _if_converted(analysis, body)
    assumed: Assumptions = {}
    for predicate in _conditions(flat):
        for condition, holds in analysis.literals(predicate):
            assumed.setdefault(condition, holds)
    if not assumed:
        return Leaf(flat)
    literals = tuple(Literal(condition, holds) for condition, holds in assumed.items())
    return InteriorSplit(literals, Leaf(fold_assumptions(analysis, flat, assumed)), Leaf(flat))


def fold_assumptions(analysis: LoopAnalysis, block: Block, assumed: Assumptions) -> Block:
    """Fold the assumed conditions in a block, and drop dead statements."""
    truths: dict[int, bool | None] = {}
    return without_dead_code(
        _fold_block(block, lambda predicate: analysis.truth(predicate, assumed, truths))
    )


def _fold_block(block: Block, truth: Callable[[Value], bool | None]) -> Block:
    """Fold predicates in a block; ``truth`` returns the value of one, or None if undecided."""
    body: list[Statement] = []
    for statement in block.body:
        match statement:
            case nodes.If(predicate=predicate):
                holds = truth(predicate)
                if holds is None:
                    then, orelse = (_fold_block(b, truth) for b in owned_blocks(statement))
                    body.append(replace(statement, then=then, orelse=orelse))
                    continue
                selected = _fold_block(statement.then if holds else statement.orelse, truth)
                body += selected.body
                pairs = zip(statement.outs, selected.results, strict=True)
                body += [nodes.Cast(out, result) for out, result in pairs]
            case nodes.Load(where=Value() as where) | nodes.Store(where=Value() as where):
                holds = truth(where)
                if holds is None:
                    body.append(statement)
                elif holds:
                    body.append(replace(statement, where=None))
                elif isinstance(statement, nodes.Load):
                    body.append(nodes.Const(statement.out, 0))
            case nodes.For(axis=str()):
                body.append(replace(statement, body=_fold_block(statement.body, truth)))
            case nodes.Apply(outs=(Value(dtype="bool") as out,)):
                holds = truth(out)
                body.append(statement if holds is None else nodes.Const(out, holds))
            case _:
                body.append(statement)
    return replace(block, body=tuple(body))


def _if_converted(analysis: LoopAnalysis, block: Block) -> Block:
    """If-conversion: branches become selects and guarded accesses.

    LLVM would convert branches to masked loads.
    """
    if not any(isinstance(s, nodes.If) for s in statements(block)):
        return block
    return _IfConverter(analysis.printer.new_value_numbers).block(block, None)


class _IfConverter:
    """Converts branches to selects and guarded accesses; new values get ``numbers``.

    Loops over axes that are not in a branch remain unchanged: they are split at their own
    boundaries.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def block(self, block: Block, where: Value | None) -> Block:
        """Convert a block that is in branches with the predicate ``where``; None: in none."""
        body: list[Statement] = []
        for statement in block.body:
            if isinstance(statement, nodes.For):
                if where is not None or statement.axis is None:
                    inner = self.block(statement.body, where)
                    statement = replace(statement, body=inner)
                body.append(statement)
            elif isinstance(statement, nodes.If):
                self._branch(statement, where, body)
            elif isinstance(statement, nodes.Load | nodes.Store) and where is not None:
                conjunction = self._conjunction(where, statement.where, body)
                body.append(replace(statement, where=conjunction))
            else:
                body.append(statement)
        return replace(block, body=tuple(body))

    def _branch(self, branch: nodes.If, where: Value | None, body: list[Statement]) -> None:
        inner_statements = (*statements(branch.then), *statements(branch.orelse))
        if any(isinstance(statement, nodes.Reduce | nodes.While) for statement in inner_statements):
            assert where is None, "a branch with a loop is not inside another branch"
            body.append(branch)
            return
        opposite = self._new_condition()
        body.append(nodes.Apply((opposite,), "not", (branch.predicate,)))
        then = self.block(branch.then, self._conjunction(branch.predicate, where, body))
        orelse = self.block(branch.orelse, self._conjunction(opposite, where, body))
        body += [*then.body, *orelse.body]
        for out, a, b in zip(branch.outs, then.results, orelse.results, strict=True):
            body.append(nodes.Select(out, branch.predicate, a, b))

    def _conjunction(self, a: Value, b: Value | None, body: list[Statement]) -> Value:
        """The predicate ``a and b``, whose statement is appended to ``body``; ``a`` for None."""
        if b is None:
            return a
        conjunction = self._new_condition()
        body.append(nodes.Apply((conjunction,), "and", (a, b)))
        return conjunction

    def _new_condition(self) -> Value:
        return Value(next(self.numbers), "bool")


# --- code ----------------------------------------------------------------------------------


class _Subranges:
    """Emits boundaries and conditions, and yields the subranges of a tree."""

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis) -> None:
        self.printer, self.axis = printer, axis

    def emit(self, tree: SplitTree, span: Span) -> Iterator[Subrange]:
        """Yield the body and range of each leaf, for a range."""
        if span.first == span.end:
            return
        match tree:
            case Leaf(body):
                yield Subrange(body, span)
            case Split(Below() as condition, when_true, when_false):
                boundary = self._variable(_clamp(_boundary(condition.sum), *span))
                yield from self.emit(when_true, Span(span.first, boundary))
                yield from self.emit(when_false, Span(boundary, span.end))
            case Split(InvariantCondition(number), when_true, when_false):
                with self.printer.when(self._condition(number)):
                    yield from self.emit(when_true, span)
                with self.printer.otherwise():
                    yield from self.emit(when_false, span)
            case InteriorSplit():
                yield from self._emit_interior_split(tree, span)

    def _condition(self, number: int) -> Expression:
        """The value of an invariant condition, which has been emitted before the loop."""
        return self.printer.value(Value(number, "bool"))

    def _emit_interior_split(self, tree: InteriorSplit, span: Span) -> Iterator[Subrange]:
        """Yield the interior; then, inside a loop of two iterations, the ranges around it."""
        interior_first, interior_end = span
        for condition, holds in tree.literals:
            if isinstance(condition, InvariantCondition):
                continue
            boundary = _boundary(condition.sum)
            if holds:
                interior_end = self._variable(_clamp(boundary, span.first, interior_end))
            else:
                interior_first = self._variable(_clamp(boundary, interior_first, span.end))
        # The literal of an invariant is always positive: it must hold in the interior.
        tested = (condition for condition, _ in tree.literals)
        invariants = [one for one in tested if isinstance(one, InvariantCondition)]
        conditions = [self._condition(invariant.number) for invariant in invariants]
        interior_end = self._variable(_maximum(interior_first, interior_end))
        if conditions:
            predicate = fold(Expression.__and__, conditions)
            interior_first, interior_end = (
                self._variable(call("select_int64", predicate, endpoint, span.first))
                for endpoint in (interior_first, interior_end)
            )
        yield from self.emit(tree.interior, Span(interior_first, interior_end))
        if interior_first == span.first:
            yield from self.emit(tree.around, Span(interior_end, span.end))
            return
        if interior_end == span.end:
            yield from self.emit(tree.around, Span(span.first, interior_first))
            return
        side = self.printer.boundary_name(self.axis)
        with self.printer.loop_over(side, Span(IntLiteral(0), IntLiteral(2))):
            is_before = Name(side).equals(0)
            begin = self._variable(call("select_int64", is_before, span.first, interior_end))
            end = self._variable(call("select_int64", is_before, interior_first, span.end))
            yield from self.emit(tree.around, Span(begin, end))

    def _variable(self, value: Expression) -> Expression:
        """Assign a value to a new variable; variables and nonnegative numbers are returned."""
        if isinstance(value, Name) or (isinstance(value, IntLiteral) and value.value >= 0):
            return value
        name = self.printer.boundary_name(self.axis)
        self.printer.set(name, value)
        return Name(name)


def _boundary(affine_sum: AffineSum) -> Expression:
    """The first index at which a sum is not negative; the caller must clamp it to the range.

    ``affine_sum.multiple`` and the stride must be positive.
    """
    constant = -affine_sum.constant
    if affine_sum.multiple > 1 and not affine_sum.stride:  # rounded up
        constant += affine_sum.multiple - 1
    total: Expression = IntLiteral(constant)
    for invariant_term, count in affine_sum.terms:
        scaled = invariant_term if abs(count) == 1 else IntLiteral(abs(count)) * invariant_term
        total = total - scaled if count > 0 else total + scaled
    if affine_sum.stride is not None:
        divisor = affine_sum.stride
        if affine_sum.multiple > 1:
            divisor = IntLiteral(affine_sum.multiple) * divisor
        # Rounds a negative quotient towards zero, which clamping corrects.
        return call("div_int64", total + divisor - 1, divisor)
    if affine_sum.multiple > 1:
        if not affine_sum.terms:
            return IntLiteral(constant // affine_sum.multiple)
        return call("div_int64", total, affine_sum.multiple)
    return total


def _clamp(boundary: Expression, first: Expression, end: Expression) -> Expression:
    return _maximum(_minimum(boundary, end), first)


def _minimum(a: Expression, b: Expression) -> Expression:
    if isinstance(a, IntLiteral) and isinstance(b, IntLiteral):
        return IntLiteral(min(a.value, b.value))
    return call("min_int64", a, b)


def _maximum(a: Expression, b: Expression) -> Expression:
    if isinstance(a, IntLiteral) and isinstance(b, IntLiteral):
        return IntLiteral(max(a.value, b.value))
    return a if a == b else call("max_int64", a, b)
