"""Rows of a few elements: many rows at a time, each in a lane of its own (``narrow_rows``).

    for i:                      for block of rows:
        for j in range(10):         turn the block, so that neighbors are elements of different rows
            ...                     for j in range(10):
                                        for i in block: ...
"""

from __future__ import annotations

from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import of_kind
from gpuflow.targets.cpu.printing.loop_printer import NARROW_ROWS
from gpuflow.targets.cpu.printing.narrow_rows import is_narrow

# Points; with fewer, turning narrow rows saves less than it costs to build so large a kernel.
SMALLEST_TURNED = 1 << 13


def _choose(call: KernelCall) -> bool | None:
    return call.points >= SMALLEST_TURNED or None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=of_kind(call.kernel, NARROW_ROWS)),)


ROWS_ACROSS_LANES = Schedule("rows across lanes", is_narrow, _choose, _rewrite)
