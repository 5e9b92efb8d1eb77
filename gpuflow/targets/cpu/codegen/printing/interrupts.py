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

Tests: tests/runtime/test_interrupts.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuflow.kir.nodes import Block, Copy, For, Reduce, Strip, While
from gpuflow.kir.walk import has_long_loops, is_long, owned_blocks, statements
from gpuflow.targets.cpu.codegen.loops.nodes import ZERO, Expression, IntLiteral, Name, call
from gpuflow.targets.cpu.codegen.printing.program_builder import Span

if TYPE_CHECKING:
    from gpuflow.targets.cpu.codegen.printing.loop_printer import CpuPrinter

# Operations between two polls: less than a millisecond, while reading the clock takes about 30 ns.
_POLL_INTERVAL = 1 << 20
_CHUNK_BITS = 12  # log2 of the iterations of a chunk
_ASSUMED_TRIP_COUNT = 64  # of loops that are not long
_COUNTER = "operations_left"


def emit_counter(printer: CpuPrinter) -> None:
    """Emit the initialization of the counter, in kernels with long loops."""
    if has_long_loops(printer.kernel):
        printer.set(_COUNTER, _POLL_INTERVAL)


def poll_after_iteration(printer: CpuPrinter, loop: While | For) -> None:
    """Emit the poll after each iteration of a loop, at the end of its body."""
    _emit_poll(printer, IntLiteral(sum(map(_estimated_operations, owned_blocks(loop)))))


def emit_long_loop(printer: CpuPrinter, loop: For, counter: str, trip_count: Expression) -> None:
    """Emit a long loop with polls: after each iteration, or after chunks if it is innermost.

    Args:
        printer: the ``CpuPrinter`` of the kernel.
        loop: a counted loop for which ``is_long`` holds.
        counter: name of its counter, which starts at 0.
        trip_count: the number of iterations, an int64; 0 or less for none.
    """
    if has_loops(loop.body):
        with printer.loop_over(counter, Span(ZERO, trip_count)):
            printer.iteration(loop)
            poll_after_iteration(printer, loop)
        return
    start, end = Name(f"{counter}_start"), Name(f"{counter}_end")
    chunks = (trip_count + ((1 << _CHUNK_BITS) - 1)) >> _CHUNK_BITS
    with printer.loop_over(f"{counter}_part", Span(ZERO, chunks)):
        printer.set(start.name, Name(f"{counter}_part") << _CHUNK_BITS)
        printer.set(end.name, call("min_int64", start + (1 << _CHUNK_BITS), trip_count))
        with printer.loop_over(counter, Span(start, end)):
            printer.iteration(loop)
        _emit_poll(printer, (end - start) * _estimated_operations(loop.body))


def has_loops(block: Block) -> bool:
    """Whether a block contains a loop."""
    return any(
        isinstance(statement, For | While | Reduce | Strip | Copy)
        for statement in statements(block)
    )


def _emit_poll(printer: CpuPrinter, operations: Expression) -> None:
    """Emit the subtraction of operations from the counter, and the poll if none are left."""
    remaining = Name(_COUNTER)
    printer.set(_COUNTER, remaining - operations)
    with printer.when(remaining < 0):
        printer.set(_COUNTER, _POLL_INTERVAL)
        with printer.when(call("is_interrupted")):
            printer.leave_function()


def _estimated_operations(block: Block) -> int:
    """Estimate the operations of a block; long loops in it count separately."""
    operations = 1
    for statement in block.body:
        inner_operations = (
            1 if is_long(statement) else sum(map(_estimated_operations, owned_blocks(statement)))
        )
        operations += (
            inner_operations * (_ASSUMED_TRIP_COUNT if isinstance(statement, For | Reduce) else 1)
            + 1
        )
    return operations
