"""Marks the axis of short rows, so that loops over it are not unrolled to several vectors.

    for j in range(n):          for j in range(n, step=one vector):
        ...                         ...

LLVM emits a loop over several vectors per iteration, and three remainder loops. A row with fewer
elements than such an iteration would run only the remainder loops.

Tests: tests/targets/cpu/test_short_vectors.py, tests/targets/cpu/test_cpu_row_kernels.py.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.compiler.lowering.argument_block import extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.nodes import Kernel, Role, memoized

MAX_SHORT_ROW = 128  # elements: two iterations of a loop over four vectors of 16 elements


def _applies(kernel: Kernel) -> bool:
    if kernel.kind != "row" or not kernel.axes:
        return False
    last = kernel.axes[-1]
    return last.exact is None and last.role is Role.ROW


def _choose(call: KernelCall) -> bool | None:
    return extents_of(call)[call.kernel.axes[-1].name] < MAX_SHORT_ROW or None


def _rewrite(call: KernelCall, _: bool, allocate: Allocate) -> tuple[KernelCall, ...]:
    del allocate
    return (call._replace(kernel=memoized(call.kernel, with_short_axis)),)


def with_short_axis(kernel: Kernel) -> Kernel:
    """Mark the kernel's last axis as short (``Axis.is_short``); the kernel computes the same."""
    *outer, last = kernel.axes
    return replace(kernel, axes=(*outer, replace(last, is_short=True)))


SHORT_ROW_LOOPS = Schedule("short rows", _applies, _choose, _rewrite)
