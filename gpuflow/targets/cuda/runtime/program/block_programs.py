"""Launch whole loops as one kernel whose blocks run them, if a cost model says that it pays off.

``codegen/block_text.py`` prints such kernels. See docs/design/0034-programs-of-one-block.md.

Tests: tests/targets/cuda/test_block_programs.py, tests/targets/cuda/test_block_kernels_on_gpu.py.
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
    BlockProgramText,
    ConstantOperand,
    NotSingleBlockError,
)
from gpuflow.targets.cuda.codegen.block_text import loop_text, parallel_scan_text
from gpuflow.targets.cuda.codegen.handwritten import build_text
from gpuflow.targets.cuda.codegen.schedules.launch_config import SINGLE_BLOCK_THREADS
from gpuflow.targets.cuda.runtime.driver.launch import BoundLaunch, Fixup
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# Costs in seconds, all estimated: a launch, a wait of the host, a step of a block with its barrier;
# and for a whole device, an element, and a floating-point operation of a library call.
_LAUNCH_SECONDS, _WAIT_SECONDS, _STEP_SECONDS = 5e-6, 10e-6, 1e-6
_ELEMENT_SECONDS, _FLOP_SECONDS = 2.5e-12, 1e-14
# The least time of a loop that is worth seconds of compilation for its sizes alone; and the trip
# count that is assumed if it is unknown.
_LEAST_SECONDS, _ASSUMED_TRIP_COUNT = 1e-3, 32
# Most shared memory of a block in bytes, so that a multiprocessor has room for two blocks.
_MAX_SHARED_BYTES = 96 << 10
_MAX_ARENA_BYTES = 256 << 20  # bytes, of all arenas in global memory
_BLOCKS_PER_PROCESSOR = 2
_BYTE = np.dtype(np.uint8)


@record
class _LoopCost:
    """The cost of a program or of an iteration.

    Attributes:
        steps: number of launches, or of steps if blocks run the program.
        waits: number of waits of the host.
        busy: seconds that the whole device computes.
    """

    steps: float = 0.0
    waits: float = 0.0
    busy: float = 0.0

    def times(self, count: float) -> _LoopCost:
        return _LoopCost(self.steps * count, self.waits * count, self.busy * count)

    def plus(self, other: _LoopCost) -> _LoopCost:
        return _LoopCost(self.steps + other.steps, self.waits + other.waits, self.busy + other.busy)


def _plan_cost(plan: Plan) -> _LoopCost:
    """The cost of a plan; loops of unknown trip count have one iteration."""
    cost = _LoopCost()
    for step in plan.steps:
        if isinstance(step, ProgramStep):
            rule = step.eqn.primitive.lower
            if rule.form is not None:
                loop = rule.form(step.eqn.params)
                trip_count = 1 if loop.length is None else loop.length
                cost = cost.plus(_iteration_cost(step).times(trip_count))
            else:
                branches = [_plan_cost(program.plan) for program in step.programs]
                cost = cost.plus(max(branches, key=lambda branch: branch.busy)).plus(
                    _LoopCost(waits=1)
                )
        elif isinstance(step, KernelStep):
            points = sum(call.points for call in step.calls)
            cost = cost.plus(_LoopCost(len(step.launches), 0, points * _ELEMENT_SECONDS))
        elif isinstance(step, CopyStep):
            cost = cost.plus(_LoopCost(1, 0, step.source.aval.size * _ELEMENT_SECONDS))
        elif isinstance(step, CallStep):
            cost = cost.plus(_LoopCost(1, 0, flops_of(step) * _FLOP_SECONDS))
    return cost


def _iteration_cost(step: ProgramStep) -> _LoopCost:
    """The cost of one iteration; that of a while_loop has a wait for its condition."""
    costs = [_plan_cost(inner.plan) for inner in step.programs]
    return costs[0] if len(costs) == 1 else costs[0].plus(costs[1]).plus(_LoopCost(waits=1))


def _pays_off(step: ProgramStep, trip_count: int, blocks: int, processors: int) -> bool:
    """Whether a loop takes at most half as long if blocks run it.

    Args:
        step: the loop.
        trip_count: independent iterations that are distributed over blocks; 1: one block runs all
            iterations in order.
        blocks: number of blocks.
        processors: multiprocessors of the device.
    """
    cost = _iteration_cost(step)
    if trip_count > 1:
        rounds, count = -(-trip_count // blocks), trip_count
    else:
        loop = step.eqn.primitive.lower.form(step.eqn.params)
        rounds = count = _ASSUMED_TRIP_COUNT if loop.length is None else loop.length
    by_host = count * (cost.steps * _LAUNCH_SECONDS + cost.waits * _WAIT_SECONDS + cost.busy)
    by_blocks = _LAUNCH_SECONDS + rounds * (cost.steps * _STEP_SECONDS + cost.busy * processors)
    return by_host >= _LEAST_SECONDS and 2 * by_blocks <= by_host


def bind_loop_launch(
    step: ProgramStep, device: GpuDevice, keep_alive: Callable[[Any], None]
) -> tuple[BoundLaunch, list[int]] | None:
    """Bind the launch that runs a loop, if blocks can and should run it.

    Args:
        step: a loop or branch.
        device: the device that runs it.
        keep_alive: keeps an object alive as long as the program.

    Returns:
        The launch, and for each of its registers, the index of an operand, or of an output after
        the operands. None: run the loop otherwise.
    """
    if not config.environment.block_programs or step.eqn.primitive.lower.form is None:
        return None
    loop = step.eqn.primitive.lower.form(step.eqn.params)
    is_parallel = loop.is_parallel
    trip_count = loop.length if is_parallel else 1
    if loop.length == 0:
        return None
    print_text = parallel_scan_text if is_parallel else loop_text
    blocks = min(trip_count, _BLOCKS_PER_PROCESSOR * device.processors)
    if not _pays_off(step, trip_count, blocks, device.processors):
        return None
    try:
        text = print_text(step, _MAX_SHARED_BYTES)
    except NotSingleBlockError:
        return None
    blocks = max(1, min(blocks, _MAX_ARENA_BYTES // text.arena_bytes))
    return _bind_launch(text, blocks, device, keep_alive)


def _bind_launch(
    text: BlockProgramText, blocks: int, device: GpuDevice, keep_alive: Callable[[Any], None]
) -> tuple[BoundLaunch, list[int]]:
    operand_indices: list[int] = []
    slots, fixups = array("q"), list[Fixup]()
    for operand in text.operands:
        if isinstance(operand, ConstantOperand):
            value = device.from_host(as_numpy(operand.value, operand.aval))
            keep_alive(value)
            slots.append(value.address)
        else:
            if operand not in operand_indices:
                operand_indices.append(operand)
            fixups.append(Fixup(len(slots), operand_indices.index(operand), 0))
            slots.append(0)
    if not text.is_shared:
        arenas = device.empty((blocks * text.arena_bytes,), _BYTE)
        keep_alive(arenas)
        slots.append(arenas.address)
    kernel = build_text(
        text.text,
        ENTRY,
        ("int64",) * len(slots),
        SINGLE_BLOCK_THREADS[0] * SINGLE_BLOCK_THREADS[1],
        text.arena_bytes if text.is_shared else 0,
        kernel_cache(),
        device.compute_capability,
        lineinfo=False,
    )
    run = device.prepare(kernel, (blocks, 1), SINGLE_BLOCK_THREADS, slots, kernel.shared_bytes)
    return BoundLaunch(run, lambda: run, slots, fixups), operand_indices
