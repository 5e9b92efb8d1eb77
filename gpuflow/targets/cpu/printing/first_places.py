"""Prints argmax reductions (index of the first maximum) for rows on the CPU.

Pairs of key and index do not vectorize. Blocks of a row take two loops that do: one finds the
block's largest key and keeps the keys on the stack; if it exceeds all previous ones, another finds
its first index among them. So memory is read once, and the keys are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Block, Cast, Kernel, Load, Mode, Reduce, Statement, Stride, Value
from gpuflow.kir.places import finds_first_largest
from gpuflow.kir.walk import results_of

if TYPE_CHECKING:
    from gpuflow.targets.cpu.printing.loop_printer import CpuPrinter

BLOCK_BITS = 12


def can_search(kernel: Kernel, s: Reduce) -> bool:
    """Whether a Reduce finds indices that follow from the index along its one axis."""
    if len(s.axes) != 1 or not finds_first_largest(s):
        return False
    place = [axis.name for axis in kernel.axes].index(s.axes[0])
    if kernel.axes[place].exact is not None:
        return False  # a few elements
    steps = _steps_to(s.body, s.body.results[1])
    if not steps or not isinstance(steps[0], Load):
        return False
    load = steps[0]
    (operand,) = (o for o in kernel.operands if o.name == load.operand)
    is_plain = load.offset is None and load.where is None and operand.mode is Mode.INDEX
    return is_plain and operand.strides[place] in (Stride.UNIT, Stride.ANY)


def _steps_to(block: Block, value: Value) -> Sequence[Statement]:
    """The load and casts that make a value, if nothing else does."""
    definitions = {v: s for s in block.body for v in results_of(s)}
    steps: list[Statement] = []
    while value in definitions:
        statement = definitions[value]
        steps.insert(0, statement)
        if isinstance(statement, Load):
            return steps
        if not isinstance(statement, Cast):
            break
        value = statement.arg
    return ()


def search(printer: CpuPrinter, s: Reduce) -> None:
    """Print the reduction.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        s: ``can_search`` accepts it.
    """
    axis = printer.axes[s.axes[0]]
    outs = [printer.value(out) for out in s.outs]
    keys = f"{outs[0]}_keys"
    printer.assign(outs, [printer.value(v) for v in s.init])
    printer.emit(f"{keys} = local_{s.outs[0].dtype}({1 << BLOCK_BITS})")
    with printer.block_loop(axis, printer.span(axis), BLOCK_BITS) as span:
        _search_block(printer, s, keys, span)


def _search_block(printer: CpuPrinter, s: Reduce, keys: str, span: str) -> None:
    axis, dtype = printer.axes[s.axes[0]], s.outs[0].dtype
    best, place = (printer.value(out) for out in s.outs)
    top, offset, here = f"{best}_top", f"{best}_found", f"{best}_here"
    first = f"{axis.name}_start"
    printer.emit(f"{top} = {printer.value(s.init[0])}")
    with printer.indented(printer.span_loop(axis, axis.name, span)), printer.at_point(axis, s.body):
        printer.block(s.body)
        key = printer.value(s.body.results[0])
        printer.emit(f"store_{dtype}({keys}, {axis.name} - {first}, {key})")
        printer.emit(f"{top} = max_{dtype}({top}, {key})")
    # The first block counts even if all its keys are neutral ones.
    with printer.indented(f"if ({axis.name}_block == 0) | ({top} > {best}):"):
        printer.emit(f"{best} = {top}")
        printer.emit(f"{offset} = np.int32({1 << BLOCK_BITS})")
        # A loop over the same elements: both may write and read the keys of whole vectors.
        with printer.indented(printer.span_loop(axis, here, span)):
            number = f"{here} - {first}"
            is_it = f"load_{dtype}({keys}, {number}) == {top}"
            found = f"cast_int64_int32({number}), np.int32({1 << BLOCK_BITS})"
            chosen = f"select_int32({is_it}, {found})"
            printer.emit(f"{offset} = min_int32({offset}, {chosen})")
        steps = _steps_to(s.body, s.body.results[1])
        printer.emit(f"{axis.name} = {first} + cast_int32_int64({offset})")
        with printer.at_point(axis, Block(body=tuple(steps))):
            for step in steps:
                printer.statement(step)
            printer.emit(f"{place} = {printer.value(s.body.results[1])}")
