"""Few long rows on the CPU: the phases of a row kernel become kernels of their own.

A launch gives each thread whole rows. Where there are fewer rows than threads, each reduction of a
row is a kernel, and so is the final loop over the row; results of reductions go through scratch
memory. A reduction of one row is one of all its elements, which may be split into parts:

    for each row:                       for the first row:
        top = max(x)                        top = max(x)              <- all threads
        total = sum(exp(x - top))           total = sum(exp(x - top)) <- all threads
        for each element: ...               for each element: ...     <- all threads
                                        for the second row: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from gpuflow.base.records import record
from gpuflow.compiler.lowering.call_layout import distances_of, sizes_of, values_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.compiler.schedules.schedule import Allocate, Schedule
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import (
    Block,
    For,
    Kernel,
    Load,
    Mode,
    Operand,
    Reduce,
    Role,
    Statement,
    Store,
    Stride,
    Value,
    arguments,
    remembered,
)
from gpuflow.kir.walk import all_uses, needed, results_of, statements
from gpuflow.targets.cpu.printing.rows import keep_row_values

# Two rows of so many elements; more only of those that no cache holds from one phase to the next.
SHORTEST_ROW = 1 << 16
FEW_ROWS = 2
SHORTEST_OF_MANY = 1 << 20
MOST_ROWS = 16
RESULT = "result"  # the operands that hold results of reductions


@record
class Phases:
    """The kernels of one row, in order.

    Attributes:
        kernels: reductions to one value, and last a map, if elements of rows are stored.
        rows: the axes along which there are rows.
        results: the operands that hold what reductions made, in any of the kernels.
    """

    kernels: tuple[Kernel, ...]
    rows: tuple[str, ...]
    results: tuple[Operand, ...]


def _applies(kernel: Kernel) -> bool:
    return kernel.kind == "row"


def _phases(kernel: Kernel) -> Phases | None:
    return remembered(kernel, "phases", lambda: phases_of(kernel))


def _choose(call: KernelCall) -> int | None:
    """The number of rows, if they are few and long."""
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
        # Memory of its own for each row: launches of one kernel for several rows may be joined.
        places = {o.name: allocate(storage_dtype(o.dtype).itemsize) for o in phases.results}
        moved = dict(zip(phases.rows, row, strict=True))
        for phase in phases.kernels:
            extent = sizes[phase.axes[0].name] if phase.kind == "map" else 1
            words = _words(call, phase, moved, places)
            points = call.points // count
            buffers = _buffers(call, phase, places)
            calls.append(KernelCall(phase, words, buffers, extent, points))
    return tuple(calls)


ROW_PHASES = Schedule("phases of rows", _applies, _choose, _rewrite)


def _words(
    call: KernelCall, phase: Kernel, row: dict[str, int], places: dict[str, int]
) -> tuple[int, ...]:
    """The argument block of a phase for one row of the whole call."""
    values, distances = values_of(call), distances_of(call.kernel)
    dtypes = {operand.name: operand.dtype for operand in call.kernel.operands}
    words = []
    for argument in arguments(phase):
        name = argument.operand
        if name in places:
            words.append(0)
            continue
        word = values[argument]
        if argument.kind in ("pointer", "base"):
            step = sum(distances[name, axis].within(call.words) * k for axis, k in row.items())
            size = storage_dtype(dtypes[name]).itemsize if argument.kind == "pointer" else 1
            word += step * size
        words.append(word)
    return tuple(words)


def _buffers(call: KernelCall, phase: Kernel, places: dict[str, int]) -> tuple[int, ...]:
    names = [operand.name for operand in call.kernel.operands]
    known = {**dict(zip(names, call.buffers, strict=True)), **places}
    return tuple([known[operand.name] for operand in phase.operands])


# --- the kernels ---------------------------------------------------------------------------


def phases_of(kernel: Kernel) -> Phases | None:
    """The phases of a row kernel, or None if it is one loop or does what they cannot."""
    rows = tuple(axis.name for axis in kernel.axes if axis.role is Role.PARALLEL)
    along = tuple(axis.name for axis in kernel.axes if axis.role is not Role.PARALLEL)
    if any(o.mode is Mode.INOUT and not _varies(kernel, o, along) for o in kernel.operands):
        return None  # a later phase would read again what an earlier one has overwritten
    kernel = keep_row_values(kernel)
    items = tuple(_flat(kernel.body, rows))
    loops = [s for s in items if isinstance(s, For)]
    stages = _stages(items)
    is_known = all(isinstance(s, Reduce) or s in loops for s in items if _has_blocks(s))
    if not is_known or len(loops) > 1 or len(stages) + len(loops) < 2:
        return None
    if any(s.axes != along for stage in stages for s in stage):
        return None
    results = {
        out: Operand(f"{RESULT}{out.number}", out.dtype, Mode.OUT)
        for stage in stages
        for reduce in stage
        for out in reduce.outs
    }
    stores = [s for s in items if isinstance(s, Store)]
    kernels, known = [], {}
    for number, stage in enumerate(stages):
        chosen = [*stage, *(stores if number == len(stages) - 1 else [])]
        outputs = {out: results[out].name for reduce in stage for out in reduce.outs}
        body = _body(items, known, chosen, outputs)
        kernels.append(_phase(kernel, number, body, along, results.values(), "full"))
        known.update(outputs)
    if loops:
        body = _body(items, known, loops, {})
        kernels.append(_phase(kernel, len(stages), body, along, results.values(), "map"))
    return Phases(tuple(kernels), rows, tuple(results.values()))


def _varies(kernel: Kernel, operand: Operand, axes: Sequence[str]) -> bool:
    pairs = zip(kernel.axes, operand.strides, strict=False)
    return any(axis.name in axes and stride is not Stride.ZERO for axis, stride in pairs)


def _flat(block: Block, rows: Sequence[str]) -> Iterator[Statement]:
    """The statements for one row, those of the loops over rows among them."""
    for statement in block.body:
        if isinstance(statement, For) and statement.axis in rows:
            yield from _flat(statement.body, rows)
        else:
            yield statement


def _has_blocks(statement: Statement) -> bool:
    return len(list(statements(Block(body=(statement,))))) > 1


def _stages(items: Sequence[Statement]) -> list[list[Reduce]]:
    """Reductions in order; those of one stage do not need each other."""
    stages: list[list[Reduce]] = []
    late: set[int] = set()  # values that need the last stage
    for statement in items:
        is_late = bool(all_uses(statement) & late)
        if isinstance(statement, Reduce):
            if is_late or not stages:
                stages.append([])
                late = set()
            stages[-1].append(statement)
            is_late = True
        if is_late:
            late |= {value.number for value in results_of(statement)}
    return stages


def _body(
    items: Sequence[Statement], known: dict[Value, str], chosen: Sequence[Statement],
    outputs: dict[Value, str],
) -> Block:  # fmt: skip
    """What a phase does: the chosen ones of a row's statements and what they need.

    Args:
        items: of the row.
        known: results of earlier phases and their operands, which it loads.
        chosen: reductions, loops and stores.
        outputs: its results, which it stores.
    """
    loads = [Load(out, name) for out, name in known.items()]
    kept = [s for s in items if not isinstance(s, Reduce | For | Store) or s in chosen]
    stores = [Store(name, out) for out, name in outputs.items()]
    return Block(body=needed([*loads, *kept, *stores]))


def _phase(
    kernel: Kernel, number: int, body: Block, along: Sequence[str], results: Iterable[Operand],
    kind: str,
) -> Kernel:  # fmt: skip
    role = Role.PARALLEL if kind == "map" else Role.REDUCE
    axes = tuple(replace(axis, role=role) for axis in kernel.axes if axis.name in along)
    places = [k for k, axis in enumerate(kernel.axes) if axis.name in along]
    every = [s for s in statements(body) if isinstance(s, Load | Store)]
    read = {s.operand for s in every if isinstance(s, Load)}
    written = {s.operand for s in every if isinstance(s, Store)}
    modes = {(True, False): Mode.IN, (False, True): Mode.OUT, (True, True): Mode.INOUT}
    operands = []
    for operand in (*kernel.operands, *results):
        if operand.name not in read | written:
            continue
        padded = (*operand.strides, *[Stride.ZERO] * len(kernel.axes))
        mode = operand.mode
        if mode not in (Mode.INDEX, Mode.SCALAR):
            mode = modes[operand.name in read, operand.name in written]
        strides = tuple(padded[place] for place in places)
        operands.append(replace(operand, mode=mode, strides=strides))
    return Kernel(
        f"{kernel.name}_phase{number}", axes, tuple(operands), body,
        index_bits=kernel.index_bits, kind=kind,
    )  # fmt: skip
