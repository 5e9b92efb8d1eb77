"""Launches of GPU kernels: the grid, the variant, and the words of the parameters."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from gpuflow.compiler.cuda_cache import CudaKernel, compile_cuda
from gpuflow.compiler.cuda_schedule import (
    Dim,
    full_blocks,
    launch_shape,
    may_launch,
    scratch_bytes,
)
from gpuflow.compiler.lower import KernelCall, Word
from gpuflow.compiler.orders import distances_of, sizes_of
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments
from gpuflow.runtime.gpu_device import GpuDevice
from gpuflow.runtime.kernels import kernel_cache

Register = int
# Where a buffer is: in a register of the driver, or at a fixed address; bytes from there.
Place = tuple[Register | None, int]


@dataclass(frozen=True)
class _Variant:
    """One build of a kernel with its grid and block."""

    function: Any
    grid: Dim
    block: Dim


class Launch:
    """One launch; called with the addresses in the registers that it uses, in their order.

    Args:
        device: that runs it.
        variant: what to run, unless an address is not aligned.
        plain: makes the variant for any address.
        words: the parameters.
        fixups: words that are an address: place, register and bytes from there.
        aligned: register, bytes from there, and what the sum must be a multiple of for ``variant``.
        table: words that are copied to the device's memory before, for segments: fixups are there.
    """

    def __init__(
        self, device: GpuDevice, variant: _Variant, plain: Callable[[], _Variant],
        words: array[int], fixups: Sequence[tuple[int, int, int]],
        aligned: Sequence[tuple[int, int, int]] = (), table: _Table | None = None,
    ) -> None:  # fmt: skip
        self._device, self._variant, self._plain = device, variant, plain
        self._words, self._fixups, self._aligned, self._table = words, fixups, aligned, table

    def __call__(self, *addresses: int) -> None:
        words = self._words if self._table is None else self._table.words
        for place, register, offset in self._fixups:
            words[place] = addresses[register] + offset
        if self._table is not None:
            self._device.upload(self._table.data, words)
        variant = self._variant
        for register, offset, size in self._aligned:
            if (addresses[register] + offset) % size:
                variant = self._plain()
                break
        self._device.launch(variant.function, variant.grid, variant.block, self._words)


@dataclass(frozen=True)
class _Table:
    """A table of segments and their argument blocks, as docs/kernel_ir.md lays it out."""

    words: array[int]
    data: Any


class Registers:
    """The registers of one launch: numbers of those of the driver, in order of first use."""

    def __init__(self, place: Callable[[Any], Place]) -> None:
        self._place = place
        self.numbers: dict[Register, int] = {}

    def word(self, word: Word) -> tuple[int | None, int]:
        """The launch's register and the bytes from there; or None and a number."""
        if word.buffer is None:
            return None, word.value
        register, offset = self._place(word.buffer)
        if register is None:
            return None, offset + word.value
        own = self.numbers.setdefault(register, len(self.numbers))
        return own, offset + word.value


def make_launch(
    calls: Sequence[KernelCall], kernel: Kernel, registers: Registers, device: GpuDevice
) -> Launch | None:
    """The launch of a kernel, or of several calls of a segmented one; None if nothing is to do."""
    if len(calls) > 1:
        return _segments(calls, kernel, registers, device)
    (call,) = calls
    found = [registers.word(word) for word in call.words]
    words = array("q", [0 if register is not None else number for register, number in found])
    fixups = [(k, r, offset) for k, (r, offset) in enumerate(found) if r is not None]
    sizes = sizes_of(call)
    made = _build(kernel, device, vectorize=True)
    launch, aligned = made.source.launch, []
    if launch.width > 1:
        aligned = _what_must_be_aligned(call, kernel, made, found, sizes)
        if aligned is None:
            made, aligned = _build(kernel, device, vectorize=False), []
    variant = _variant(made, device, sizes)
    if variant.grid[0] == 0:
        return None
    if launch.strategy == "full":
        words.append(device.scratch(scratch_bytes(launch, variant.grid)))
        words.append(device.counters(1))

    @cache
    def plain() -> _Variant:
        return _variant(_build(kernel, device, vectorize=False), device, sizes)

    return Launch(device, variant, plain, words, fixups, aligned)


def _variant(made: CudaKernel, device: GpuDevice, sizes: Mapping[str, int]) -> _Variant:
    grid, block = launch_shape(made.source.launch, sizes, device.processors)
    return _Variant(device.load(made), grid, block)


def _what_must_be_aligned(
    call: KernelCall, kernel: Kernel, made: CudaKernel,
    found: Sequence[tuple[int | None, int]], sizes: Mapping[str, int],
) -> list[tuple[int, int, int]] | None:  # fmt: skip
    """What has to hold of registers for the vector variant; None if it cannot run anyway."""
    launch = made.source.launch
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    place_of = {argument: place for place, argument in enumerate(arguments(kernel))}
    addresses: dict[str, int] = {}
    aligned: list[tuple[int, int, int]] = []
    for name in launch.vector_operands:
        register, number = found[place_of[Argument("pointer", name)]]
        if register is None:
            addresses[name] = number
        else:
            addresses[name] = 0
            aligned.append((register, number, launch.width * itemsize[name]))
    strides = {key: distance.within(call.words) for key, distance in distances_of(kernel).items()}
    return aligned if may_launch(launch, kernel, addresses, sizes, strides) else None


def _segments(
    calls: Sequence[KernelCall], kernel: Kernel, registers: Registers, device: GpuDevice
) -> Launch | None:
    made = _build(kernel, device, vectorize=False)
    launch = made.source.launch
    is_full = launch.strategy == "full"
    lengths = [
        full_blocks(call.points, device.processors) if is_full else call.extent for call in calls
    ]
    shape = launch_shape(launch, {}, device.processors, sum(lengths))
    if shape[0][0] == 0:
        return None
    head = 2 * len(calls) + 2
    blocks = [[registers.word(word) for word in call.words] for call in calls]
    count = head + sum(map(len, blocks))
    data = device.empty((count,), np.dtype(np.int64))
    address = device.address(data)
    words = array("q", [len(calls)])
    start, place = 0, head
    for length, block in zip(lengths, blocks, strict=True):
        words.extend([start, address + 8 * place])
        start, place = start + length, place + len(block)
    words.append(start)
    fixups: list[tuple[int, int, int]] = []
    for register, number in [pair for block in blocks for pair in block]:
        if register is not None:
            fixups.append((len(words), register, number))
        words.append(0 if register is not None else number)
    parameters = array("q", [address])
    if is_full:
        parameters.append(device.scratch(scratch_bytes(launch, shape[0])))
        parameters.append(device.counters(len(calls)))
    variant = _Variant(device.load(made), *shape)
    return Launch(device, variant, lambda: variant, parameters, fixups, (), _Table(words, data))


def _build(kernel: Kernel, device: GpuDevice, vectorize: bool) -> CudaKernel:
    return compile_cuda(kernel, kernel_cache(), device.compute_capability, vectorize)
