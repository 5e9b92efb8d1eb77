"""Bind the kernel calls of a plan to launches: grid, variant of the kernel, and parameters.

A launch is a function of addresses. The plan's driver (its straight-line Python) has a register for
each address that differs between calls. A launch takes the addresses in the registers that it uses,
in order of first use; an address index counts them. Before it runs, the launch writes the addresses
into its argument slots, or into a segment table in device memory. Argument slots belong to one
launch, so only one thread at a time may run it.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_gpu_columns.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.compiler.lowering.argument_block import extents_of, stride_sources_of
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.cached_builds import CudaKernel, compile_cuda
from gpuflow.targets.cuda.codegen.schedules.index_bits import with_narrowest_indices
from gpuflow.targets.cuda.codegen.schedules.launch_config import (
    full_blocks,
    launch_shape,
    leaves_processors_idle,
    may_launch,
    scratch_bytes,
)
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

Register = int  # index of a variable of the plan's driver, which holds an address
Run = Callable[[], None]  # enqueues a launch with the current contents of its argument slots


class BufferLocation(NamedTuple):
    """The address of a buffer.

    Attributes:
        register: register of the driver; None: the address is fixed.
        offset: byte offset to add to the address in the register, or the fixed address.
    """

    register: Register | None
    offset: int


class SlotSource(NamedTuple):
    """The value of an argument slot.

    Attributes:
        address_index: index of an address of the launch; None: the value is fixed.
        value: byte offset to add to that address, or the fixed value.
    """

    address_index: int | None
    value: int


class Fixup(NamedTuple):
    """An argument slot of an address: ``slots[slot] = addresses[address_index] + offset``.

    Attributes:
        slot: index of the slot.
        address_index: index of an address of the launch.
        offset: byte offset.
    """

    slot: int
    address_index: int
    offset: int


class AlignmentCondition(NamedTuple):
    """A condition on an address: ``(addresses[address_index] + offset) % alignment == 0``.

    Attributes:
        address_index: index of an address of the launch.
        offset: byte offset.
        alignment: number of bytes.
    """

    address_index: int
    offset: int
    alignment: int


class BoundLaunch:
    """One launch as a function of addresses: ``launch(*addresses)``.

    Args:
        run: launches the variant for aligned addresses.
        unaligned_run: returns the launch of the variant for any address, which may build it.
        slots: argument slots that both variants read, or contents of the segment table.
        fixups: the slots that are addresses of a call.
        conditions: conditions for ``run``. If one fails, the other variant runs.
        upload: copies ``slots`` to the segment table in device memory; None: there is no table.
    """

    def __init__(
        self,
        run: Run,
        unaligned_run: Callable[[], Run],
        slots: array[int],
        fixups: Sequence[Fixup],
        conditions: Sequence[AlignmentCondition] = (),
        upload: Run | None = None,
    ) -> None:
        self._run, self._unaligned_run = run, unaligned_run
        self._slots, self._fixups, self._conditions = slots, fixups, conditions
        self._upload, self._is_uploaded = upload, False

    def text(self, constant: Callable[[str, Any], str], addresses: Sequence[str]) -> list[str]:
        """Unrolled statements that do the same as a call, for little more than CUDA's own cost.

        Args:
            constant: adds a value to the namespace of the statements, and returns its name. Its
                first argument is the start of that name.
            addresses: an expression of each address.
        """
        if self._upload is not None:
            return [f"{constant('launch', self)}({', '.join(addresses)})"]
        slots = constant("words", self._slots)
        updates = [
            f"{slots}[{slot}] = {_sum(addresses[index], offset)}"
            for slot, index, offset in self._fixups
        ]
        run = constant("run", self._run)
        sums_by_alignment: dict[int, list[str]] = {}
        for index, offset, alignment in self._conditions:
            sums_by_alignment.setdefault(alignment, []).append(_sum(addresses[index], offset))
        if sums_by_alignment:
            remainders = [
                f"({' | '.join(sums)}) % {alignment}"
                for alignment, sums in sums_by_alignment.items()
            ]
            unaligned = constant("plain", self._unaligned_run)
            run = f"({unaligned}() if {' or '.join(remainders)} else {run})"
        return [*updates, f"{run}()"]

    def __call__(self, *addresses: int) -> None:
        self.bind_addresses(*addresses)()

    def bind_addresses(self, *addresses: int) -> Run:
        """Write addresses to slots or table, and return the launch to call.

        It reads the slots when it is called, so it must be called or recorded before the next
        ``bind_addresses``.
        """
        slots = self._slots
        if self._upload is not None:
            self.fill_table(*addresses)
        else:
            for slot, index, offset in self._fixups:
                slots[slot] = addresses[index] + offset
        for index, offset, alignment in self._conditions:
            if (addresses[index] + offset) % alignment:
                return self._unaligned_run()
        return self._run

    @property
    def has_table(self) -> bool:
        """Whether addresses are in a segment table in device memory, not in parameters."""
        return self._upload is not None

    def fill_table(self, *addresses: int) -> None:
        """Update the segment table in device memory if an address has changed."""
        assert self._upload is not None
        slots, changed = self._slots, not self._is_uploaded
        for slot, index, offset in self._fixups:
            value = addresses[index] + offset
            if slots[slot] != value:
                slots[slot], changed = value, True
        if changed:
            self._upload()
            self._is_uploaded = True


class AlignedCall:
    """A library call as a function of addresses; our launches replace it at unaligned addresses.

    Arguments of a call: first those of ``run``, then those of ``unaligned_run``, then optionally a
    stream.

    Args:
        run: the library's function of addresses, and optionally a stream.
        checked: number of leading arguments that must be aligned.
        alignment: number of bytes that their sums with ``offsets`` must be multiples of.
        offsets: byte offset to add to each argument of ``run``.
        count: number of all arguments without the stream.
        unaligned_run: returns the function for unaligned addresses, which takes no stream.
    """

    def __init__(
        self,
        run: Callable[..., None],
        checked: int,
        alignment: int,
        offsets: Sequence[int],
        count: int,
        unaligned_run: Callable[[], Callable[..., None]],
    ) -> None:
        self._run, self._checked, self._alignment = run, checked, alignment
        self._offsets, self._count, self._unaligned_run = offsets, count, unaligned_run

    def __call__(self, *arguments: int) -> None:
        if not self.is_aligned(arguments):
            self._unaligned_run()(*arguments[len(self._offsets) : self._count])
            return
        pairs = zip(arguments, self._offsets, strict=False)
        shifted = [address + offset for address, offset in pairs]
        self._run(*shifted, *arguments[self._count :])

    def is_aligned(self, arguments: Sequence[int]) -> bool:
        """Whether the library supports these addresses; otherwise the call cannot be recorded."""
        pairs = zip(arguments[: self._checked], self._offsets, strict=False)
        return not any((address + offset) % self._alignment for address, offset in pairs)


def _sum(address: str, offset: int) -> str:
    return f"{address} + {offset}" if offset else address


class LaunchRegisters:
    """The registers of the driver that one launch uses, in order of first use.

    Args:
        locate: gives the location of a buffer of the plan, by its number.

    Attributes:
        address_indices: address index of the launch by register.
    """

    def __init__(self, locate: Callable[[int], BufferLocation]) -> None:
        self._locate = locate
        self.address_indices: dict[Register, int] = {}

    def slot_sources(self, call: KernelCall) -> list[SlotSource]:
        """The value of each argument slot of a call; adds the registers that it uses."""
        slot_sources = [SlotSource(None, value) for value in call.slots]
        for k, buffer in enumerate(call.buffers):
            if buffer == NO_BUFFER:
                continue
            register, offset = self._locate(buffer)
            index = None
            if register is not None:
                index = self.address_indices.setdefault(register, len(self.address_indices))
            slot_sources[k] = SlotSource(index, offset + call.slots[k])
        return slot_sources


def launched_kernel(step: KernelStep, calls: Sequence[KernelCall]) -> tuple[Kernel, bool]:
    """The kernel of one launch of a step, and whether its vector variant may be used.

    Sizes and strides of the calls determine the width of its index arithmetic. Launches of several
    calls use the segmented kernel, which has no vectors.
    """
    several = len(calls) > 1
    kernel = step.kernel if several else calls[0].kernel
    return with_narrowest_indices(kernel, calls), not several


def bind_kernel_launch(
    calls: Sequence[KernelCall], kernel: Kernel, registers: LaunchRegisters, device: GpuDevice
) -> BoundLaunch | None:
    """Bind the launch of a kernel call, or of several calls of a segmented kernel.

    Args:
        calls: the calls of one launch; several only if the step's kernel is segmented.
        kernel: their kernel, from ``launched_kernel``.
        registers: receives the registers that the launch uses.
        device: the device, which must be the current one.

    Returns:
        The launch; None if there is nothing to compute.
    """
    if len(calls) > 1:
        return _bind_segmented_launch(calls, kernel, registers, device)
    (call,) = calls
    slot_sources = registers.slot_sources(call)
    slots, fixups = array("q"), list[Fixup]()
    _add_slots(slot_sources, slots, fixups)
    sizes = extents_of(call)
    cuda_kernel = _build_kernel(kernel, device, vectorize=True)
    launch, conditions = cuda_kernel.source.launch, []
    if launch.vector_width > 1:
        conditions = _alignment_conditions(call, kernel, cuda_kernel, slot_sources, sizes)
        if conditions is None or leaves_processors_idle(launch, sizes, device.processors):
            cuda_kernel, conditions = _build_kernel(kernel, device, vectorize=False), []
    launch = cuda_kernel.source.launch
    grid, block = launch_shape(launch, sizes, device.processors)
    if grid[0] == 0:
        return None
    if launch.strategy == "full":
        slots.append(device.scratch(scratch_bytes(launch, grid)))
        slots.append(device.counters(1))

    @cache
    def unaligned_run() -> Run:
        scalar_kernel = _build_kernel(kernel, device, vectorize=False)
        shape = launch_shape(scalar_kernel.source.launch, sizes, device.processors)
        return device.prepare(scalar_kernel, *shape, slots)

    run = device.prepare(cuda_kernel, grid, block, slots)
    return BoundLaunch(run, unaligned_run, slots, fixups, conditions)


def _alignment_conditions(
    call: KernelCall,
    kernel: Kernel,
    cuda_kernel: CudaKernel,
    slot_sources: Sequence[SlotSource],
    sizes: Mapping[str, int],
) -> list[AlignmentCondition] | None:
    """Conditions for the vector variant (see ``BoundLaunch``); None if it can never run.

    Fixed addresses, sizes and strides are checked here, and other addresses at each launch.
    """
    launch = cuda_kernel.source.launch
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    slot_of = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    addresses: dict[str, int] = {}
    conditions: list[AlignmentCondition] = []
    for name in launch.vector_operands:
        address_index, value = slot_sources[slot_of[Argument("pointer", name)]]
        if address_index is None:
            addresses[name] = value
        else:
            addresses[name] = 0
            vector_bytes = launch.vector_width * itemsize[name]
            conditions.append(AlignmentCondition(address_index, value, vector_bytes))
    strides = {
        key: distance.value_in(call.slots) for key, distance in stride_sources_of(kernel).items()
    }
    return conditions if may_launch(launch, kernel, addresses, sizes, strides) else None


def _add_slots(slot_sources: Sequence[SlotSource], slots: array[int], fixups: list[Fixup]) -> None:
    """Append argument slots, and fixups of those that are addresses of a call."""
    for address_index, value in slot_sources:
        if address_index is not None:
            fixups.append(Fixup(len(slots), address_index, value))
        slots.append(0 if address_index is not None else value)


def _bind_segmented_launch(
    calls: Sequence[KernelCall], kernel: Kernel, registers: LaunchRegisters, device: GpuDevice
) -> BoundLaunch | None:
    """Bind the launch of a segmented kernel, whose parameter is the table of ``_segment_table``."""
    cuda_kernel = _build_kernel(kernel, device, vectorize=False)
    launch = cuda_kernel.source.launch
    is_full = launch.strategy == "full"
    lengths = [
        full_blocks(call.points, device.processors) if is_full else call.extent for call in calls
    ]
    shape = launch_shape(launch, {}, device.processors, sum(lengths))
    if shape[0][0] == 0:
        return None
    argument_blocks = [registers.slot_sources(call) for call in calls]
    count = _table_header_slots(len(calls)) + sum(map(len, argument_blocks))
    table = device.empty((count,), np.dtype(np.int64))
    slots, fixups = _segment_table(table.address, lengths, argument_blocks)
    assert len(slots) == count
    parameters = array("q", [table.address])
    if is_full:
        parameters.append(device.scratch(scratch_bytes(launch, shape[0])))
        parameters.append(device.counters(len(calls)))
    run = device.prepare(cuda_kernel, *shape, parameters)
    return BoundLaunch(run, lambda: run, slots, fixups, upload=partial(device.upload, table, slots))


def _table_header_slots(segments: int) -> int:
    """Slots of a segment table before its first argument block."""
    return 2 * segments + 2


def _segment_table(
    address: int, lengths: Sequence[int], argument_blocks: Sequence[Sequence[SlotSource]]
) -> tuple[array[int], list[Fixup]]:
    """The contents of a segment table, and fixups of its argument blocks.

        [segments, start_0, words_0, start_1, words_1, ..., total, argument blocks...]

    ``codegen/printing/segments`` reads this layout. ``start_k`` is the sum of the lengths before
    segment k, and ``words_k`` the address of its argument block.

    Args:
        address: address of the table in device memory.
        lengths: points of each segment, or thread blocks for full reductions.
        argument_blocks: values of the argument slots of each segment.
    """
    slots, fixups = array("q", [len(argument_blocks)]), list[Fixup]()
    start, slot = 0, _table_header_slots(len(argument_blocks))
    for length, argument_block in zip(lengths, argument_blocks, strict=True):
        slots.extend([start, address + 8 * slot])
        start, slot = start + length, slot + len(argument_block)
    slots.append(start)
    for argument_block in argument_blocks:
        _add_slots(argument_block, slots, fixups)
    return slots, fixups


def _build_kernel(kernel: Kernel, device: GpuDevice, vectorize: bool) -> CudaKernel:
    return compile_cuda(kernel, kernel_cache(), device.compute_capability, vectorize)
