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
(``guarded_reader`` in ``functions``): a disabled element reads a valid word.
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
from gpuflow.targets.cpu.codegen.printing.chosen import (
    ChosenLoad,
    leaves_of,
    predicates_of,
    print_choice,
    with_chosen_loads,
)
from gpuflow.targets.cpu.codegen.printing.conditions import (
    Below,
    Facts,
    Holds,
    Known,
    Literal,
    Sum,
    implied,
)

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter
    from gpuflow.targets.cpu.codegen.printing.program_builder import Span

MOST_LOOPS = 64  # that one loop becomes
MOST_STATEMENTS = 512  # of all of them together


@record
class Leaf:
    """A loop over a range."""

    body: Block


@record
class Fork:
    """Points below a border and the others; or a condition before both."""

    on: Below | Holds
    when_true: Tree
    when_false: Tree


@record
class Core:
    """The points at which every literal holds, and those around them."""

    literals: tuple[Literal, ...]
    inside: Leaf
    around: Leaf


Tree = Leaf | Fork | Core


class _TooManyError(Exception):
    """A loop would become too many."""


def pieces(
    printer: CpuPrinter, axis: nodes.Axis, span: Span, body: Block
) -> Iterator[tuple[Block, Span]]:
    """Print the code around the pieces of a loop; yields each one's body and its range.

    Args:
        printer: the ``CpuPrinter`` of the kernel, before the loop.
        axis: the loop's.
        span: where it begins and ends.
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
        body = with_chosen_loads(facts, body)
    chosen = [statement for statement in body.body if isinstance(statement, ChosenLoad)]
    tree = _tree(facts, body) if printer.counts_from_zero else Leaf(_without_branches(facts, body))
    predicates = [Holds(v.number) for load in chosen for v in predicates_of(load.place)]
    places = [leaf.place for load in chosen for leaf in leaves_of(load.place)]
    facts.print_invariants([*_asked(tree), *predicates], places)
    for load in chosen:
        print_choice(printer, load)
    yield from _Pieces(printer, axis).of(tree, span)


def short_counters(kernel: nodes.Kernel) -> list[str]:
    """The operands that count along a short innermost axis alone, where conditions may need them.

    They nearly always count from 0. Then borders are numbers, and such a row is written out.
    """
    if kernel.kind != "map" or not kernel.axes or kernel.axes[-1].exact is None:
        return []
    if next(_conditions(kernel.body), None) is None:
        return []
    place = len(kernel.axes) - 1
    return [
        operand.name
        for operand in kernel.operands
        if operand.mode is Mode.INDEX
        and operand.strides[place:] == (Stride.UNIT,)
        and set(operand.strides[:place]) <= {Stride.ZERO}
    ]


# --- the pieces of a loop ------------------------------------------------------------------


def _asked(tree: Tree) -> Iterator[Below | Holds]:
    if isinstance(tree, Fork):
        yield tree.on
        yield from _asked(tree.when_true)
        yield from _asked(tree.when_false)
    elif isinstance(tree, Core):
        yield from (on for on, _ in tree.literals)


def _conditions(block: Block) -> Iterator[Value]:
    """The conditions of accesses and branches, those of outer branches first."""
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
    """Makes a tree that decides every condition, of at most so many statements."""

    def __init__(self, facts: Facts, most: int) -> None:
        self.facts, self.most = facts, most
        self.loops = self.statements = 0

    def grown(self, block: Block, known: Known) -> Tree:
        """The tree of a block, for points where the known conditions hold."""
        facts = self.facts
        block = folded(facts, block, known)
        undecided = (
            on
            for condition in _conditions(block)
            for on, _ in facts.literals(condition)
            if implied(on, known) is None
        )
        on = next(undecided, None)
        if on is not None:
            return Fork(
                on, self.grown(block, {**known, on: True}), self.grown(block, {**known, on: False})
            )
        self.loops += 1
        self.statements += sum(1 for _ in statements(block))
        if known and (self.loops > MOST_LOOPS or self.statements > self.most):
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


def folded(facts: Facts, block: Block, known: Known) -> Block:
    """The required statements of the block after folding the conditions that are known."""
    truths: dict[int, bool | None] = {}
    return pruned(_folded(block, lambda condition: facts.truth(condition, known, truths)))


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
                chosen = _folded(statement.then if holds else statement.orelse, truth)
                body += chosen.body
                pairs = zip(statement.outs, chosen.results, strict=True)
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
            assert where is None, "a branch with a loop of its own stands in no other"
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
        together = self._fresh()
        body.append(nodes.Apply((together,), "and", (a, b)))
        return together

    def _fresh(self) -> Value:
        return Value(next(self.numbers), "bool")


# --- code ----------------------------------------------------------------------------------


class _Pieces:
    """Prints borders and conditions."""

    def __init__(self, printer: CpuPrinter, axis: nodes.Axis) -> None:
        self.printer, self.axis = printer, axis

    def of(self, tree: Tree, span: Span) -> Iterator[tuple[Block, Span]]:
        """The pieces of a range."""
        if span[0] == span[1]:
            return
        match tree:
            case Leaf(body):
                yield body, span
            case Fork(Below() as on, when_true, when_false):
                border = self._named(_clamped(_border(on.sum), *span))
                yield from self.of(when_true, (span[0], border))
                yield from self.of(when_false, (border, span[1]))
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
        """The range between the boundaries; then, by one text, the ranges before and after it."""
        first, last = span
        for on, holds in tree.literals:
            if isinstance(on, Holds):
                continue
            border = _border(on.sum)
            if holds:
                last = self._named(_clamped(border, span[0], last))
            else:
                first = self._named(_clamped(border, first, span[1]))
        asked = [self._condition(on.number) for on, _ in tree.literals if isinstance(on, Holds)]
        last = self._named(_most(first, last))
        if asked:
            first, last = (
                self._named(call("select_int64", fold(Expression.__and__, asked), place, span[0]))
                for place in (first, last)
            )
        yield from self.of(tree.inside, (first, last))
        if first == span[0] or last == span[1]:
            rest = (last, span[1]) if first == span[0] else (span[0], first)
            yield from self.of(tree.around, rest)
            return
        side = self.printer.border_name(self.axis)
        with self.printer.loop_over(side, (Number(0), Number(2))):
            is_before = Name(side).equals(0)
            begin = self._named(call("select_int64", is_before, span[0], last))
            end = self._named(call("select_int64", is_before, first, span[1]))
            yield from self.of(tree.around, (begin, end))

    def _named(self, value: Expression) -> Expression:
        """A variable that holds a value; numbers and variables themselves."""
        if isinstance(value, Name) or (isinstance(value, Number) and value.value >= 0):
            return value
        name = self.printer.border_name(self.axis)
        self.printer.set(name, value)
        return Name(name)


def _border(difference: Sum) -> Expression:
    """The first index at which a sum is not negative, before it is clamped."""
    constant = -difference.constant
    if difference.multiple > 1 and not difference.stride:  # rounded up
        constant += difference.multiple - 1
    rest: Expression = Number(constant)
    for term, count in difference.terms:
        part = term if abs(count) == 1 else Number(abs(count)) * term
        rest = rest - part if count > 0 else rest + part
    if difference.stride is not None:
        by = difference.stride
        if difference.multiple > 1:
            by = Number(difference.multiple) * by
        # Rounded towards zero, which clamping makes good below it.
        return call("div_int64", rest + by - 1, by)
    if difference.multiple > 1:
        if not difference.terms:
            return Number(constant // difference.multiple)
        return call("div_int64", rest, difference.multiple)
    return rest


def _clamped(border: Expression, first: Expression, last: Expression) -> Expression:
    return _most(_least(border, last), first)


def _least(a: Expression, b: Expression) -> Expression:
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(min(a.value, b.value))
    return call("min_int64", a, b)


def _most(a: Expression, b: Expression) -> Expression:
    if isinstance(a, Number) and isinstance(b, Number):
        return Number(max(a.value, b.value))
    return a if a == b else call("max_int64", a, b)
