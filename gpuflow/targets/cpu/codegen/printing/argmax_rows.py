"""Code for argmax reductions along rows: the index of the first maximum.

A reduction of pairs of key and index is not vectorized. Instead, each block of a row has two loops
that are. The first finds the block's largest key, and stores all keys on the stack. If that key
exceeds all previous ones, the second finds its first index. So memory is read once, and keys are
computed once.

Tests: tests/targets/cpu/test_cpu_row_kernels.py, tests/targets/cpu/test_cpu_orders.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.kir.argmax import is_argmax
from gpuflow.kir.nodes import Block, Cast, Kernel, Load, Mode, Reduce, Statement, Stride, Value
from gpuflow.kir.walk import results_of
from gpuflow.targets.cpu.codegen.loops.nodes import BinaryOperation, Name, TypedLiteral, call

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter
    from gpuflow.targets.cpu.codegen.printing.program_builder import Span

_BLOCK_BITS = 12  # log2 of the points of a block; an offset in a block must fit in an int32


def is_row_argmax(kernel: Kernel, reduction: Reduce) -> bool:
    """Whether ``emit_argmax`` applies: an argmax along one long axis, of indices along it."""
    if len(reduction.axes) != 1 or not is_argmax(reduction):
        return False
    axis_index = [axis.name for axis in kernel.axes].index(reduction.axes[0])
    if kernel.axes[axis_index].exact is not None:
        return False  # a few elements
    index_statements = _index_load_and_casts(reduction.body, reduction.body.results[1])
    if not index_statements or not isinstance(index_statements[0], Load):
        return False
    load = index_statements[0]
    (operand,) = (o for o in kernel.operands if o.name == load.operand)
    is_plain = load.offset is None and load.where is None and operand.mode is Mode.INDEX
    return is_plain and operand.strides[axis_index] in (Stride.UNIT, Stride.ANY)


def _index_load_and_casts(block: Block, value: Value) -> Sequence[Statement]:
    """The load and casts that compute a value; () if it is computed in another way."""
    definitions = {v: s for s in block.body for v in results_of(s)}
    index_statements: list[Statement] = []
    while value in definitions:
        statement = definitions[value]
        index_statements.insert(0, statement)
        if isinstance(statement, Load):
            return index_statements
        if not isinstance(statement, Cast):
            break
        value = statement.arg
    return ()


def emit_argmax(printer: CpuPrinter, reduction: Reduce) -> None:
    """Emit the reduction.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        reduction: a Reduce for which ``is_row_argmax`` holds: values are the key and its index.
    """
    axis = printer.axes[reduction.axes[0]]
    keys = f"{printer.target(reduction.outs[0])}_keys"
    printer.carry(reduction.outs, reduction.init)
    printer.set(keys, call(f"local_{reduction.outs[0].dtype}", 1 << _BLOCK_BITS))
    with printer.block_loop(axis, printer.span(axis), _BLOCK_BITS) as span:
        _emit_block(printer, reduction, keys, span)


def _emit_block(printer: CpuPrinter, reduction: Reduce, keys: str, span: Span) -> None:
    """Emit the two loops over a block; ``keys`` names the array on the stack with its keys."""
    axis, dtype = printer.axes[reduction.axes[0]], reduction.outs[0].dtype
    best_key, best_index = (Name(printer.target(out)) for out in reduction.outs)
    block_largest, found_offset = Name(f"{best_key.name}_top"), Name(f"{best_key.name}_found")
    index_in_row, block_start = Name(f"{best_key.name}_here"), Name(f"{axis.name}_start")
    printer.set(block_largest.name, printer.value(reduction.init[0]))
    with printer.loop_over(axis.name, span, axis.is_short), printer.at_point(axis, reduction.body):
        printer.block(reduction.body)
        key = printer.value(reduction.body.results[0])
        printer.run(f"store_{dtype}", Name(keys), Name(axis.name) - block_start, key)
        printer.set(block_largest.name, call(f"max_{dtype}", block_largest, key))
    # The first block is searched even if all its keys equal the neutral value.
    is_first = Name(f"{axis.name}_block").equals(0)
    with printer.when(BinaryOperation("|", is_first, block_largest > best_key)):
        printer.set(best_key.name, block_largest)
        past_end = TypedLiteral(1 << _BLOCK_BITS, "int32")
        printer.set(found_offset.name, past_end)
        # The same bounds as above make ``keys`` elementwise: full vectors may be accessed
        # (``straight_loops.StackArrays``).
        with printer.loop_over(index_in_row.name, span, axis.is_short):
            offset_in_block = index_in_row - block_start
            is_largest = call(f"load_{dtype}", Name(keys), offset_in_block).equals(block_largest)
            offset_int32 = call("cast_int64_int32", offset_in_block)
            candidate = call("select_int32", is_largest, offset_int32, past_end)
            printer.set(found_offset.name, call("min_int32", found_offset, candidate))
        index_statements = _index_load_and_casts(reduction.body, reduction.body.results[1])
        printer.set(axis.name, block_start + call("cast_int32_int64", found_offset))
        with printer.at_point(axis, Block(body=tuple(index_statements))):
            for statement in index_statements:
                printer.statement(statement)
            printer.set(best_index.name, printer.value(reduction.body.results[1]))
