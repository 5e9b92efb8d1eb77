"""Bind the kernel calls of a plan to launches: grid, variant of the kernel, and parameters.

A launch is a function of addresses. The plan's driver (its straight-line Python) has a register for
each address that differs between calls; a launch numbers those that it uses. Before it runs, the
launch writes the addresses into its argument slots, or into a segment table in device memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

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


class BoundLaunch:
    """One launch as a function of addresses: those in its registers, in the order of these.

    Registers are numbered by the launch: register k is argument k of a call.

    Args:
        run: launches the variant for aligned addresses.
        plain: returns the launch of the variant for any address, which may build it.
        slots: argument slots that ``run`` and ``plain`` read, or contents of the segment table.
        fixups: slots that are addresses: slot, register, byte offset.
        aligned: conditions for ``run``: register, byte offset, and the number of which their sum
            must be a multiple. If one fails, ``plain`` runs.
        upload: copies ``slots`` to the segment table in device memory; None: there is no table.
    """

    def __init__(
        self,
        run: Run,
        plain: Callable[[], Run],
        slots: array[int],
        fixups: Sequence[tuple[int, int, int]],
        aligned: Sequence[tuple[int, int, int]] = (),
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
        for register, offset, size in self._aligned:
            by_size.setdefault(size, []).append(_sum(addresses[register], offset))
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
        for register, offset, size in self._aligned:
            if (addresses[register] + offset) % size:
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

    def slots(self, call: KernelCall) -> list[tuple[int | None, int]]:
        """For each argument slot, (the launch's register, byte offset) or (None, value)."""
        slot_sources: list[tuple[int | None, int]] = [(None, number) for number in call.slots]
        for k, buffer in enumerate(call.buffers):
            if buffer == NO_BUFFER:
                continue
            register, offset = self._locate(buffer)
            launch_register = None
            if register is not None:
                launch_register = self.numbers.setdefault(register, len(self.numbers))
            slot_sources[k] = launch_register, offset + call.slots[k]
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
    slots = array("q", [0 if register is not None else number for register, number in slot_sources])
    fixups = [(k, r, offset) for k, (r, offset) in enumerate(slot_sources) if r is not None]
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
    slot_sources: Sequence[tuple[int | None, int]],
    sizes: Mapping[str, int],
) -> list[tuple[int, int, int]] | None:
    """Conditions for the vector variant (see ``BoundLaunch``); None if it can never run.

    Fixed addresses, sizes and strides are checked here, and registers at each launch.
    """
    launch = cuda_kernel.source.launch
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    slot_of = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    addresses: dict[str, int] = {}
    aligned: list[tuple[int, int, int]] = []
    for name in launch.vector_operands:
        register, number = slot_sources[slot_of[Argument("pointer", name)]]
        if register is None:
            addresses[name] = number
        else:
            addresses[name] = 0
            aligned.append((register, number, launch.width * itemsize[name]))
    strides = {key: distance.within(call.slots) for key, distance in distances_of(kernel).items()}
    return aligned if may_launch(launch, kernel, addresses, sizes, strides) else None


def _segments(
    calls: Sequence[KernelCall], kernel: Kernel, registers: Registers, device: GpuDevice
) -> BoundLaunch | None:
    cuda_kernel = _build(kernel, device, vectorize=False)
    launch = cuda_kernel.source.launch
    is_full = launch.strategy == "full"
    lengths = [
        full_blocks(call.points, device.processors) if is_full else call.extent for call in calls
    ]
    shape = launch_shape(launch, {}, device.processors, sum(lengths))
    if shape[0][0] == 0:
        return None
    head = 2 * len(calls) + 2
    blocks = [registers.slots(call) for call in calls]
    count = head + sum(map(len, blocks))
    table = device.empty((count,), np.dtype(np.int64))
    address = table.address
    slots = array("q", [len(calls)])
    start, offset = 0, head
    for length, block in zip(lengths, blocks, strict=True):
        slots.extend([start, address + 8 * offset])
        start, offset = start + length, offset + len(block)
    slots.append(start)
    fixups: list[tuple[int, int, int]] = []
    for register, number in [pair for block in blocks for pair in block]:
        if register is not None:
            fixups.append((len(slots), register, number))
        slots.append(0 if register is not None else number)
    parameters = array("q", [address])
    if is_full:
        parameters.append(device.scratch(scratch_bytes(launch, shape[0])))
        parameters.append(device.counters(len(calls)))
    run = device.prepare(cuda_kernel, *shape, parameters)
    return BoundLaunch(run, lambda: run, slots, fixups, upload=partial(device.upload, table, slots))


def _build(kernel: Kernel, device: GpuDevice, vectorize: bool) -> CudaKernel:
    return compile_cuda(kernel, kernel_cache(), device.compute_capability, vectorize)
