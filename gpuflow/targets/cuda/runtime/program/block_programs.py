"""Launch whole loops as one kernel whose blocks run them, if a cost model says that it pays off.

``codegen/block_text.py`` prints such kernels. See docs/design/0034-programs-of-one-block.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base.config import config
from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    ProgramStep,
    flops_of,
)
from gpuflow.runtime.array import as_numpy
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.block_printer import (
    ENTRY,
    BlockText,
    Constant,
    NotOfOneBlockError,
)
from gpuflow.targets.cuda.codegen.block_text import loop_text, parallel_scan_text
from gpuflow.targets.cuda.codegen.handwritten import build_text
from gpuflow.targets.cuda.codegen.schedules.launch_config import ALONE_THREADS
from gpuflow.targets.cuda.runtime.driver.launch import BoundLaunch, Fixup
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# Costs in seconds, all estimated: a launch, a wait of the host, a step of a block with its barrier;
# and for a whole device, an element, and a floating-point operation of a library call.
_LAUNCH, _WAIT, _STEP = 5e-6, 10e-6, 1e-6
_ELEMENT, _OPERATION = 2.5e-12, 1e-14
# The least time of a loop that is worth seconds of compilation for its sizes alone; and the trip
# count that is assumed if it is unknown.
_LEAST, _UNKNOWN = 1e-3, 32
# Most shared memory of a block in bytes, so that a multiprocessor has room for two blocks.
_MOST_SHARED = 96 << 10
_MOST_ARENAS = 256 << 20  # bytes, of all arenas in global memory
_BLOCKS_PER_PROCESSOR = 2
_BYTE = np.dtype(np.uint8)


@record
class _Work:
    """The work of a program.

    Attributes:
        steps: number of launches, or of steps if blocks run the program.
        waits: number of waits of the host.
        busy: seconds that the whole device computes.
    """

    steps: float = 0.0
    waits: float = 0.0
    busy: float = 0.0

    def times(self, count: float) -> _Work:
        return _Work(self.steps * count, self.waits * count, self.busy * count)

    def plus(self, other: _Work) -> _Work:
        return _Work(self.steps + other.steps, self.waits + other.waits, self.busy + other.busy)


def _work(plan: Plan) -> _Work:
    """The work of a plan; loops of unknown trip count have one iteration."""
    work = _Work()
    for step in plan.steps:
        if isinstance(step, ProgramStep):
            rule = step.eqn.primitive.lower
            if rule.form is not None:
                form = rule.form(step.eqn.params)
                trip_count = 1 if form.length is None else form.length
                work = work.plus(_iteration_work(step).times(trip_count))
            else:
                branches = [_work(program.plan) for program in step.programs]
                work = work.plus(max(branches, key=lambda w: w.busy)).plus(_Work(waits=1))
        elif isinstance(step, KernelStep):
            points = sum(call.points for call in step.calls)
            work = work.plus(_Work(len(step.launches), 0, points * _ELEMENT))
        elif isinstance(step, CopyStep):
            work = work.plus(_Work(1, 0, step.source.aval.size * _ELEMENT))
        elif isinstance(step, CallStep):
            work = work.plus(_Work(1, 0, flops_of(step) * _OPERATION))
    return work


def _iteration_work(step: ProgramStep) -> _Work:
    """The work of one iteration; that of a while_loop has a wait for its condition."""
    works = [_work(inner.plan) for inner in step.programs]
    return works[0] if len(works) == 1 else works[0].plus(works[1]).plus(_Work(waits=1))


def _pays(step: ProgramStep, trip_count: int, blocks: int, processors: int) -> bool:
    """Whether a loop takes at most half as long if blocks run it.

    Args:
        step: the loop.
        trip_count: independent iterations that are distributed over blocks; 1: one block runs all.
        blocks: number of blocks.
        processors: multiprocessors of the device.
    """
    work = _iteration_work(step)
    if trip_count > 1:
        rounds, count = -(-trip_count // blocks), trip_count
    else:
        form = step.eqn.primitive.lower.form(step.eqn.params)
        rounds = count = _UNKNOWN if form.length is None else form.length
    by_host = count * (work.steps * _LAUNCH + work.waits * _WAIT + work.busy)
    by_blocks = _LAUNCH + rounds * (work.steps * _STEP + work.busy * processors)
    return by_host >= _LEAST and 2 * by_blocks <= by_host


def block_launch(
    step: ProgramStep, device: GpuDevice, keep: Callable[[Any], None]
) -> tuple[BoundLaunch, list[int]] | None:
    """Bind the launch that runs a loop, if blocks can and should run it.

    Args:
        step: a loop or branch.
        device: the device that runs it.
        keep: keeps an object alive as long as the program.

    Returns:
        The launch, and for each of its registers, the index of an operand, or of an output after
        the operands. None: run the loop otherwise.
    """
    if not config.environment.block_programs or step.eqn.primitive.lower.form is None:
        return None
    form = step.eqn.primitive.lower.form(step.eqn.params)
    is_parallel = form.is_parallel
    trip_count = form.length if is_parallel else 1
    if form.length == 0:
        return None
    print_text = parallel_scan_text if is_parallel else loop_text
    blocks = min(trip_count, _BLOCKS_PER_PROCESSOR * device.processors)
    if not _pays(step, trip_count, blocks, device.processors):
        return None
    try:
        text = print_text(step, _MOST_SHARED)
    except NotOfOneBlockError:
        return None
    blocks = max(1, min(blocks, _MOST_ARENAS // text.arena_bytes))
    return _launch(text, blocks, device, keep)


def _launch(
    text: BlockText, blocks: int, device: GpuDevice, keep: Callable[[Any], None]
) -> tuple[BoundLaunch, list[int]]:
    operand_indices: list[int] = []
    slots, fixups = array("q"), list[Fixup]()
    for operand in text.operands:
        if isinstance(operand, Constant):
            value = device.from_host(as_numpy(operand.value, operand.aval))
            keep(value)
            slots.append(value.address)
        else:
            if operand not in operand_indices:
                operand_indices.append(operand)
            fixups.append(Fixup(len(slots), operand_indices.index(operand), 0))
            slots.append(0)
    if not text.is_shared:
        arenas = device.empty((blocks * text.arena_bytes,), _BYTE)
        keep(arenas)
        slots.append(arenas.address)
    kernel = build_text(
        text.text,
        ENTRY,
        ("int64",) * len(slots),
        ALONE_THREADS[0] * ALONE_THREADS[1],
        text.arena_bytes if text.is_shared else 0,
        kernel_cache(),
        device.compute_capability,
        lineinfo=False,
    )
    run = device.prepare(kernel, (blocks, 1), ALONE_THREADS, slots, kernel.shared_bytes)
    return BoundLaunch(run, lambda: run, slots, fixups), operand_indices
