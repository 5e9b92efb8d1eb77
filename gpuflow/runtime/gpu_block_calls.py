"""Which library calls of a plan are launches of handwritten kernels, and what they need."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache

from gpuflow.compiler.plan import CallStep, CopyStep
from gpuflow.compiler.target import PlainTarget
from gpuflow.core.aval import storage_dtype
from gpuflow.core.lowering import Attention, Library, Matrices, Runs, Scan, Sort
from gpuflow.runtime.gpu_attention import add_attention
from gpuflow.runtime.gpu_blocks import At, BlockLaunch, Schedule, collapsed
from gpuflow.runtime.gpu_device import GpuDevice
from gpuflow.runtime.gpu_launch import Launch, Place
from gpuflow.runtime.gpu_matrices import add_matrices
from gpuflow.runtime.gpu_runs import add_runs
from gpuflow.runtime.gpu_scans import add_running
from gpuflow.runtime.gpu_sorts import add_sort
from gpuflow.runtime.handwritten import load, prepare

_ALIGNED = 16  # bytes, for copies of 128 bits


class GpuTarget(PlainTarget):
    """Every kernel is one launch; library calls that are handwritten kernels need workspaces."""

    on_gpu = True

    def workspace_bytes(self, step: CallStep) -> int:
        """Memory that a library call needs besides its operands and outputs."""
        schedule = schedule_of(step)
        return 0 if schedule is None else schedule.workspace_bytes


GPU_TARGET = GpuTarget()


def schedule_of(step: CallStep) -> Schedule | None:
    """The launches that make a library call, or None: a library does it."""
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library) or rule.blocks is None:
        return None
    ins = [operand.aval for operand in step.operands]
    outs = [var.aval for var in step.eqn.outputs]
    if not any(out.size for out in outs):
        return Schedule(len(ins) + len(outs))
    what = rule.blocks(ins, outs, step.eqn.params)
    if what is None:
        return None
    schedule = Schedule(len(ins) + len(outs))
    sources: list[At] = []
    for number, (operand, aval) in enumerate(zip(step.operands, ins, strict=True)):
        place = schedule.row_major(At(number), operand.lies, storage_dtype(aval.dtype))
        if place is None:
            return None
        sources.append(place)
    places = [At(number) for number in range(len(ins), len(ins) + len(outs))]
    add = _MAKERS[type(what)]
    return schedule if add(schedule, what, sources, places, [aval.dtype for aval in ins]) else None


def copy_schedule(step: CopyStep) -> Schedule | None:
    """The launch that makes a copy, or None: it has too many dimensions."""
    view, dtype = step.source.lies, storage_dtype(step.source.aval.dtype)
    schedule = Schedule(2)
    if len(collapsed(view)) > 4:
        return None
    schedule.copy(At(0, view.offset * dtype.itemsize), At(1), view, dtype)
    return schedule


_MAKERS: dict[type, Callable[..., bool]] = {
    Scan: add_running, Sort: add_sort, Runs: add_runs, Matrices: add_matrices,
    Attention: add_attention,
}  # fmt: skip


def block_launch(
    one: BlockLaunch, places: Sequence[Place], device: GpuDevice
) -> tuple[Launch, list[int]]:
    """A launch, and the registers whose addresses it is called with.

    Args:
        one: what to launch.
        places: where the arrays that it names are.
        device: that it runs on.
    """
    kernel = load(one.kernel, one.signature, device, dict(one.constants), one.bounds)
    words, registers = array("q"), {}
    fixups: list[tuple[int, int, int]] = []
    for number, argument in enumerate(one.arguments):
        if not isinstance(argument, At):
            words.append(argument)
            continue
        register, start = places[argument.array]
        words.append(start + argument.offset)
        if register is not None:
            own = registers.setdefault(register, len(registers))
            fixups.append((number, own, start + argument.offset))
    run = prepare(kernel, device, one.grid, one.block, words)
    if one.plain is None:
        return Launch(run, lambda: run, words, fixups), list(registers)

    @cache
    def plain() -> Callable[[], None]:
        other = load(one.kernel, one.signature, device, dict(one.plain or ()), one.bounds)
        return prepare(other, device, one.grid, one.block, words)

    moving = {number for number, _, _ in fixups}
    fixed = [
        words[number]
        for number, argument in enumerate(one.arguments)
        if isinstance(argument, At) and number not in moving
    ]
    if any(address % _ALIGNED for address in fixed):
        run = plain()
    aligned = [(own, start, _ALIGNED) for _, own, start in fixups]
    return Launch(run, plain, words, fixups, aligned), list(registers)
