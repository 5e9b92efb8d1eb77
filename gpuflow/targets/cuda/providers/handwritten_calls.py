"""Which library calls of a plan are launches of handwritten kernels, and what they need."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gpuflow.compiler.planning.plan import CallStep, CopyStep
from gpuflow.core.aval import storage_dtype
from gpuflow.core.lowering import (
    AtomicSums,
    Attention,
    Convolution,
    Library,
    Matrices,
    Runs,
    Scan,
    Sort,
)
from gpuflow.targets.cuda.codegen.handwritten import HandwrittenKernel
from gpuflow.targets.cuda.driver.handwritten_kernels import load, prepare
from gpuflow.targets.cuda.driver.launch import Launch, Place
from gpuflow.targets.cuda.driver.program_device import GpuDevice
from gpuflow.targets.cuda.providers.atomic_sums import add_atomic_sums
from gpuflow.targets.cuda.providers.attention import add_attention
from gpuflow.targets.cuda.providers.convolutions import add_convolution
from gpuflow.targets.cuda.providers.copy_forms import MOST_DIMS, collapsed
from gpuflow.targets.cuda.providers.launch_sequence import (
    At,
    BlockLaunch,
    LibraryLaunch,
    Schedule,
)
from gpuflow.targets.cuda.providers.library_convolutions import add_planned
from gpuflow.targets.cuda.providers.runs import add_runs
from gpuflow.targets.cuda.providers.scans import add_running
from gpuflow.targets.cuda.providers.small_matrices import add_matrices
from gpuflow.targets.cuda.providers.sorts import add_sort

_ALIGNED = 16  # bytes, for copies of 128 bits
# Shared memory that a block may have, where it is not the 163 KB of sm_80 or more.
_SHARED_BYTES = {(8, 6): 99 << 10, (8, 9): 99 << 10, (12, 0): 99 << 10, (12, 1): 99 << 10}
_SHARED_BYTES_AT_LEAST = 163 << 10


def block_of(step: CallStep) -> Any:
    """What a library call is, as kernels know it; None: it is none of theirs."""
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library) or rule.blocks is None:
        return None
    avals = [operand.aval for operand in step.operands]
    return rule.blocks(avals, [var.aval for var in step.eqn.outputs], step.eqn.params)


def schedule_of(step: CallStep) -> Schedule | None:
    """The launches that make a library call, or None: a library does it."""
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library) or rule.blocks is None:
        return None
    ins = [operand.aval for operand in step.operands]
    outs = [var.aval for var in step.eqn.outputs]
    if not any(out.size for out in outs):
        return Schedule(len(ins) + len(outs))
    schedule = Schedule(len(ins) + len(outs))
    if step.choice is not None:
        add_planned(schedule, step.choice, [At(0), At(1)], At(len(ins)), outs[0].shape)
        return schedule
    what = block_of(step)
    if what is None:
        return None
    if isinstance(what, Convolution):
        # It reads operands as they lie.
        views, kinds = [x.lies for x in step.operands], [aval.dtype for aval in ins]
        target = (At(len(ins)), outs[0])
        done = add_convolution(schedule, what, [At(0), At(1)], views, kinds, target)
        return schedule if done else None
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
    if len(collapsed(view)) > MOST_DIMS:
        return None
    schedule.copy(At(0, view.offset * dtype.itemsize), At(1), view, dtype)
    return schedule


_MAKERS: dict[type, Callable[..., bool]] = {
    Scan: add_running, Sort: add_sort, Runs: add_runs, Matrices: add_matrices,
    AtomicSums: add_atomic_sums,
    Attention: add_attention,
}  # fmt: skip


def that_fits(one: BlockLaunch, device: GpuDevice) -> tuple[BlockLaunch, HandwrittenKernel]:
    """The launch, or that with the largest tiles that a device holds; the last one in any case."""
    most = _SHARED_BYTES.get(device.compute_capability, _SHARED_BYTES_AT_LEAST)
    while True:
        kernel = load(one.kernel, one.signature, device, dict(one.constants), one.bounds)
        shared = kernel.shared_bytes + kernel.built.shared_bytes
        if one.smaller is None or (kernel.built.spill_bytes == 0 and shared <= most):
            return one, kernel
        one = one.smaller


def block_launch(
    one: BlockLaunch, places: Sequence[Place], device: GpuDevice
) -> tuple[Launch, list[int]]:
    """A launch, and the registers whose addresses it is called with.

    Args:
        one: what to launch.
        places: where the arrays that it names are.
        device: that it runs on.
    """
    one, kernel = that_fits(one, device)
    words, registers = array("q"), {}
    fixups: list[tuple[int, int, int]] = []
    for number, argument in enumerate(one.arguments):
        if not isinstance(argument, At):
            words.append(argument)
            continue
        register, start = places[argument.array]
        words.append(start + argument.offset)
        if register is not None:
            launch_register = registers.setdefault(register, len(registers))
            fixups.append((number, launch_register, start + argument.offset))
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
    aligned = [(launch_register, start, _ALIGNED) for _, launch_register, start in fixups]
    return Launch(run, plain, words, fixups, aligned), list(registers)


def library_launch(
    one: LibraryLaunch, places: Sequence[Place], device: GpuDevice
) -> tuple[Callable[..., None], list[Place]]:
    """A library's call as a function of addresses, and which these are.

    Args:
        one: what to call.
        places: where the arrays that it names are.
        device: that it runs on.
    """
    library = device.api.convolutions
    assert library is not None, "the plan was made for a device that has it"
    run = library.bind(one.what, device.compute)
    found: list[Place] = []
    offsets: list[int] = []
    for place in one.places:
        register, start = places[place.array]
        is_known = register is None
        found.append((register, start + place.offset if is_known else 0))
        offsets.append(0 if is_known else start + place.offset)

    def shifted(*arguments: int) -> None:
        moved = [place + offset for place, offset in zip(arguments, offsets, strict=False)]
        run(*moved, *arguments[len(offsets) :])  # behind the places may stand a stream

    return (shifted if any(offsets) else run), found
