"""Bind the launches of a launch sequence to a device and to buffers: functions of addresses.

A buffer is a ``BufferLocation``: a register of the program and a byte offset from its address, or a
fixed address without a register. A bound launch takes the addresses in its registers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from gpuflow.base.errors import check
from gpuflow.compiler.planning.plan import CopyStep
from gpuflow.core.aval import storage_dtype
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.handwritten import HandwrittenKernel
from gpuflow.targets.cuda.codegen.user_kernels import build_user_kernel
from gpuflow.targets.cuda.library.copy_forms import MOST_DIMS, collapsed
from gpuflow.targets.cuda.library.dnn.calls import ConvolutionCall
from gpuflow.targets.cuda.library.launch_sequence import (
    OUT,
    AnyLaunch,
    At,
    BlockLaunch,
    EpilogueLaunch,
    GemmLaunch,
    LaunchSequence,
    LibraryLaunch,
    UserLaunch,
)
from gpuflow.targets.cuda.runtime.driver.handwritten_kernels import load, prepare
from gpuflow.targets.cuda.runtime.driver.launch import (
    AlignedCall,
    AlignmentCondition,
    BoundLaunch,
    BufferLocation,
    Fixup,
)
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

_ALIGNED = 16  # bytes, for accesses of 128 bits
# The most shared memory of a block by compute capability, if it differs from the 163 KB of sm_80.
_SHARED_BYTES = {
    (8, 6): 99 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (10, 3): 227 << 10,
    (12, 0): 99 << 10,
    (12, 1): 99 << 10,
}
_SHARED_BYTES_AT_LEAST = 163 << 10


def copy_sequence(step: CopyStep) -> LaunchSequence | None:
    """The launch sequence of a copy; None if its view has too many dimensions."""
    view, dtype = step.source.layout, storage_dtype(step.source.aval.dtype)
    sequence = LaunchSequence(2)
    if len(collapsed(view)) > MOST_DIMS:
        return None
    sequence.copy(At(0, view.offset * dtype.itemsize), At(1), view, dtype)
    return sequence


def most_shared_bytes(compute_capability: tuple[int, int]) -> int:
    """The most shared memory of a block in bytes, static and dynamic."""
    return _SHARED_BYTES.get(compute_capability, _SHARED_BYTES_AT_LEAST)


def largest_fitting(one: BlockLaunch, device: GpuDevice) -> tuple[BlockLaunch, HandwrittenKernel]:
    """Load the largest of a launch's alternatives that fits the device, or the smallest.

    It fits if it spills no registers and has enough shared memory.
    """
    most = most_shared_bytes(device.compute_capability)
    while True:
        kernel = load(one.kernel, one.signature, device, dict(one.constants), one.bounds)
        shared = kernel.shared_bytes + kernel.built.shared_bytes
        if one.smaller is None or (kernel.built.spill_bytes == 0 and shared <= most):
            return one, kernel
        one = one.smaller


def block_launch(
    one: BlockLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[BoundLaunch, list[int]]:
    """Bind a launch; returns a function of addresses, and the registers of these addresses.

    At unaligned addresses, the function launches the build with the constants ``one.plain``.

    Args:
        one: the launch.
        buffers: locations of the arrays to which its arguments refer.
        device: the device that runs it.
    """
    one, kernel = largest_fitting(one, device)
    slots, registers, fixups = _argument_slots(one.arguments, buffers)
    run = prepare(kernel, device, one.grid, one.block, slots)
    if one.plain is None:
        return BoundLaunch(run, lambda: run, slots, fixups), list(registers)

    @cache
    def plain() -> Callable[[], None]:
        other = load(one.kernel, one.signature, device, dict(one.plain or ()), one.bounds)
        return prepare(other, device, one.grid, one.block, slots)

    in_registers = {fixup.slot for fixup in fixups}
    fixed = [
        slots[slot]
        for slot, argument in enumerate(one.arguments)
        if isinstance(argument, At) and slot not in in_registers
    ]
    if any(address % _ALIGNED for address in fixed):
        run = plain()
    aligned = [AlignmentCondition(fixup.register, fixup.offset, _ALIGNED) for fixup in fixups]
    return BoundLaunch(run, plain, slots, fixups, aligned), list(registers)


def _argument_slots(
    arguments: Sequence[At | int], buffers: Sequence[BufferLocation]
) -> tuple[array[int], dict[int, int], list[Fixup]]:
    """The argument slots of a launch, its registers, and its fixups.

    Returns:
        The slots, with fixed addresses and scalars filled in; by register of the program, its
        number in the launch; and the fixups of the other slots.
    """
    slots, registers = array("q"), {}
    fixups: list[Fixup] = []
    for slot, argument in enumerate(arguments):
        if not isinstance(argument, At):
            slots.append(argument)
            continue
        register, start = buffers[argument.array]
        slots.append(start + argument.offset)
        if register is not None:
            launch_register = registers.setdefault(register, len(registers))
            fixups.append(Fixup(slot, launch_register, start + argument.offset))
    return slots, registers, fixups


def user_launch(
    one: UserLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[BoundLaunch, list[int]]:
    """Bind a launch of a user's kernel, as ``block_launch``.

    Raises:
        ValueError: if a block needs more shared memory than the device has.
    """
    kernel = one.kernel
    x, y, z = kernel.block
    user = build_user_kernel(
        kernel.name, kernel.code, one.types, x * y * z, kernel_cache(), device.compute_capability
    )
    static_bytes = user.built.shared_bytes
    most = most_shared_bytes(device.compute_capability)
    check(
        static_bytes + kernel.shared_bytes <= most,
        lambda: (
            f"[raw_kernel] a block of {kernel.name} must have at most {most} bytes of shared "
            f"memory; got {static_bytes} in the kernel and {kernel.shared_bytes} in grid. "
            "Fix: smaller tiles."
        ),
        ValueError,
    )
    slots, registers, fixups = _argument_slots(one.arguments, buffers)
    run: Callable[[], None] = lambda: None  # noqa: E731
    if 0 not in kernel.grid:
        run = device.prepare(
            user, kernel.grid, kernel.block, slots, kernel.shared_bytes, one.touches
        )
    return BoundLaunch(run, lambda: run, slots, fixups), list(registers)


def library_launch(
    one: LibraryLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[Callable[..., None], list[BufferLocation]]:
    """Bind a call of cuDNN; returns a function of addresses, and their locations.

    If ``one.plain`` exists and an address is not aligned, the function runs these launches instead;
    they take the registers at the end of the addresses.

    Args:
        one: the call.
        buffers: locations of the arrays to which it refers.
        device: the device that runs it.
    """
    library = device.api.deep_library
    assert library is not None, one.what  # else the plan has no such calls
    run = library.bind(one.what, device.compute)
    at: list[BufferLocation] = []
    offsets: list[int] = []
    for location in one.locations:
        register, start = buffers[location.array]
        is_fixed = register is None
        at.append((register, start + location.offset if is_fixed else 0))
        offsets.append(0 if is_fixed else start + location.offset)
    registers = list(dict.fromkeys(n for n, _ in buffers if n is not None)) if one.plain else []

    @cache
    def plain() -> Callable[..., None]:
        launches = [block_launch(other, buffers, device) for other in one.plain]

        def run_plain(*addresses: int) -> None:
            address_in = dict(zip(registers, addresses, strict=True))
            for launch, used in launches:
                launch(*[address_in[number] for number in used])

        return run_plain

    at += [(number, 0) for number in registers]
    checked = len(one.locations) - 1 if one.plain else 0  # else the library reports errors
    return AlignedCall(run, checked, _ALIGNED, offsets, len(at), plain), at


# A function of the addresses of left, right and out, and optionally of another stream.
Multiply = Callable[..., None]


def gemm_launch(one: GemmLaunch, device: GpuDevice) -> Multiply | None:
    """Bind calls of a GEMM: a function of the addresses of left, right and out.

    None if the device has no such GEMM.
    """
    call = device.api.gemm(one.gemm, device.compute)
    if call is None:
        return None
    if len(one.locations) == 1:
        (at_left, at_right, _) = one.locations[0]
        if at_left == 0 and at_right == 0:
            return call

    def multiply(left: int, right: int, out: int, *stream: int) -> None:
        for at_left, at_right, at_out in one.locations:
            call(left + at_left, right + at_right, out + at_out, *stream)

    return multiply


class Bound(NamedTuple):
    """A launch or library call as a function of addresses.

    Attributes:
        stem: start of its name in the text of a program's driver.
        run: the function.
        buffers: locations of its arguments, which are addresses.
        out: index of the argument whose buffer it writes completely; None if not known.
    """

    stem: str
    run: Callable[..., Any]
    buffers: Sequence[BufferLocation]
    out: int | None


def bound(one: AnyLaunch, buffers: Sequence[BufferLocation], device: GpuDevice) -> Bound | None:
    """Bind any launch to buffers; None if the device has no library for it."""
    return _BINDINGS[type(one)](one, buffers, device)


def _bound_block(one: BlockLaunch, buffers: Sequence[BufferLocation], device: GpuDevice) -> Bound:
    launch, registers = block_launch(one, buffers, device)
    return Bound("launch", launch, [(number, 0) for number in registers], None)


def _bound_user(one: UserLaunch, buffers: Sequence[BufferLocation], device: GpuDevice) -> Bound:
    launch, registers = user_launch(one, buffers, device)
    return Bound("launch", launch, [(number, 0) for number in registers], None)


def _bound_library(
    one: LibraryLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> Bound:
    if isinstance(one.what.call, ConvolutionCall):
        return Bound("convolve", *library_launch(one, buffers, device), OUT)
    return Bound("attend", *library_launch(one, buffers, device), None)


def _bound_gemm(
    one: GemmLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> Bound | None:
    multiply = gemm_launch(one, device)
    return None if multiply is None else Bound("multiply", multiply, buffers, OUT)


def _bound_epilogue(
    one: EpilogueLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> Bound | None:
    multiply = device.api.gemm_with(one.gemm, one.epilogue, device.compute)
    if multiply is None:
        return None
    used = [(None, 0) if at is None else buffers[at.array] for at in one.locations]
    offsets = [0 if at is None else at.offset for at in one.locations]

    def call(*addresses: int) -> None:
        shifted = [a + b for a, b in zip(addresses, offsets, strict=False)]
        multiply(*shifted, *addresses[len(offsets) :])

    run = call if any(offsets) else multiply
    return Bound("multiply", run, used, OUT if one.locations[-1] is None else None)


_BINDINGS: dict[type[Any], Callable[..., Bound | None]] = {
    BlockLaunch: _bound_block,
    LibraryLaunch: _bound_library,
    GemmLaunch: _bound_gemm,
    EpilogueLaunch: _bound_epilogue,
    UserLaunch: _bound_user,
}
