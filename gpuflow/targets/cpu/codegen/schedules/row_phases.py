"""Loop fission of row kernels with few long rows: each phase of a row becomes a kernel.

A launch gives each thread whole rows. If there are fewer rows than threads, each reduction of a row
becomes a kernel, and so does the final loop over the row. Results of reductions pass through
scratch memory. A reduction of one row is a full reduction, which ``split_reductions`` may split:

    for each row:                       for the first row:
        top = max(x)                        top = max(x)              <- all threads
        total = sum(exp(x - top))           total = sum(exp(x - top)) <- all threads
        for each element: ...               for each element: ...     <- all threads
                                        for the second row: ...
"""

from __future__ import annotations

from itertools import product
from math import prod

from gpuflow.compiler.lowering.call_layout import distances_of, sizes_of, values_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.phases import Phases, phases_of
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import (
    Kernel,
    arguments,
    remembered,
)
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values

# Elements of a row: SHORTEST_ROW for up to FEW_ROWS rows. Rows of more must be SHORTEST_OF_MANY,
# which exceed every cache: then it costs nothing that each phase reads the row from memory.
SHORTEST_ROW = 1 << 16
FEW_ROWS = 2
SHORTEST_OF_MANY = 1 << 20
MOST_ROWS = 16


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "row"


def _phases(kernel: Kernel) -> Phases | None:
    return remembered(kernel, _make_phases)


def _make_phases(kernel: Kernel) -> Phases | None:
    return phases_of(cache_row_values(kernel), rows_stay=False)


def _choose(call: KernelCall) -> int | None:
    """The number of rows if they are few and long, else None."""
    if call.points < SHORTEST_ROW or call.extent > MOST_ROWS:
        return None
    phases = _phases(call.kernel)
    if phases is None:
        return None
    sizes = sizes_of(call)
    count = prod([sizes[axis] for axis in phases.rows])
    shortest = SHORTEST_ROW if count <= FEW_ROWS else SHORTEST_OF_MANY
    return count if 0 < count <= MOST_ROWS and call.points >= shortest * count else None


def _rewrite(call: KernelCall, count: int, allocate: Allocate) -> tuple[KernelCall, ...]:
    phases, sizes = _phases(call.kernel), sizes_of(call)
    assert phases is not None  # it has rows
    calls = []
    for row in product(*[range(sizes[axis]) for axis in phases.rows]):
        # Each row has separate scratch memory, because launches for several rows may be merged.
        scratch = {o.name: allocate(storage_dtype(o.dtype).itemsize) for o in phases.results}
        row_index = dict(zip(phases.rows, row, strict=True))
        for phase in phases.kernels:
            extent = sizes[phase.axes[0].name] if phase.kind == "map" else 1
            slots = _slots(call, phase, row_index, scratch)
            points = call.points // count
            buffers = _buffers(call, phase, scratch)
            calls.append(KernelCall(phase, slots, buffers, extent, points))
    return tuple(calls)


ROW_PHASES = Schedule("phases of rows", _applies, _choose, _rewrite)


def _slots(
    call: KernelCall, phase: Kernel, row: dict[str, int], scratch: dict[str, int]
) -> tuple[int, ...]:
    """The argument block of a phase for one row: addresses are advanced to the row."""
    values, distances = values_of(call), distances_of(call.kernel)
    dtypes = {operand.name: operand.dtype for operand in call.kernel.operands}
    slots = []
    for argument in arguments(phase):
        name = argument.operand
        if name in scratch:
            slots.append(0)
            continue
        slot = values[argument]
        if argument.kind in ("pointer", "base"):
            step = sum(distances[name, axis].within(call.slots) * k for axis, k in row.items())
            size = storage_dtype(dtypes[name]).itemsize if argument.kind == "pointer" else 1
            slot += step * size
        slots.append(slot)
    return tuple(slots)


def _buffers(call: KernelCall, phase: Kernel, scratch: dict[str, int]) -> tuple[int, ...]:
    names = [operand.name for operand in call.kernel.operands]
    buffer_of = {**dict(zip(names, call.buffers, strict=True)), **scratch}
    return tuple([buffer_of[operand.name] for operand in phase.operands])
