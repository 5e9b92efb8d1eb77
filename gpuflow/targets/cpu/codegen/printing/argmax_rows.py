"""Code for argmax reductions along rows: the index of the first maximum.

A reduction of pairs of key and index is not vectorized. Instead, each block of a row has two loops
that are. The first finds the block's largest key, and stores all keys on the stack. If that key
exceeds all previous ones, the second finds its first index. So memory is read once, and keys are
computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.kir.argmax import finds_first_largest
from gpuflow.kir.nodes import Block, Cast, Kernel, Load, Mode, Reduce, Statement, Stride, Value
from gpuflow.kir.walk import results_of
from gpuflow.targets.cpu.codegen.loops.nodes import Name, Number, Operation, call

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter
    from gpuflow.targets.cpu.codegen.printing.program_builder import Span

BLOCK_BITS = 12  # log2 of the points of a block


def can_search(kernel: Kernel, s: Reduce) -> bool:
    """Whether a Reduce is an argmax along one axis, whose result is affine in the index."""
    if len(s.axes) != 1 or not finds_first_largest(s):
        return False
    position = [axis.name for axis in kernel.axes].index(s.axes[0])
    if kernel.axes[position].exact is not None:
        return False  # a few elements
    steps = _steps_to(s.body, s.body.results[1])
    if not steps or not isinstance(steps[0], Load):
        return False
    load = steps[0]
    (operand,) = (o for o in kernel.operands if o.name == load.operand)
    is_plain = load.offset is None and load.where is None and operand.mode is Mode.INDEX
    return is_plain and operand.strides[position] in (Stride.UNIT, Stride.ANY)


def _steps_to(block: Block, value: Value) -> Sequence[Statement]:
    """The load and casts that compute a value; () if it is computed in another way."""
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
    """Emit the reduction.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        s: a Reduce for which ``can_search`` holds.
    """
    axis = printer.axes[s.axes[0]]
    keys = f"{printer.target(s.outs[0])}_keys"
    printer.carry(s.outs, s.init)
    printer.set(keys, call(f"local_{s.outs[0].dtype}", 1 << BLOCK_BITS))
    with printer.block_loop(axis, printer.span(axis), BLOCK_BITS) as span:
        _search_block(printer, s, keys, span)


def _search_block(printer: CpuPrinter, s: Reduce, keys: str, span: Span) -> None:
    axis, dtype = printer.axes[s.axes[0]], s.outs[0].dtype
    best, index = (Name(printer.target(out)) for out in s.outs)
    top, offset = Name(f"{best.name}_top"), Name(f"{best.name}_found")
    here, first = Name(f"{best.name}_here"), Name(f"{axis.name}_start")
    printer.set(top.name, printer.value(s.init[0]))
    with printer.loop_over(axis.name, span, axis.is_short), printer.at_point(axis, s.body):
        printer.block(s.body)
        key = printer.value(s.body.results[0])
        printer.run(f"store_{dtype}", Name(keys), Name(axis.name) - first, key)
        printer.set(top.name, call(f"max_{dtype}", top, key))
    # The first block is searched even if all its keys equal the neutral value.
    is_first = Name(f"{axis.name}_block").equals(0)
    with printer.when(Operation("|", is_first, top > best)):
        printer.set(best.name, top)
        none = Number(1 << BLOCK_BITS, "int32")
        printer.set(offset.name, none)
        # The same bounds as above make ``keys`` elementwise: full vectors may be accessed
        # (``straight_loops.Arrays``).
        with printer.loop_over(here.name, span, axis.is_short):
            number = here - first
            is_it = call(f"load_{dtype}", Name(keys), number).equals(top)
            candidate = call("select_int32", is_it, call("cast_int64_int32", number), none)
            printer.set(offset.name, call("min_int32", offset, candidate))
        steps = _steps_to(s.body, s.body.results[1])
        printer.set(axis.name, first + call("cast_int32_int64", offset))
        with printer.at_point(axis, Block(body=tuple(steps))):
            for step in steps:
                printer.statement(step)
            printer.set(index.name, printer.value(s.body.results[1]))
