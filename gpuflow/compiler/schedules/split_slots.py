"""Argument blocks of the two kernels of a split reduction, from that of the original call.

Where each argument slot comes from is computed once for each kernel (``slot_maps_of``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.base.util import selector
from gpuflow.compiler.lowering.call_layout import Distance, distances_of
from gpuflow.compiler.schedules.split import CHUNK_AXIS, SplitKernels, split_kernel
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments, remembered


@record
class _SlotMap:
    """Where the argument slots of one of the two kernels come from.

    Attributes:
        buffers_of: selects the buffers from those of the original call and the scratch buffers.
        same: selects values of the original call; slots that are filled later get any value.
        extents: (slot, axis) of extents that differ from the original call, or are new.
        grouped: slots of the extent that is multiplied if rows are grouped.
        scratch: (slot, bytes of an element) of addresses in scratch memory.
        strides: (slot, axis) of strides in scratch memory.
        down: (slot, stride of rows, whether the slot is the stride of chunks).
        shifted: (slot, stride of rows, bytes of an element) of addresses and indices that start at
            the first row of a chunk.
    """

    buffers_of: Callable[[Sequence[int]], tuple[int, ...]]
    same: Callable[[Sequence[int]], tuple[int, ...]]
    extents: tuple[tuple[int, str], ...]
    grouped: tuple[int, ...]
    scratch: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, str], ...]
    down: tuple[tuple[int, Distance, bool], ...]
    shifted: tuple[tuple[int, Distance, int], ...]


@record
class SlotMaps:
    """The slot maps of both kernels, and the strides of the operands of the chunks.

    Attributes:
        partial, combine: the slot map of each kernel.
        layouts: for each operand of ``partial`` except scratch, its strides along rows and along
            the last retained axis.
        itemsizes: bytes of an element of each scratch operand.
    """

    partial: _SlotMap
    combine: _SlotMap
    layouts: tuple[tuple[Distance, Distance], ...]
    itemsizes: tuple[int, ...]


def slot_maps_of(kernel: Kernel) -> SlotMaps:
    """The slot maps of the two kernels of a reduction that can be split."""
    return remembered(kernel, _slot_maps_of)


def _slot_maps_of(kernel: Kernel) -> SlotMaps:
    split = split_kernel(kernel)
    assert split is not None  # it can be split
    slots = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    partial, scratch = split.partial, {operand.name for operand in split.scratch}
    distances = distances_of(kernel)
    last = split.retained[-1] if split.retained else split.rows
    layouts = [
        (distances[operand.name, split.rows], distances[operand.name, last])
        for operand in partial.operands
        if operand.name not in scratch
    ]
    return SlotMaps(
        _slot_map(partial, split, kernel, slots, distances),
        _slot_map(split.combine, split, kernel, slots, None),
        tuple(layouts),
        tuple([storage_dtype(operand.dtype).itemsize for operand in split.scratch]),
    )


def _slot_map(
    kernel: Kernel,
    split: SplitKernels,
    whole: Kernel,
    slots: Mapping[Argument, int],
    distances: Mapping[tuple[str, str], Distance] | None,
) -> _SlotMap:
    """The slot map of a kernel split from ``whole``; ``distances`` is None for ``combine``."""
    order = [operand.name for operand in (*whole.operands, *split.scratch)]
    buffers = [order.index(operand.name) for operand in kernel.operands]
    scratch_names = {operand.name for operand in split.scratch}
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    sources: list[int] = []
    extents, grouped, scratch, strides, down, shifted = [], [], [], [], [], []
    for slot, argument in enumerate(arguments(kernel)):
        name, axis = argument.operand, argument.axis
        sources.append(slots.get(argument, 0))
        if argument.kind == "extent":
            if axis in (CHUNK_AXIS, split.rows) or argument not in slots:
                extents.append((slot, axis))
            if axis in split.retained[:1]:
                grouped.append(slot)
        elif name in scratch_names and argument.kind == "stride":
            strides.append((slot, axis))
        elif name in scratch_names:
            scratch.append((slot, itemsize[name]))
        elif distances is None or argument.kind == "scalar":
            continue
        elif argument.kind != "stride":
            size = 1 if argument.kind == "base" else itemsize[name]
            shifted.append((slot, distances[name, split.rows], size))
        elif axis in (CHUNK_AXIS, split.rows):
            down.append((slot, distances[name, split.rows], axis == CHUNK_AXIS))
    return _SlotMap(
        selector(buffers),
        selector(sources),
        tuple(extents),
        tuple(grouped),
        tuple(scratch),
        tuple(strides),
        tuple(down),
        tuple(shifted),
    )


class SlotWriter(NamedTuple):
    """Writer of the argument blocks of one call.

    Attributes:
        split: the kernels.
        sizes: the extent of each axis of the original call.
        slots: the argument block of the original call.
        blocks: the slot maps of its kernel.
    """

    split: SplitKernels
    sizes: Mapping[str, int]
    slots: Sequence[int]
    blocks: SlotMaps

    def partial(
        self, count: int, rows: int, group: int, first_row: int, first_result: int
    ) -> tuple[int, ...]:
        """The arguments of ``partial`` for ``count`` chunks of ``rows`` rows.

        Args:
            count, rows: the chunks.
            group: count of adjacent rows that are treated as one.
            first_row: the first row of the first chunk.
            first_result: the index of its result in scratch memory.
        """
        block, whole = self.blocks.partial, self.slots
        extents = {**self.sizes, CHUNK_AXIS: count, self.split.rows: rows}
        values = self._start(block, extents, group, first_result)
        if group > 1:
            for slot in block.grouped:
                values[slot] *= group
        for slot, distance, is_chunk in block.down:
            step = distance.within(whole) * group
            values[slot] = step * rows if is_chunk else step
        if first_row:
            for slot, distance, size in block.shifted:
                values[slot] += first_row * distance.within(whole) * group * size
        return tuple(values)

    def combine(self, results: int) -> tuple[int, ...]:
        """The arguments of ``combine``, which reduces ``results`` partial results."""
        return tuple(self._start(self.blocks.combine, {**self.sizes, CHUNK_AXIS: results}, 1, 0))

    def _start(
        self, block: _SlotMap, extents: Mapping[str, int], group: int, first_result: int
    ) -> list[int]:
        """Arguments that both kernels have: originals, extents, and row-major scratch memory."""
        values = list(block.same(self.slots))
        for slot, axis in block.extents:
            values[slot] = extents[axis]
        for slot, size in block.scratch:
            values[slot] = first_result * size
        if block.strides:
            strides, step = {}, 1
            for axis in reversed(self.split.retained):
                strides[axis] = step
                step *= self.sizes[axis]
            strides[CHUNK_AXIS] = step * group
            for slot, axis in block.strides:
                values[slot] = strides[axis]
        return values
