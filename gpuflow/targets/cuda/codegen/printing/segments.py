"""Segmented kernels: one launch runs one kernel on many argument blocks.

The first parameter is a table of int64 in device memory (docs/kernel_ir.md), which
``runtime/driver/launch.py`` builds:

    [segments, start_0, words_0, start_1, words_1, ..., total]

The segments are concatenated: to a range of points for a map, of thread blocks for a full
reduction. Segment k begins at ``start_k`` of that range. ``words_k`` is the device address of its
argument block, one int64 per argument. ``total`` is the length of the range.

Tests: tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

from gpuflow.kir import nodes
from gpuflow.targets.cuda.codegen.printing.group_reductions import from_bits
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrinter
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, widen

# Name and type of the first parameter.
TABLE = ("segment_table", "*int64")


def unpack(printer: CudaPrinter) -> None:
    """Print the loads of the start and the arguments of segment ``segment_id``.

    The text must have defined ``segment_id``, which is less than ``segment_table[0]``.
    """
    printer.emit("segment_start = segment_table[1 + 2 * segment_id]")
    address = "segment_table[2 + 2 * segment_id]"
    printer.emit(f"segment_words = pointer_from_address({address}, np.int64)")
    for number, argument in enumerate(nodes.arguments(printer.kernel)):
        _unpack_argument(printer, argument, f"segment_words[{number}]")


def _unpack_argument(printer: CudaPrinter, argument: nodes.Argument, slot: str) -> None:
    """Print the assignment of an argument from ``slot``, the expression of its int64."""
    name, dtype = printer.parameter(argument)
    if argument.kind == "pointer":
        printer.emit(f"{name} = pointer_from_address({slot}, np.{dtype[1:]})")
    elif argument.kind in ("extent", "stride"):
        printer.emit(f"{name} = {printer.cast_index(slot)}")
    elif argument.kind == "base":
        printer.emit(f"{name} = {slot}")
    else:
        storage = printer.operands[argument.operand].dtype
        suffix = "_value" if storage in STORAGE_BITS else ""
        printer.emit(f"{name}{suffix} = {widen(from_bits(slot, dtype), storage)}")
