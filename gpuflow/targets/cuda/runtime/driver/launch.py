"""Bind the kernel calls of a plan to launches: grid, variant of the kernel, and parameters.

A launch is a function of addresses. The plan's driver (its straight-line Python) has a register for
each address that differs between calls; a launch numbers those that it uses. Before it runs, the
launch writes the addresses into its argument slots, or into a segment table in device memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.compiler.lowering.call_layout import distances_of, sizes_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.cached import CudaKernel, compile_cuda
from gpuflow.targets.cuda.codegen.schedules.index_bits import at_fitting_width
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    full_blocks,
    launch_shape,
    leaves_idle,
    may_launch,
    scratch_bytes,
)
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

Register = int
# The address of a buffer: (register of the driver, byte offset), or (None, fixed address).
BufferLocation = tuple[Register | None, int]
Run = Callable[[], None]


class SlotSource(NamedTuple):
    """The value of an argument slot.

    Attributes:
        register: register of the launch that holds an address; None: the value is fixed.
        value: byte offset to add to that address, or the fixed value.
    """

    register: int | None
    value: int


class Fixup(NamedTuple):
    """An argument slot that holds an address: ``slots[slot] = addresses[register] + offset``.

    Attributes:
        slot: index of the slot.
        register: register of the launch.
        offset: byte offset.
    """

    slot: int
    register: int
    offset: int


class AlignmentCondition(NamedTuple):
    """A condition on an address: ``(addresses[register] + offset) % alignment == 0``.

    Attributes:
        register: register of the launch.
        offset: byte offset.
        alignment: number of bytes.
    """

    register: int
    offset: int
    alignment: int


class BoundLaunch:
    """One launch as a function of addresses: those in its registers, in the order of these.

    Registers are numbered by the launch: register k is argument k of a call.

    Args:
        run: launches the variant for aligned addresses.
        plain: returns the launch of the variant for any address, which may build it.
        slots: argument slots that ``run`` and ``plain`` read, or contents of the segment table.
        fixups: the slots that are addresses in registers.
        aligned: conditions for ``run``. If one fails, ``plain`` runs.
        upload: copies ``slots`` to the segment table in device memory; None: there is no table.
    """

    def __init__(
        self,
        run: Run,
        plain: Callable[[], Run],
        slots: array[int],
        fixups: Sequence[Fixup],
        aligned: Sequence[AlignmentCondition] = (),
        upload: Run | None = None,
    ) -> None:
        self._run, self._plain = run, plain
        self._slots, self._fixups, self._aligned = slots, fixups, aligned
        self._upload, self._is_uploaded = upload, False

    def text(self, constant: Callable[[str, Any], str], addresses: Sequence[str]) -> list[str]:
        """Unrolled statements that do the same as a call, for little more than CUDA's own cost.

        Args:
            constant: adds a value to the namespace of the statements, and returns its name.
            addresses: an expression of the address in each register.
        """
        if self._upload is not None:
            return [f"{constant('launch', self)}({', '.join(addresses)})"]
        slots = constant("words", self._slots)
        updates = [
            f"{slots}[{slot}] = {_sum(addresses[register], offset)}"
            for slot, register, offset in self._fixups
        ]
        run = constant("run", self._run)
        by_size: dict[int, list[str]] = {}
        for register, offset, alignment in self._aligned:
            by_size.setdefault(alignment, []).append(_sum(addresses[register], offset))
        if by_size:
            rests = [f"({' | '.join(sums)}) % {size}" for size, sums in by_size.items()]
            run = f"({constant('plain', self._plain)}() if {' or '.join(rests)} else {run})"
        return [*updates, f"{run}()"]

    def __call__(self, *addresses: int) -> None:
        self.prepared(*addresses)()

    def prepared(self, *addresses: int) -> Run:
        """Write addresses to slots or table, and return the launch to call."""
        slots = self._slots
        if self._upload is not None:
            self.fill_table(*addresses)
        else:
            for slot, register, offset in self._fixups:
                slots[slot] = addresses[register] + offset
        for register, offset, alignment in self._aligned:
            if (addresses[register] + offset) % alignment:
                return self._plain()
        return self._run

    @property
    def has_table(self) -> bool:
        """Whether addresses are in a segment table in device memory, not in parameters."""
        return self._upload is not None

    def fill_table(self, *addresses: int) -> None:
        """Update the segment table in device memory if an address has changed."""
        assert self._upload is not None
        slots, changed = self._slots, not self._is_uploaded
        for slot, register, offset in self._fixups:
            value = addresses[register] + offset
            if slots[slot] != value:
                slots[slot], changed = value, True
        if changed:
            self._upload()
            self._is_uploaded = True


class AlignedCall:
    """A library call as a function of addresses; our launches replace it at unaligned addresses.

    Arguments of a call: first those of ``run``, then those of ``plain``, then optionally a stream.

    Args:
        run: the library's function of addresses, and optionally a stream.
        aligned: number of leading arguments that must be aligned.
        alignment: number of bytes that their sums with ``offsets`` must be multiples of.
        offsets: byte offset to add to each argument of ``run``.
        count: number of all arguments without the stream.
        plain: returns the function for unaligned addresses, which takes no stream.
    """

    def __init__(
        self,
        run: Callable[..., None],
        aligned: int,
        alignment: int,
        offsets: Sequence[int],
        count: int,
        plain: Callable[[], Callable[..., None]],
    ) -> None:
        self._run, self._aligned, self._alignment = run, aligned, alignment
        self._offsets, self._count, self._plain = offsets, count, plain

    def __call__(self, *arguments: int) -> None:
        if not self.is_aligned(arguments):
            self._plain()(*arguments[len(self._offsets) : self._count])
            return
        pairs = zip(arguments, self._offsets, strict=False)
        shifted = [address + offset for address, offset in pairs]
        self._run(*shifted, *arguments[self._count :])

    def is_aligned(self, arguments: Sequence[int]) -> bool:
        """Whether the library supports these addresses; otherwise the call cannot be recorded."""
        pairs = zip(arguments[: self._aligned], self._offsets, strict=False)
        return not any((address + offset) % self._alignment for address, offset in pairs)


def _sum(address: str, offset: int) -> str:
    return f"{address} + {offset}" if offset else address


class Registers:
    """Numbers the registers that one launch uses, in order of first use.

    Args:
        locate: gives the location of a buffer.

    Attributes:
        numbers: number in the launch by register of the driver.
    """

    def __init__(self, locate: Callable[[int], BufferLocation]) -> None:
        self._locate = locate
        self.numbers: dict[Register, int] = {}

    def slots(self, call: KernelCall) -> list[SlotSource]:
        """The value of each argument slot of a call."""
        slot_sources = [SlotSource(None, value) for value in call.slots]
        for k, buffer in enumerate(call.buffers):
            if buffer == NO_BUFFER:
                continue
            register, offset = self._locate(buffer)
            launch_register = None
            if register is not None:
                launch_register = self.numbers.setdefault(register, len(self.numbers))
            slot_sources[k] = SlotSource(launch_register, offset + call.slots[k])
        return slot_sources


def launched_kernel(step: KernelStep, calls: Sequence[KernelCall]) -> tuple[Kernel, bool]:
    """The kernel of one launch of a step, and whether its vector variant may be used.

    Sizes and strides of the calls determine the width of its index arithmetic. Launches of several
    calls use the segmented kernel, which has no vectors.
    """
    several = len(calls) > 1
    kernel = step.kernel if several else calls[0].kernel
    return at_fitting_width(kernel, calls), not several


def make_launch(
    calls: Sequence[KernelCall], kernel: Kernel, registers: Registers, device: GpuDevice
) -> BoundLaunch | None:
    """Bind the launch of a kernel call, or of several calls of a segmented kernel.

    Args:
        calls: the calls.
        kernel: their kernel, from ``launched_kernel``.
        registers: receives the registers that the launch uses.
        device: the device.

    Returns:
        The launch; None if there is nothing to compute.
    """
    if len(calls) > 1:
        return _segments(calls, kernel, registers, device)
    (call,) = calls
    slot_sources = registers.slots(call)
    slots, fixups = array("q"), list[Fixup]()
    _add_slots(slot_sources, slots, fixups)
    sizes = sizes_of(call)
    cuda_kernel = _build(kernel, device, vectorize=True)
    launch, aligned = cuda_kernel.source.launch, []
    if launch.width > 1:
        aligned = _alignment_conditions(call, kernel, cuda_kernel, slot_sources, sizes)
        if aligned is None or leaves_idle(launch, sizes, device.processors):
            cuda_kernel, aligned = _build(kernel, device, vectorize=False), []
    launch = cuda_kernel.source.launch
    grid, block = launch_shape(launch, sizes, device.processors)
    if grid[0] == 0:
        return None
    if launch.strategy == "full":
        slots.append(device.scratch(scratch_bytes(launch, grid)))
        slots.append(device.counters(1))

    @cache
    def plain() -> Run:
        other = _build(kernel, device, vectorize=False)
        shape = launch_shape(other.source.launch, sizes, device.processors)
        return device.prepare(other, *shape, slots)

    prepared = device.prepare(cuda_kernel, grid, block, slots)
    return BoundLaunch(prepared, plain, slots, fixups, aligned)


def _alignment_conditions(
    call: KernelCall,
    kernel: Kernel,
    cuda_kernel: CudaKernel,
    slot_sources: Sequence[SlotSource],
    sizes: Mapping[str, int],
) -> list[AlignmentCondition] | None:
    """Conditions for the vector variant (see ``BoundLaunch``); None if it can never run.

    Fixed addresses, sizes and strides are checked here, and registers at each launch.
    """
    launch = cuda_kernel.source.launch
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    slot_of = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    addresses: dict[str, int] = {}
    aligned: list[AlignmentCondition] = []
    for name in launch.vector_operands:
        register, value = slot_sources[slot_of[Argument("pointer", name)]]
        if register is None:
            addresses[name] = value
        else:
            addresses[name] = 0
            aligned.append(AlignmentCondition(register, value, launch.width * itemsize[name]))
    strides = {key: distance.within(call.slots) for key, distance in distances_of(kernel).items()}
    return aligned if may_launch(launch, kernel, addresses, sizes, strides) else None


def _add_slots(slot_sources: Sequence[SlotSource], slots: array[int], fixups: list[Fixup]) -> None:
    """Append argument slots, and fixups of those that hold addresses in registers."""
    for register, value in slot_sources:
        if register is not None:
            fixups.append(Fixup(len(slots), register, value))
        slots.append(0 if register is not None else value)


def _segments(
    calls: Sequence[KernelCall], kernel: Kernel, registers: Registers, device: GpuDevice
) -> BoundLaunch | None:
    """Bind the launch of a segmented kernel, whose parameter is the table of ``_segment_table``."""
    cuda_kernel = _build(kernel, device, vectorize=False)
    launch = cuda_kernel.source.launch
    is_full = launch.strategy == "full"
    lengths = [
        full_blocks(call.points, device.processors) if is_full else call.extent for call in calls
    ]
    shape = launch_shape(launch, {}, device.processors, sum(lengths))
    if shape[0][0] == 0:
        return None
    blocks = [registers.slots(call) for call in calls]
    count = _table_head(len(calls)) + sum(map(len, blocks))
    table = device.empty((count,), np.dtype(np.int64))
    slots, fixups = _segment_table(table.address, lengths, blocks)
    assert len(slots) == count
    parameters = array("q", [table.address])
    if is_full:
        parameters.append(device.scratch(scratch_bytes(launch, shape[0])))
        parameters.append(device.counters(len(calls)))
    run = device.prepare(cuda_kernel, *shape, parameters)
    return BoundLaunch(run, lambda: run, slots, fixups, upload=partial(device.upload, table, slots))


def _table_head(segments: int) -> int:
    """Slots of a segment table before its first argument block."""
    return 2 * segments + 2


def _segment_table(
    address: int, lengths: Sequence[int], blocks: Sequence[Sequence[SlotSource]]
) -> tuple[array[int], list[Fixup]]:
    """The contents of a segment table, and fixups of its argument blocks.

        [segments, start_0, words_0, start_1, words_1, ..., total, argument blocks...]

    ``codegen/printing/segments`` reads this layout. ``start_k`` is the sum of the lengths before
    segment k, and ``words_k`` the address of its argument block.

    Args:
        address: address of the table in device memory.
        lengths: points of each segment, or thread blocks for full reductions.
        blocks: argument block of each segment.
    """
    slots, fixups = array("q", [len(blocks)]), list[Fixup]()
    start, offset = 0, _table_head(len(blocks))
    for length, block in zip(lengths, blocks, strict=True):
        slots.extend([start, address + 8 * offset])
        start, offset = start + length, offset + len(block)
    slots.append(start)
    for block in blocks:
        _add_slots(block, slots, fixups)
    return slots, fixups


def _build(kernel: Kernel, device: GpuDevice, vectorize: bool) -> CudaKernel:
    return compile_cuda(kernel, kernel_cache(), device.compute_capability, vectorize)
