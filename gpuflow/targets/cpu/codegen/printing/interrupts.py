"""Polling for interrupts (Ctrl-C) in kernels with loops of any length.

    operations_left = 1048576                   at the start of the kernel
    for c0_part in range((n + 4095) >> 12):     an innermost loop is cut into chunks, so that
        c0_start = c0_part << 12                it is optimized as if it did not poll
        c0_end = min_int64(c0_start + 4096, n)
        for c0 in range(c0_start, c0_end):
            ...
        operations_left = operations_left - (c0_end - c0_start) * 12
        if operations_left < 0:
            operations_left = 1048576
            if is_interrupted():
                return

A kernel that returns early leaves its results incomplete, so the call must raise: the native
program then fails (``runtime/native/execute.ll``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Block, Copy, For, Reduce, Strip, While
from gpuflow.kir.walk import has_long_loops, is_long, owned_blocks, statements
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, Literal, Name, call

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

# Operations between two polls: less than a millisecond, while reading the clock takes about 30 ns.
_OPERATIONS = 1 << 20
_CHUNK_BITS = 12  # log2 of the iterations of a chunk
_ASSUMED_TRIP_COUNT = 64
_REMAINING = "operations_left"


def begin(printer: CpuPrinter) -> None:
    """Emit the initialization of the counter, in kernels with long loops."""
    if has_long_loops(printer.kernel):
        printer.set(_REMAINING, _OPERATIONS)


def after_iteration(printer: CpuPrinter, s: While | For) -> None:
    """Emit the poll after each iteration of a loop."""
    _spend(printer, Literal(sum(map(_work, owned_blocks(s)))))


def count_loop(printer: CpuPrinter, s: For, counter: str, count: Expression) -> None:
    """Emit a long loop with polls: after each iteration, or after chunks if it is innermost."""
    if has_loops(s.body):
        with printer.loop_over(counter, (ZERO, count)):
            printer.iteration(s)
            after_iteration(printer, s)
        return
    start, end = Name(f"{counter}_start"), Name(f"{counter}_end")
    chunks = (count + ((1 << _CHUNK_BITS) - 1)) >> _CHUNK_BITS
    with printer.loop_over(f"{counter}_part", (ZERO, chunks)):
        printer.set(start.name, Name(f"{counter}_part") << _CHUNK_BITS)
        printer.set(end.name, call("min_int64", start + (1 << _CHUNK_BITS), count))
        with printer.loop_over(counter, (start, end)):
            printer.iteration(s)
        _spend(printer, (end - start) * _work(s.body))


def has_loops(block: Block) -> bool:
    """Whether a block contains a loop."""
    return any(isinstance(s, For | While | Reduce | Strip | Copy) for s in statements(block))


def _spend(printer: CpuPrinter, operations: Expression) -> None:
    """Emit the subtraction of operations from the counter, and the poll if none are left."""
    remaining = Name(_REMAINING)
    printer.set(_REMAINING, remaining - operations)
    with printer.when(remaining < 0):
        printer.set(_REMAINING, _OPERATIONS)
        with printer.when(call("is_interrupted")):
            printer.leave_function()


def _work(block: Block) -> int:
    """Estimate the operations of a block; long loops in it count separately."""
    total = 1
    for statement in block.body:
        inner = 1 if is_long(statement) else sum(map(_work, owned_blocks(statement)))
        total += inner * (_ASSUMED_TRIP_COUNT if isinstance(statement, For | Reduce) else 1) + 1
    return total
