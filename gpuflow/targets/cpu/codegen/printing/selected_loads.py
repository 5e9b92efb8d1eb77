"""Selected loads: branches on loop invariants that only choose the array of a load.

    for j: if i < n: a = x[i, j]              base, first = (x, offset of x[i, 0]) if i < n
           else: a = y[i - n, j]       ->                   else (y, offset of y[i - n, 0])
           o[i, j] = a                        for j: o[i, j] = base[first + j]

Loop unswitching would be as fast. But for several such branches, as in stencils of rolls, it needs
a loop for each combination of sides. A load with many sources is unswitched nevertheless, because
the offsets of all sources would be computed for each row.

A source is the tree of a load's candidates: an element, or the selection between two sources.

Tests: tests/targets/cpu/test_cpu_boundaries.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuflow.base.records import record
from gpuflow.kir import nodes
from gpuflow.kir.nodes import Block, Mode, Statement, Stride, Value
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, IntLiteral, Name, call
from gpuflow.targets.cpu.codegen.printing.conditions import AffineSum, LoopAnalysis, Term

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

MAX_SOURCES = 4  # sources of one load


@record
class OperandElement:
    """An element of an operand.

    Attributes:
        operand: a read-only operand.
        offset: its offset in elements from the operand's pointer; the factor of the index is 1.
    """

    operand: nodes.Operand
    offset: AffineSum


@record
class SourceSelect:
    """The selection of one of two sources.

    Attributes:
        predicate: a loop-invariant condition.
        on_true, on_false: the sources.
    """

    predicate: Value
    on_true: Source
    on_false: Source


Source = OperandElement | SourceSelect


@record
class SelectedLoad:
    """A statement: the load from one of several operands, which is selected before the loop.

    Attributes:
        out: the result.
        source: the candidate elements, all of one dtype.
        base: variable with the selected pointer.
        first: variable with the selected offset at index 0, in elements.
        axis: name of the loop's axis.
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


def with_selected_loads(analysis: LoopAnalysis, block: Block) -> Block:
    """Replace branches that only choose among loads by selected loads."""
    body: list[Statement] = []
    for statement in block.body:
        source = _branch_source(analysis, statement) if isinstance(statement, nodes.If) else None
        if source is None or sum(1 for _ in elements_of(source)) > MAX_SOURCES:
            body.append(statement)
            continue
        printer = analysis.printer
        axis = printer.axes[analysis.axis_name]
        variable_names = printer.boundary_name(axis), printer.boundary_name(axis)
        assert isinstance(statement, nodes.If)  # or it has no source
        body.append(SelectedLoad(statement.outs[0], source, *variable_names, analysis.axis_name))  # type: ignore
    return replace(block, body=tuple(body))


def _branch_source(analysis: LoopAnalysis, branch: nodes.If) -> Source | None:
    """The source of a branch's result; None if the branch does not only select a load."""
    if len(branch.outs) != 1 or branch.predicate.number not in analysis.invariant_numbers:
        return None
    on_true, on_false = (_block_source(analysis, side) for side in (branch.then, branch.orelse))
    if on_true is None or on_false is None:
        return None
    select = SourceSelect(branch.predicate, on_true, on_false)
    if len({element.operand.dtype for element in elements_of(select)}) != 1:
        return None
    return select


def _block_source(analysis: LoopAnalysis, block: Block) -> Source | None:
    """The source of the result of one side of a branch; None if it does anything else."""
    result: Source | None = None
    for statement in block.body:
        match statement:
            case nodes.If() if statement.outs == block.results:
                result = _branch_source(analysis, statement)
            case nodes.Load(out, name, Value() as offset, None, None) if out == block.results[0]:
                result = _operand_element(analysis, name, offset)
            case _ if not analysis.can_speculate(statement):
                return None
    return result


def _operand_element(analysis: LoopAnalysis, name: str, offset: Value) -> OperandElement | None:
    operand, affine_offset = (
        analysis.printer.operands.get(name),
        analysis.affine_forms.get(offset.number),
    )
    if operand is None or operand.mode is not Mode.IN or affine_offset is None:
        return None
    if affine_offset.multiple != 1 or affine_offset.stride is not None:
        return None
    axes = (analysis.axis_index, *analysis.inner_axis_indices)
    if any(operand.strides[axis] is not Stride.ZERO for axis in axes):
        return None
    base = analysis.printer.offsets[name]
    if base != ZERO:
        affine_offset = replace(affine_offset, terms=(*affine_offset.terms, Term(base, 1)))
    return OperandElement(operand, affine_offset)


def elements_of(source: Source) -> Iterator[OperandElement]:
    """The candidate elements of a load."""
    if isinstance(source, OperandElement):
        yield source
        return
    yield from elements_of(source.on_true)
    yield from elements_of(source.on_false)


def predicates_of(source: Source) -> Iterator[Value]:
    """The conditions that select a load."""
    if isinstance(source, SourceSelect):
        yield source.predicate
        yield from predicates_of(source.on_true)
        yield from predicates_of(source.on_false)


def emit_selection(printer: CpuPrinter, load: SelectedLoad) -> None:
    """Emit the selection of pointer and offset, before the loop.

    ``LoopAnalysis.emit_invariants`` must have emitted the predicates and the terms of offsets.
    """

    def select_expression(source: Source, type_name: str) -> Expression:
        if isinstance(source, SourceSelect):
            sides = (
                select_expression(source.on_true, type_name),
                select_expression(source.on_false, type_name),
            )
            return call(f"select_{type_name}", printer.value(source.predicate), *sides)
        if type_name == "pointer":
            return printer.pointer(source.operand.name)
        return _offset_expression(source.offset)

    printer.set(load.base, select_expression(load.source, "pointer"))
    printer.set(load.first, select_expression(load.source, "int64"))


def emit_load(printer: CpuPrinter, load: SelectedLoad) -> None:
    """Emit the load, in the loop."""
    operand = next(elements_of(load.source)).operand
    index = Name(load.first) + Name(load.axis)
    loaded = call(f"load_{operand.name}", Name(load.base), index)
    printer.set(printer.target(load.out), loaded)


def _offset_expression(offset: AffineSum) -> Expression:
    """The value of an affine sum at index 0."""
    total: Expression = IntLiteral(offset.constant)
    for term in offset.terms:
        total = total + IntLiteral(term.factor) * term.value
    return total
