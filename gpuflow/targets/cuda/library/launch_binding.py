"""Bind the launches of a launch sequence to a device and to buffers: functions of addresses.

A buffer is a ``BufferLocation``: a register of the driver and a byte offset from its address, or a
fixed address without a register. A bound launch takes the addresses in the registers that it uses.
Callers pass the buffers of a sequence's arrays in order: operands, outputs, workspace; and they
keep them alive while bound launches may run.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_gpu_graphs.py.
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
from gpuflow.targets.cuda.library.copy_launches import MAX_DIMS, collapsed
from gpuflow.targets.cuda.library.dnn.calls import ConvolutionCall
from gpuflow.targets.cuda.library.launch_sequence import (
    OUT,
    AnyLaunch,
    ArrayLocation,
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

_ALIGNMENT_BYTES = 16  # bytes, for accesses of 128 bits
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
    if len(collapsed(view)) > MAX_DIMS:
        return None
    sequence.copy(ArrayLocation(0, view.offset * dtype.itemsize), ArrayLocation(1), view, dtype)
    return sequence


def most_shared_bytes(compute_capability: tuple[int, int]) -> int:
    """The most shared memory of a block in bytes, static and dynamic."""
    return _SHARED_BYTES.get(compute_capability, _SHARED_BYTES_AT_LEAST)


def largest_that_fits(
    candidate: BlockLaunch, device: GpuDevice
) -> tuple[BlockLaunch, HandwrittenKernel]:
    """Load the largest of a launch's alternatives that fits the device, or the smallest.

    It fits if it spills no registers and has enough shared memory.
    """
    available = most_shared_bytes(device.compute_capability)
    while True:
        kernel = load(
            candidate.kernel,
            candidate.signature,
            device,
            dict(candidate.constants),
            candidate.bounds,
        )
        required = kernel.shared_bytes + kernel.built.shared_bytes
        if candidate.smaller is None or (kernel.built.spill_bytes == 0 and required <= available):
            return candidate, kernel
        candidate = candidate.smaller


def bind_block_launch(
    launch: BlockLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[BoundLaunch, list[int]]:
    """Bind a launch; returns a function of addresses, and the registers of these addresses.

    At unaligned addresses, the function launches the build for ``unaligned_constants``, which the
    first such call builds.

    Args:
        launch: the launch.
        buffers: locations of the arrays to which its arguments refer.
        device: the device that runs it.
    """
    launch, kernel = largest_that_fits(launch, device)
    slots, registers, fixups = _argument_slots(launch.arguments, buffers)
    run = prepare(kernel, device, launch.grid, launch.block, slots)
    if launch.unaligned_constants is None:
        return BoundLaunch(run, lambda: run, slots, fixups), list(registers)

    @cache
    def unaligned_run() -> Callable[[], None]:
        unaligned_kernel = load(
            launch.kernel,
            launch.signature,
            device,
            dict(launch.unaligned_constants or ()),
            launch.bounds,
        )
        return prepare(unaligned_kernel, device, launch.grid, launch.block, slots)

    slots_of_registers = {fixup.slot for fixup in fixups}
    fixed_addresses = [
        slots[slot]
        for slot, argument in enumerate(launch.arguments)
        if isinstance(argument, ArrayLocation) and slot not in slots_of_registers
    ]
    if any(address % _ALIGNMENT_BYTES for address in fixed_addresses):
        run = unaligned_run()
    conditions = [
        AlignmentCondition(fixup.address_index, fixup.offset, _ALIGNMENT_BYTES) for fixup in fixups
    ]
    return BoundLaunch(run, unaligned_run, slots, fixups, conditions), list(registers)


class _ArgumentSlots(NamedTuple):
    """The argument slots of a launch.

    Attributes:
        slots: 8-byte slots with fixed addresses and scalars; ``fixups`` overwrite the others.
        registers: registers of the driver that the launch uses. Its addresses have their order.
        fixups: the slots of addresses in registers.
    """

    slots: array[int]
    registers: list[int]
    fixups: list[Fixup]


def _argument_slots(
    arguments: Sequence[ArrayLocation | int], buffers: Sequence[BufferLocation]
) -> _ArgumentSlots:
    """The argument slots for launch arguments that refer to buffers."""
    slots, address_index_of = array("q"), dict[int, int]()
    fixups: list[Fixup] = []
    for slot, argument in enumerate(arguments):
        if not isinstance(argument, ArrayLocation):
            slots.append(argument)
            continue
        register, start = buffers[argument.array]
        slots.append(start + argument.offset)
        if register is not None:
            address_index = address_index_of.setdefault(register, len(address_index_of))
            fixups.append(Fixup(slot, address_index, start + argument.offset))
    return _ArgumentSlots(slots, list(address_index_of), fixups)


def bind_user_launch(
    launch: UserLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[BoundLaunch, list[int]]:
    """Bind a launch of a user's kernel, as ``bind_block_launch``.

    Raises:
        ValueError: if a block needs more shared memory than the device has.
    """
    kernel = launch.kernel
    x, y, z = kernel.block
    built_kernel = build_user_kernel(
        kernel.name, kernel.code, launch.types, x * y * z, kernel_cache(), device.compute_capability
    )
    static_bytes = built_kernel.built.shared_bytes
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
    slots, registers, fixups = _argument_slots(launch.arguments, buffers)
    run: Callable[[], None] = lambda: None  # noqa: E731
    if 0 not in kernel.grid:
        run = device.prepare(
            built_kernel,
            kernel.grid,
            kernel.block,
            slots,
            kernel.shared_bytes,
            launch.array_accesses,
        )
    return BoundLaunch(run, lambda: run, slots, fixups), list(registers)


def bind_library_launch(
    launch: LibraryLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> tuple[Callable[..., None], list[BufferLocation]]:
    """Bind a call of cuDNN; returns a function of addresses, and their locations.

    If ``unaligned_launches`` exist and an address is not aligned, the function runs them instead.
    They take the registers of ``buffers``, which are the last of its addresses.

    Args:
        launch: the call.
        buffers: locations of the arrays to which it refers.
        device: the device that runs it.
    """
    library = device.api.dnn_library
    assert library is not None, launch.planned_call  # else the plan has no such calls
    run = library.bind(launch.planned_call, device.compute)
    argument_buffers: list[BufferLocation] = []
    offsets: list[int] = []
    for location in launch.locations:
        register, start = buffers[location.array]
        is_fixed = register is None
        fixed_address = start + location.offset if is_fixed else 0
        argument_buffers.append(BufferLocation(register, fixed_address))
        offsets.append(0 if is_fixed else start + location.offset)
    registers: list[int] = []
    if launch.unaligned_launches:
        registers = list(dict.fromkeys(n for n, _ in buffers if n is not None))

    @cache
    def unaligned_run() -> Callable[..., None]:
        bound_launches = [
            bind_block_launch(replacement, buffers, device)
            for replacement in launch.unaligned_launches
        ]

        def run_unaligned(*addresses: int) -> None:
            address_in = dict(zip(registers, addresses, strict=True))
            for bound_launch, used_registers in bound_launches:
                bound_launch(*[address_in[register] for register in used_registers])

        return run_unaligned

    argument_buffers += [BufferLocation(register, 0) for register in registers]
    # All but the workspace are checked. Without replacements, the library reports errors.
    checked = len(launch.locations) - 1 if launch.unaligned_launches else 0
    count = len(argument_buffers)
    call = AlignedCall(run, checked, _ALIGNMENT_BYTES, offsets, count, unaligned_run)
    return call, argument_buffers


# A function of the addresses of left, right and out, and optionally of another stream.
Multiply = Callable[..., None]


def bind_gemm_launch(launch: GemmLaunch, device: GpuDevice) -> Multiply | None:
    """Bind calls of a GEMM: a function of the addresses of arrays 0, 1 and 2 of the sequence.

    None if the device has no such GEMM.
    """
    call = device.api.gemm(launch.gemm, device.compute)
    if call is None:
        return None
    if len(launch.offsets) == 1:
        first = launch.offsets[0]
        if first.left == 0 and first.right == 0:  # the output of the first call has offset 0
            return call

    def multiply(left: int, right: int, out: int, *stream: int) -> None:
        for left_offset, right_offset, out_offset in launch.offsets:
            call(left + left_offset, right + right_offset, out + out_offset, *stream)

    return multiply


class BoundCall(NamedTuple):
    """A launch or library call as a function of addresses.

    Attributes:
        stem: start of its name in the text of a program's driver.
        run: the function.
        buffers: locations of the buffers whose addresses are its arguments.
        out: index of the argument whose buffer it writes completely; None if not known.
    """

    stem: str
    run: Callable[..., Any]
    buffers: Sequence[BufferLocation]
    out: int | None


def bind_launch(
    launch: AnyLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall | None:
    """Bind any launch to buffers; None if the device has no library for it."""
    return _BINDINGS[type(launch)](launch, buffers, device)


def _bind_block(
    launch: BlockLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall:
    bound_launch, registers = bind_block_launch(launch, buffers, device)
    return BoundCall("launch", bound_launch, [BufferLocation(n, 0) for n in registers], None)


def _bind_user(
    launch: UserLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall:
    bound_launch, registers = bind_user_launch(launch, buffers, device)
    return BoundCall("launch", bound_launch, [BufferLocation(n, 0) for n in registers], None)


def _bind_library(
    launch: LibraryLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall:
    if isinstance(launch.planned_call.call, ConvolutionCall):
        return BoundCall("convolve", *bind_library_launch(launch, buffers, device), OUT)
    return BoundCall("attend", *bind_library_launch(launch, buffers, device), None)


def _bind_gemm(
    launch: GemmLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall | None:
    multiply = bind_gemm_launch(launch, device)
    return None if multiply is None else BoundCall("multiply", multiply, buffers, OUT)


def _bind_epilogue(
    launch: EpilogueLaunch, buffers: Sequence[BufferLocation], device: GpuDevice
) -> BoundCall | None:
    multiply = device.api.gemm_with(launch.gemm, launch.epilogue, device.compute)
    if multiply is None:
        return None
    absent = BufferLocation(None, 0)  # passed as the address 0
    argument_buffers = [
        absent if location is None else buffers[location.array] for location in launch.locations
    ]
    offsets = [0 if location is None else location.offset for location in launch.locations]

    def multiply_at_offsets(*addresses: int) -> None:
        shifted = [address + offset for address, offset in zip(addresses, offsets, strict=False)]
        multiply(*shifted, *addresses[len(offsets) :])

    run = multiply_at_offsets if any(offsets) else multiply
    # With an auxiliary buffer, it may have a second output.
    out = OUT if launch.locations[-1] is None else None
    return BoundCall("multiply", run, argument_buffers, out)


_BINDINGS: dict[type[Any], Callable[..., BoundCall | None]] = {
    BlockLaunch: _bind_block,
    LibraryLaunch: _bind_library,
    GemmLaunch: _bind_gemm,
    EpilogueLaunch: _bind_epilogue,
    UserLaunch: _bind_user,
}
