"""Selected loads: branches on loop invariants that only choose the array of a load.

    for j: if i < n: a = x[i, j]              base, first = (x, offset of x[i, 0]) if i < n
           else: a = y[i - n, j]       ->                   else (y, offset of y[i - n, 0])
           o[i, j] = a                        for j: o[i, j] = base[first + j]

Loop unswitching would be as fast. But for several such branches, as in stencils of rolls, it needs
a loop for each combination of sides. A load with many sources is unswitched nevertheless, because
the offsets of all sources would be computed for each row.
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

MOST_SOURCES = 4  # sources of one load


@record
class Element:
    """An element of an operand; ``offset`` is relative to the operand's pointer."""

    operand: nodes.Operand
    offset: Sum


@record
class Choice:
    """The choice of one of two sources, by a loop-invariant condition."""

    predicate: Value
    on_true: Source
    on_false: Source


Source = Element | Choice


@record
class SelectedLoad:
    """A statement: the load from one of several operands, which is selected before the loop.

    Attributes:
        out: the result.
        source: the candidate elements; their offsets are affine in the loop's index.
        base, first: variables with the selected pointer, and with the offset at index 0.
        axis: axis of the loop.
    """

    out: Value
    source: Source
    base: str
    first: str
    axis: str

    init = ()

    @property
    def outs(self) -> tuple[Value, ...]:
        """The result."""
        return (self.out,)


def with_selected_loads(facts: Facts, block: Block) -> Block:
    """Replace branches that only choose among loads by selected loads."""
    body: list[Statement] = []
    for statement in block.body:
        source = _source_of(facts, statement) if isinstance(statement, nodes.If) else None
        if source is None or sum(1 for _ in elements_of(source)) > MOST_SOURCES:
            body.append(statement)
            continue
        printer = facts.printer
        axis = printer.axes[facts.axis]
        names = printer.boundary_name(axis), printer.boundary_name(axis)
        assert isinstance(statement, nodes.If)  # or it has no source
        body.append(SelectedLoad(statement.outs[0], source, *names, facts.axis))  # type: ignore
    return replace(block, body=tuple(body))


def _source_of(facts: Facts, branch: nodes.If) -> Source | None:
    """The source of a branch's result; None if the branch is not a choice among loads."""
    if len(branch.outs) != 1 or branch.predicate.number not in facts.invariant:
        return None
    sides = [_result_of(facts, block) for block in (branch.then, branch.orelse)]
    if None in sides:
        return None
    elements = [element for side in sides if side is not None for element in elements_of(side)]
    if len({element.operand.dtype for element in elements}) != 1:
        return None
    on_true, on_false = sides
    assert on_true is not None and on_false is not None
    return Choice(branch.predicate, on_true, on_false)


def _result_of(facts: Facts, block: Block) -> Source | None:
    result: Source | None = None
    for statement in block.body:
        match statement:
            case nodes.If() if statement.outs == block.results:
                result = _source_of(facts, statement)
            case nodes.Load(out, name, Value() as offset, None, None) if out == block.results[0]:
                result = _element(facts, name, offset)
            case _ if not facts.never_fails(statement):
                return None
    return result


def _element(facts: Facts, name: str, offset: Value) -> Element | None:
    operand, total = facts.printer.operands.get(name), facts.sums.get(offset.number)
    if operand is None or operand.mode is not Mode.IN or total is None:
        return None
    if total.multiple != 1 or total.stride is not None:
        return None
    axes = (facts.position, *facts.inner)
    if any(operand.strides[axis] is not Stride.ZERO for axis in axes):
        return None
    base = facts.printer.offsets[name]
    offset = total if base == ZERO else replace(total, terms=(*total.terms, (base, 1)))
    return Element(operand, offset)


def elements_of(source: Source) -> Iterator[Element]:
    """The candidate elements of a load."""
    if isinstance(source, Element):
        yield source
        return
    yield from elements_of(source.on_true)
    yield from elements_of(source.on_false)


def predicates_of(source: Source) -> Iterator[Value]:
    """The conditions that select a load."""
    if isinstance(source, Choice):
        yield source.predicate
        yield from predicates_of(source.on_true)
        yield from predicates_of(source.on_false)


def print_selection(printer: CpuPrinter, load: SelectedLoad) -> None:
    """Emit the selection of pointer and offset, before the loop."""

    def selected(source: Source, kind: str) -> Expression:
        if isinstance(source, Choice):
            sides = selected(source.on_true, kind), selected(source.on_false, kind)
            return call(f"select_{kind}", printer.value(source.predicate), *sides)
        if kind == "pointer":
            return printer.pointer(source.operand.name)
        return _sum(source.offset)

    printer.set(load.base, selected(load.source, "pointer"))
    printer.set(load.first, selected(load.source, "int64"))


def print_load(printer: CpuPrinter, load: SelectedLoad) -> None:
    """Emit the load, in the loop."""
    operand = next(elements_of(load.source)).operand
    index = Name(load.first) + Name(load.axis)
    loaded = call(f"load_{operand.name}", Name(load.base), index)
    printer.set(printer.target(load.out), loaded)


def _sum(offset: Sum) -> Expression:
    total: Expression = Literal(offset.constant)
    for term, count in offset.terms:
        total = total + Literal(count) * term
    return total
