"""Split a CPU loop at the indices at which conditions of its accesses change.

A roll reads one array below an index and another offset of it from there on. With LLVM alone, each
such read becomes a masked load over the whole loop, with inactive elements that may be outside of
the array. If that memory is not mapped, a processor takes 150 ns for each of these loads: it has to
find out that no active element has faulted. So a loop is split at its boundaries:

    for i in range(0, n):                       border = clamp(n - 1, 0, n)
        if i < n - 1: a = x[i + 1]       ->     for i in range(0, border): o[i] = x[i + 1]
        else: a = x[i - (n - 1)]                for i in range(border, n): o[i] = x[i - (n - 1)]
        o[i] = a

Conditions that do not depend on the loop are evaluated before it. The remaining ones are conditions
on data, and loops with too many boundaries to specialize: all accesses of such a loop are
unconditional between the last boundary that enables one and the first that disables one. Outside of
that range, and for conditions on data, a load takes its address from the condition
(``guarded_reader`` in ``functions``): a disabled element reads an argument slot.
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

MOST_LOOPS = 64  # that one loop becomes
MOST_STATEMENTS = 512  # of all of them


@record
class Leaf:
    """A loop over a range of points."""

    body: Block


@record
class Fork:
    """Points below a boundary and the others; or a loop-invariant condition for both."""

    on: Below | Holds
    when_true: Tree
    when_false: Tree


@record
class Core:
    """The points at which every literal holds, and those before and after them."""

    literals: tuple[Literal, ...]
    interior: Leaf
    around: Leaf


Tree = Leaf | Fork | Core


class _TooManyError(Exception):
    """A loop would be split into too many loops."""


def subranges(
    printer: CpuPrinter, axis: nodes.Axis, span: Span, body: Block
) -> Iterator[tuple[Block, Span]]:
    """Print the code around the subranges of a loop; yield the body and range of each.

    Args:
        printer: the ``CpuPrinter`` of the kernel, before the loop.
        axis: the loop's.
        span: its bounds.
        body: its statements.
    """
    exact = {a.name: a.exact for a in printer.kernel.axes}
    loops = (s.axis for s in statements(body) if isinstance(s, nodes.For) and s.axis is not None)
    is_innermost = all(exact[name] is not None for name in loops)  # short loops are written out
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
    """Index operands along a short innermost axis alone, if conditions may need them.

    They nearly always count from 0. Then boundaries are constants, and such a row is unrolled.
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
    """Yield the conditions of accesses and branches, those of outer branches first."""
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
    """Makes a tree that decides every condition, of at most ``most`` statements."""

    def __init__(self, facts: Facts, most: int) -> None:
        self.facts, self.most = facts, most
        self.loops = self.statements = 0

    def grown(self, block: Block, assumed: Assumed) -> Tree:
        """The tree of a block, for points at which the assumed conditions hold."""
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
    """The required statements of the block after folding the assumed conditions."""
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
    """The block with branches that only load and compute made selections of guarded loads.

    LLVM would make masked loads of them.
    """
    if not any(isinstance(s, nodes.If) for s in statements(block)):
        return block
    return _Flattener(facts.printer.unused_numbers).block(block, None)


class _Flattener:
    """Makes selections of branches; new values get ``numbers``.

    Loops over axes outside of branches remain: they are split at their own boundaries.
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
    """Prints boundaries and conditions."""

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis) -> None:
        self.printer, self.axis = printer, axis

    def of(self, tree: Tree, span: Span) -> Iterator[tuple[Block, Span]]:
        """The subranges of a range."""
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
        """The range between the boundaries; then, in one loop, the ranges before and after it."""
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
        """A variable that holds a value; numbers and variables themselves."""
        if isinstance(value, Name) or (isinstance(value, Number) and value.value >= 0):
            return value
        name = self.printer.boundary_name(self.axis)
        self.printer.set(name, value)
        return Name(name)


def _boundary(difference: Sum) -> Expression:
    """The first index at which a sum is not negative, before it is clamped."""
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
        # Rounded towards zero, which clamping makes good below it.
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
