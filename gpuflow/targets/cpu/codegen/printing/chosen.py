"""Loads with an array selected before a loop: branches on loop invariants.

    for j: if i < n: a = x[i, j]              base, first = (x, place of x[i, 0]) if i < n
           else: a = y[i - n, j]       ->                   else (y, place of y[i - n, 0])
           o[i, j] = a                        for j: o[i, j] = base[first + j]

A loop for each side would be as fast, but several such branches in sequence, as those of stencils
made of rolls, are loops for all combinations of sides. For many pieces each has a loop: all of
their offsets would be computed for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, Literal, Name, call
from gpuflow.targets.cpu.codegen.printing.conditions import Facts, Sum

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

MOST_PLACES = 4  # of one load


@record
class Leaf:
    """An element of an operand; the offset counts from its first element."""

    operand: nodes.Operand
    place: Sum


@record
class Side:
    """One of two, by a condition that does not vary in the loop."""

    predicate: Value
    on_true: Place
    on_false: Place


Place = Leaf | Side


@record
class ChosenLoad:
    """The load of an element of one of several operands, which was chosen before the loop.

    Attributes:
        out: the result.
        place: its offset, in terms of the loop's index.
        base, first: variables for the operand and for the offset at index 0.
        axis: of the loop.
    """

    out: Value
    place: Place
    base: str
    first: str
    axis: str

    init = ()

    @property
    def outs(self) -> tuple[Value, ...]:
        """The result."""
        return (self.out,)


def with_chosen_loads(facts: Facts, block: Block) -> Block:
    """The block with loads that replace branches which only select among such."""
    body: list[Statement] = []
    for statement in block.body:
        place = _place_of(facts, statement) if isinstance(statement, nodes.If) else None
        if place is None or sum(1 for _ in leaves_of(place)) > MOST_PLACES:
            body.append(statement)
            continue
        printer = facts.printer
        axis = printer.axes[facts.axis]
        names = printer.border_name(axis), printer.border_name(axis)
        assert isinstance(statement, nodes.If)  # or it has no place
        body.append(ChosenLoad(statement.outs[0], place, *names, facts.axis))  # type: ignore
    return replace(block, body=tuple(body))


def _place_of(facts: Facts, branch: nodes.If) -> Place | None:
    """Where the result of a branch lies; None where it computes more than places."""
    if len(branch.outs) != 1 or branch.predicate.number not in facts.invariant:
        return None
    sides = [_result_of(facts, block) for block in (branch.then, branch.orelse)]
    if None in sides:
        return None
    leaves = [leaf for side in sides if side is not None for leaf in leaves_of(side)]
    if len({leaf.operand.dtype for leaf in leaves}) != 1:
        return None
    on_true, on_false = sides
    assert on_true is not None and on_false is not None
    return Side(branch.predicate, on_true, on_false)


def _result_of(facts: Facts, block: Block) -> Place | None:
    result: Place | None = None
    for statement in block.body:
        match statement:
            case nodes.If() if statement.outs == block.results:
                result = _place_of(facts, statement)
            case nodes.Load(out, name, Value() as offset, None, None) if out == block.results[0]:
                result = _leaf(facts, name, offset)
            case _ if not facts.never_fails(statement):
                return None
    return result


def _leaf(facts: Facts, name: str, offset: Value) -> Leaf | None:
    operand, place = facts.printer.operands.get(name), facts.sums.get(offset.number)
    if operand is None or operand.mode is not Mode.IN or place is None:
        return None
    if place.multiple != 1 or place.stride is not None:
        return None
    axes = (facts.place, *facts.inner)
    if any(operand.strides[axis] is not Stride.ZERO for axis in axes):
        return None
    base = facts.printer.offsets[name]
    return Leaf(operand, place if base == ZERO else replace(place, terms=(*place.terms, (base, 1))))


def leaves_of(place: Place) -> Iterator[Leaf]:
    """The candidate elements of a load."""
    if isinstance(place, Leaf):
        yield place
        return
    yield from leaves_of(place.on_true)
    yield from leaves_of(place.on_false)


def predicates_of(place: Place) -> Iterator[Value]:
    """The conditions that select a load."""
    if isinstance(place, Side):
        yield place.predicate
        yield from predicates_of(place.on_true)
        yield from predicates_of(place.on_false)


def print_choice(printer: CpuPrinter, load: ChosenLoad) -> None:
    """Print the code before the loop."""

    def chosen(place: Place, kind: str) -> Expression:
        if isinstance(place, Side):
            sides = chosen(place.on_true, kind), chosen(place.on_false, kind)
            return call(f"select_{kind}", printer.value(place.predicate), *sides)
        if kind == "pointer":
            return printer.pointer(place.operand.name)
        return _sum(place.place)

    printer.set(load.base, chosen(load.place, "pointer"))
    printer.set(load.first, chosen(load.place, "int64"))


def print_load(printer: CpuPrinter, load: ChosenLoad) -> None:
    """Print the load itself."""
    operand = next(leaves_of(load.place)).operand
    place = Name(load.first) + Name(load.axis)
    loaded = call(f"load_{operand.name}", Name(load.base), place)
    printer.set(printer.target(load.out), loaded)


def _sum(place: Sum) -> Expression:
    total: Expression = Literal(place.constant)
    for term, count in place.terms:
        total = total + Literal(count) * term
    return total
