"""Schedule: split a row kernel into one kernel per phase, if rows are few and long.

    for 8 rows, a block each:           top[row] = max(x[row])                    <- all blocks
        top = max(x)                    total[row] = sum(exp(x[row] - top[row]))  <- all blocks
        total = sum(exp(x - top))       for each element of each row: ...         <- all blocks
        for each element: ...

One block computes a row, so few rows leave most of a GPU idle. The reductions become row kernels of
one pass, which ``split_reductions`` splits further; the final loop becomes a map. The choice
depends on shapes alone, so that results do not depend on the device. Thresholds were not measured
on a GPU.

Tests: tests/targets/cuda/test_gpu_splits.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.argument_block import argument_values, extents_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.phases import Phases, split_into_phases
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Kernel, arguments, memoized

MAX_ROWS = 64  # with a block each, at least half of some 132 multiprocessors would be idle
MIN_ROW_LENGTH = 1 << 16  # elements for which four more launches pay off; a guess


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "row"


def _phases(kernel: Kernel) -> Phases | None:
    """The phases of a row kernel that keeps its rows; None if it cannot be split."""
    return memoized(kernel, split_into_phases, True)


def _choose(call: KernelCall) -> int | None:
    """The number of rows, if they are few and long."""
    if call.points < MIN_ROW_LENGTH or call.extent > MAX_ROWS:
        return None
    phases = _phases(call.kernel)
    if phases is None or not phases.row_axes:
        return None
    sizes = extents_of(call)
    row_count = prod([sizes[axis] for axis in phases.row_axes])
    is_long = call.points >= MIN_ROW_LENGTH * row_count
    return row_count if 0 < row_count <= MAX_ROWS and is_long else None


def _rewrite(call: KernelCall, row_count: int, allocate: Allocate) -> tuple[KernelCall, ...]:
    """One call for each phase; results of reductions are row-major arrays in scratch buffers."""
    phases, sizes, values = _phases(call.kernel), extents_of(call), argument_values(call)
    assert phases is not None  # it has rows
    scratch_strides, stride = {}, 1
    for axis in reversed(phases.row_axes):
        scratch_strides[axis] = stride
        stride *= sizes[axis]
    itemsizes = {o.name: storage_dtype(o.dtype).itemsize for o in phases.results}
    scratch = {name: allocate(row_count * itemsize) for name, itemsize in itemsizes.items()}
    names = [operand.name for operand in call.kernel.operands]
    buffers = {**dict(zip(names, call.buffers, strict=True)), **scratch}
    calls = []
    for phase in phases.kernels:
        slots = [
            values[argument]
            if argument.operand not in scratch
            else scratch_strides[argument.axis]
            if argument.kind == "stride"
            else 0
            for argument in arguments(phase)
        ]
        phase_buffers = tuple([buffers[operand.name] for operand in phase.operands])
        calls.append(KernelCall(phase, tuple(slots), phase_buffers, call.extent, call.points))
    return tuple(calls)


ROW_PHASES = Schedule("phases of rows", _applies, _choose, _rewrite)
