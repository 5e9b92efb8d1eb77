"""Loop fission of row kernels with few long rows: each phase of a row becomes a kernel.

A launch gives each thread whole rows. If there are fewer rows than threads, each reduction of a row
becomes a kernel, and so does the final loop over the row. Results of reductions pass through
scratch memory. A reduction of one row is a full reduction, which ``split_reductions`` may split:

    for each row:                       for the first row:
        top = max(x)                        top = max(x)              <- all threads
        total = sum(exp(x - top))           total = sum(exp(x - top)) <- all threads
        for each element: ...               for each element: ...     <- all threads
                                        for the second row: ...

Tests: tests/targets/cpu/test_row_phases.py, tests/compiler/test_schedules.py.
"""

from __future__ import annotations

from itertools import product
from math import prod

from gpuflow.compiler.lowering.argument_block import argument_values, extents_of, stride_sources_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.phases import Phases, split_into_phases
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import (
    Kernel,
    arguments,
    memoized,
)
from gpuflow.targets.cpu.codegen.schedules.row_values import cache_row_values

# Least elements of a row: MIN_ROW_LENGTH for up to FEW_ROWS rows, else MIN_LENGTH_OF_MANY_ROWS. The
# latter exceeds every cache: then it costs nothing that each phase reads the row from memory.
MIN_ROW_LENGTH = 1 << 16
FEW_ROWS = 2
MIN_LENGTH_OF_MANY_ROWS = 1 << 20
MAX_ROWS = 16  # with more rows, each thread has whole rows


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "row"


def _phases(kernel: Kernel) -> Phases | None:
    return memoized(kernel, _find_phases)


def _find_phases(kernel: Kernel) -> Phases | None:
    return split_into_phases(cache_row_values(kernel), keeps_rows=False)


def _choose(call: KernelCall) -> int | None:
    """The number of rows if they are few and long, else None."""
    if call.points < MIN_ROW_LENGTH or call.extent > MAX_ROWS:
        return None
    phases = _phases(call.kernel)
    if phases is None:
        return None
    sizes = extents_of(call)
    count = prod([sizes[axis] for axis in phases.row_axes])
    shortest = MIN_ROW_LENGTH if count <= FEW_ROWS else MIN_LENGTH_OF_MANY_ROWS
    return count if 0 < count <= MAX_ROWS and call.points >= shortest * count else None


def _rewrite(call: KernelCall, count: int, allocate: Allocate) -> tuple[KernelCall, ...]:
    phases, sizes = _phases(call.kernel), extents_of(call)
    assert phases is not None  # it has rows
    calls = []
    for row in product(*[range(sizes[axis]) for axis in phases.row_axes]):
        # Each row has separate scratch memory, because launches for several rows may be merged.
        scratch = {o.name: allocate(storage_dtype(o.dtype).itemsize) for o in phases.results}
        row_index = dict(zip(phases.row_axes, row, strict=True))
        for phase in phases.kernels:
            extent = sizes[phase.axes[0].name] if phase.kind == "map" else 1
            slots = _slots(call, phase, row_index, scratch)
            points = call.points // count
            buffers = _buffers(call, phase, scratch)
            calls.append(KernelCall(phase, slots, buffers, extent, points))
    return tuple(calls)


ROW_PHASES = Schedule("phases of rows", _applies, _choose, _rewrite)


def _slots(
    call: KernelCall, phase: Kernel, row_index: dict[str, int], scratch: dict[str, int]
) -> tuple[int, ...]:
    """The argument block of a phase for one row: addresses are advanced to the row.

    Args:
        call: the call of the whole kernel.
        phase: the kernel of the phase. Except scratch, its arguments are some of the call's.
        row_index: index of the row along each axis over rows.
        scratch: buffer ids of scratch operands, by name.
    """
    values, stride_sources = argument_values(call), stride_sources_of(call.kernel)
    dtypes = {operand.name: operand.dtype for operand in call.kernel.operands}
    slots = []
    for argument in arguments(phase):
        name = argument.operand
        if name in scratch:
            slots.append(0)
            continue
        slot = values[argument]
        # Pointers count in bytes; the base of an INDEX operand counts in elements.
        if argument.kind in ("pointer", "base"):
            offset = sum(
                stride_sources[name, axis].value_in(call.slots) * k for axis, k in row_index.items()
            )
            itemsize = storage_dtype(dtypes[name]).itemsize if argument.kind == "pointer" else 1
            slot += offset * itemsize
        slots.append(slot)
    return tuple(slots)


def _buffers(call: KernelCall, phase: Kernel, scratch: dict[str, int]) -> tuple[int, ...]:
    """The buffer id of each operand of a phase."""
    names = [operand.name for operand in call.kernel.operands]
    buffer_of = {**dict(zip(names, call.buffers, strict=True)), **scratch}
    return tuple([buffer_of[operand.name] for operand in phase.operands])
