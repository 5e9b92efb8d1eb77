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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce as fold
from typing import TYPE_CHECKING

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.kir.walk import owned_blocks, pruned, statements
from gpuflow.targets.cpu.codegen.loops.nodes import Expression, Name, call
from gpuflow.targets.cpu.codegen.loops.nodes import Literal as Number
from gpuflow.targets.cpu.codegen.printing.conditions import (
    Assumed,
    Below,
    Facts,
    Holds,
    Literal,
    Sum,
    implied,
)
from gpuflow.targets.cpu.codegen.printing.selected_loads import (
    SelectedLoad,
    elements_of,
    predicates_of,
    print_selection,
    with_selected_loads,
)

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter
    from gpuflow.targets.cpu.codegen.printing.program_builder import Span

MOST_LOOPS = 64  # loops that one loop may become
MOST_STATEMENTS = 512  # statements of all these loops


@record
class Leaf:
    """One loop over a range of points."""

    body: Block


@record
class Fork:
    """A range that is split at a boundary (Below), or unswitched by an invariant (Holds)."""

    on: Below | Holds
    when_true: Tree
    when_false: Tree


@record
class Core:
    """A range in three parts.

    Attributes:
        literals: the conditions.
        interior: the loop over the points at which all of them hold.
        around: the loop over the points before and after these.
    """

    literals: tuple[Literal, ...]
    interior: Leaf
    around: Leaf


Tree = Leaf | Fork | Core


class _TooManyError(Exception):
    """The loop would be split into too many loops."""


def subranges(
    printer: CpuPrinter, axis: nodes.Axis, span: Span, body: Block
) -> Iterator[tuple[Block, Span]]:
    """Emit the code around the subranges of a loop; yields the body and range of each.

    The caller must emit the loop over each subrange before it requests the next one.

    Args:
        printer: the ``CpuPrinter`` of the kernel, positioned before the loop.
        axis: axis of the loop.
        span: range of the loop.
        body: body of the loop.
    """
    exact = {a.name: a.exact for a in printer.kernel.axes}
    loops = (s.axis for s in statements(body) if isinstance(s, nodes.For) and s.axis is not None)
    is_innermost = all(exact[name] is not None for name in loops)  # exact loops are unrolled
    if not is_innermost or next(_conditions(body), None) is None:
        yield body, span
        return
    facts = Facts(printer, axis, body)
    if not facts.is_short:
        body = with_selected_loads(facts, body)
    loads = [statement for statement in body.body if isinstance(statement, SelectedLoad)]
    tree = _tree(facts, body) if printer.counts_from_zero else Leaf(_without_branches(facts, body))
    predicates = [Holds(v.number) for load in loads for v in predicates_of(load.source)]
    offsets = [element.offset for load in loads for element in elements_of(load.source)]
    facts.print_invariants([*_tested(tree), *predicates], offsets)
    for load in loads:
        print_selection(printer, load)
    yield from _Subranges(printer, axis).of(tree, span)


def short_counters(kernel: nodes.Kernel) -> list[str]:
    """Index operands that vary along a short innermost axis only, if there are conditions.

    Their base is nearly always 0. Then boundaries are constants, and such a row is unrolled.
    """
    if kernel.kind != "map" or not kernel.axes or kernel.axes[-1].exact is None:
        return []
    if next(_conditions(kernel.body), None) is None:
        return []
    position = len(kernel.axes) - 1
    return [
        operand.name
        for operand in kernel.operands
        if operand.mode is Mode.INDEX
        and operand.strides[position:] == (Stride.UNIT,)
        and set(operand.strides[:position]) <= {Stride.ZERO}
    ]


# --- the subranges of a loop ---------------------------------------------------------------


def _tested(tree: Tree) -> Iterator[Below | Holds]:
    if isinstance(tree, Fork):
        yield tree.on
        yield from _tested(tree.when_true)
        yield from _tested(tree.when_false)
    elif isinstance(tree, Core):
        yield from (on for on, _ in tree.literals)


def _conditions(block: Block) -> Iterator[Value]:
    """Yield the conditions of accesses and branches; those of outer branches come first."""
    for statement in block.body:
        if isinstance(statement, nodes.If):
            yield statement.predicate
            yield from _conditions(statement.then)
            yield from _conditions(statement.orelse)
        elif isinstance(statement, nodes.Load | nodes.Store) and statement.where is not None:
            yield statement.where
        elif isinstance(statement, nodes.For) and statement.axis is not None:
            yield from _conditions(statement.body)


def _tree(facts: Facts, body: Block) -> Tree:
    most = MOST_STATEMENTS // 4 if facts.is_short else MOST_STATEMENTS
    try:
        return _Grower(facts, most).grown(body, {})
    except _TooManyError:
        return _core(facts, body)


class _Grower:
    """Builds a tree whose leaves have no conditions that can be decided by splitting.

    Its leaves have at most ``most`` statements; else ``grown`` raises _TooManyError.
    """

    def __init__(self, facts: Facts, most: int) -> None:
        self.facts, self.most = facts, most
        self.loops = self.statements = 0

    def grown(self, block: Block, assumed: Assumed) -> Tree:
        """The tree of a block, for the points at which the assumed conditions hold."""
        facts = self.facts
        block = folded(facts, block, assumed)
        undecided = (
            on
            for condition in _conditions(block)
            for on, _ in facts.literals(condition)
            if implied(on, assumed) is None
        )
        on = next(undecided, None)
        if on is not None:
            sides = (self.grown(block, {**assumed, on: holds}) for holds in (True, False))
            return Fork(on, *sides)
        self.loops += 1
        self.statements += sum(1 for _ in statements(block))
        if assumed and (self.loops > MOST_LOOPS or self.statements > self.most):
            raise _TooManyError
        return Leaf(_without_branches(facts, block))


def _core(facts: Facts, body: Block) -> Tree:
    flat = _without_branches(facts, body)
    literals: dict[Below | Holds, bool] = {}
    for condition in _conditions(flat):
        for on, holds in facts.literals(condition):
            literals.setdefault(on, holds)
    if not literals:
        return Leaf(flat)
    return Core(tuple(literals.items()), Leaf(folded(facts, flat, literals)), Leaf(flat))


def folded(facts: Facts, block: Block, assumed: Assumed) -> Block:
    """Fold the assumed conditions in a block, and drop dead statements."""
    truths: dict[int, bool | None] = {}
    return pruned(_folded(block, lambda condition: facts.truth(condition, assumed, truths)))


def _folded(block: Block, truth: Callable[[Value], bool | None]) -> Block:
    body: list[Statement] = []
    for statement in block.body:
        match statement:
            case nodes.If(predicate=predicate):
                holds = truth(predicate)
                if holds is None:
                    then, orelse = (_folded(b, truth) for b in owned_blocks(statement))
                    body.append(replace(statement, then=then, orelse=orelse))
                    continue
                selected = _folded(statement.then if holds else statement.orelse, truth)
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
                body.append(replace(statement, body=_folded(statement.body, truth)))
            case nodes.Apply(outs=(Value(dtype="bool") as out,)):
                holds = truth(out)
                body.append(statement if holds is None else nodes.Const(out, holds))
            case _:
                body.append(statement)
    return replace(block, body=tuple(body))


def _without_branches(facts: Facts, block: Block) -> Block:
    """If-conversion: branches become selects and guarded accesses.

    LLVM would convert branches to masked loads.
    """
    if not any(isinstance(s, nodes.If) for s in statements(block)):
        return block
    return _Flattener(facts.printer.unused_numbers).block(block, None)


class _Flattener:
    """Converts branches to selects and guarded accesses; new values get ``numbers``.

    Loops over axes that are not in a branch remain unchanged: they are split at their own
    boundaries.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def block(self, block: Block, where: Value | None) -> Block:
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
                both = self._both(where, statement.where, body)
                body.append(replace(statement, where=both))
            else:
                body.append(statement)
        return replace(block, body=tuple(body))

    def _branch(self, s: nodes.If, where: Value | None, body: list[Statement]) -> None:
        inner = (*statements(s.then), *statements(s.orelse))
        if any(isinstance(i, nodes.Reduce | nodes.While) for i in inner):
            assert where is None, "a branch with a loop is not inside another branch"
            body.append(s)
            return
        opposite = self._fresh()
        body.append(nodes.Apply((opposite,), "not", (s.predicate,)))
        then = self.block(s.then, self._both(s.predicate, where, body))
        orelse = self.block(s.orelse, self._both(opposite, where, body))
        body += [*then.body, *orelse.body]
        for out, a, b in zip(s.outs, then.results, orelse.results, strict=True):
            body.append(nodes.Select(out, s.predicate, a, b))

    def _both(self, a: Value, b: Value | None, body: list[Statement]) -> Value:
        if b is None:
            return a
        conjunction = self._fresh()
        body.append(nodes.Apply((conjunction,), "and", (a, b)))
        return conjunction

    def _fresh(self) -> Value:
        return Value(next(self.numbers), "bool")


# --- code ----------------------------------------------------------------------------------


class _Subranges:
    """Emits boundaries and conditions, and yields the subranges of a tree."""

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis) -> None:
        self.printer, self.axis = printer, axis

    def of(self, tree: Tree, span: Span) -> Iterator[tuple[Block, Span]]:
        """Yield the body and range of each leaf, for a range."""
        if span[0] == span[1]:
            return
        match tree:
            case Leaf(body):
                yield body, span
            case Fork(Below() as on, when_true, when_false):
                boundary = self._named(_clamped(_boundary(on.sum), *span))
                yield from self.of(when_true, (span[0], boundary))
                yield from self.of(when_false, (boundary, span[1]))
            case Fork(Holds(number), when_true, when_false):
                with self.printer.when(self._condition(number)):
                    yield from self.of(when_true, span)
                with self.printer.otherwise():
                    yield from self.of(when_false, span)
            case Core():
                yield from self._core(tree, span)

    def _condition(self, number: int) -> Expression:
        return self.printer.value(Value(number, "bool"))

    def _core(self, tree: Core, span: Span) -> Iterator[tuple[Block, Span]]:
        """Yield the interior; then, inside a loop of two iterations, the ranges around it."""
        first, last = span
        for on, holds in tree.literals:
            if isinstance(on, Holds):
                continue
            boundary = _boundary(on.sum)
            if holds:
                last = self._named(_clamped(boundary, span[0], last))
            else:
                first = self._named(_clamped(boundary, first, span[1]))
        invariants = [on for on, _ in tree.literals if isinstance(on, Holds)]
        conditions = [self._condition(on.number) for on in invariants]
        last = self._named(_most(first, last))
        if conditions:
            condition = fold(Expression.__and__, conditions)
            first, last = (
                self._named(call("select_int64", condition, bound, span[0]))
                for bound in (first, last)
            )
        yield from self.of(tree.interior, (first, last))
        if first == span[0] or last == span[1]:
            around = (last, span[1]) if first == span[0] else (span[0], first)
            yield from self.of(tree.around, around)
            return
        side = self.printer.boundary_name(self.axis)
        with self.printer.loop_over(side, (Number(0), Number(2))):
            is_before = Name(side).equals(0)
            begin = self._named(call("select_int64", is_before, span[0], last))
            end = self._named(call("select_int64", is_before, first, span[1]))
            yield from self.of(tree.around, (begin, end))

    def _named(self, value: Expression) -> Expression:
        """Assign a value to a new variable; variables and nonnegative numbers are returned."""
        if isinstance(value, Name) or (isinstance(value, Number) and value.value >= 0):
            return value
        name = self.printer.boundary_name(self.axis)
        self.printer.set(name, value)
        return Name(name)


def _boundary(difference: Sum) -> Expression:
    """The first index at which a sum is not negative; the caller must clamp it to the range."""
    constant = -difference.constant
    if difference.multiple > 1 and not difference.stride:  # rounded up
        constant += difference.multiple - 1
    total: Expression = Number(constant)
    for term, count in difference.terms:
        scaled = term if abs(count) == 1 else Number(abs(count)) * term
        total = total - scaled if count > 0 else total + scaled
    if difference.stride is not None:
        by = difference.stride
        if difference.multiple > 1:
            by = Number(difference.multiple) * by
        # Rounds a negative quotient towards zero, which clamping corrects.
        return call("div_int64", total + by - 1, by)
    if difference.multiple > 1:
        if not difference.terms:
            return Number(constant // difference.multiple)
        return call("div_int64", total, difference.multiple)
    return total


def _clamped(boundary: Expression, first: Expression, last: Expression) -> Expression:
    return _most(_least(boundary, last), first)


def _least(a: Expression, b: Expression) -> Expression:
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(min(a.value, b.value))
    return call("min_int64", a, b)


def _most(a: Expression, b: Expression) -> Expression:
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(max(a.value, b.value))
    return a if a == b else call("max_int64", a, b)
