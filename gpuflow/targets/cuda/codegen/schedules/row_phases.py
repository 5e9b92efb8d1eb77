"""Schedule: split a row kernel into one kernel per phase, if rows are few and long.

    for 8 rows, a block each:           top[row] = max(x[row])                    <- all blocks
        top = max(x)                    total[row] = sum(exp(x[row] - top[row]))  <- all blocks
        total = sum(exp(x - top))       for each element of each row: ...         <- all blocks
        for each element: ...

One block computes a row, so few rows leave most of a GPU idle. The reductions become row kernels of
one pass, which ``splits`` splits further; the final loop becomes a map. The choice depends on
shapes alone, so that results do not depend on the device. Thresholds were not measured on a GPU.
"""

from __future__ import annotations

from math import prod

from gpuflow.compiler.lowering.call_layout import sizes_of, values_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.phases import Phases, phases_of
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Kernel, arguments, remembered

MOST_ROWS = 64  # with a block each, at least half of some 132 multiprocessors would be idle
SHORTEST_ROW = 1 << 16  # elements for which four more launches pay off; a guess


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "row"


def _phases(kernel: Kernel) -> Phases | None:
    return remembered(kernel, phases_of, True)


def _choose(call: KernelCall) -> int | None:
    """The number of rows, if they are few and long."""
    if call.points < SHORTEST_ROW or call.extent > MOST_ROWS:
        return None
    phases = _phases(call.kernel)
    if phases is None or not phases.rows:
        return None
    sizes = sizes_of(call)
    count = prod([sizes[axis] for axis in phases.rows])
    return count if 0 < count <= MOST_ROWS and call.points >= SHORTEST_ROW * count else None


def _rewrite(call: KernelCall, count: int, allocate: Allocate) -> tuple[KernelCall, ...]:
    phases, sizes, values = _phases(call.kernel), sizes_of(call), values_of(call)
    assert phases is not None  # it has rows
    steps, step = {}, 1
    for axis in reversed(phases.rows):
        steps[axis] = step
        step *= sizes[axis]
    itemsizes = {o.name: storage_dtype(o.dtype).itemsize for o in phases.results}
    scratch = {name: allocate(count * itemsize) for name, itemsize in itemsizes.items()}
    names = [operand.name for operand in call.kernel.operands]
    buffers = {**dict(zip(names, call.buffers, strict=True)), **scratch}
    calls = []
    for phase in phases.kernels:
        slots = [
            values[argument]
            if argument.operand not in scratch
            else steps[argument.axis]
            if argument.kind == "stride"
            else 0
            for argument in arguments(phase)
        ]
        used = tuple([buffers[operand.name] for operand in phase.operands])
        calls.append(KernelCall(phase, tuple(slots), used, call.extent, call.points))
    return tuple(calls)


ROW_PHASES = Schedule("phases of rows", _applies, _choose, _rewrite)
