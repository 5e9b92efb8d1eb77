"""Argument blocks of the two kernels of a split reduction, from that of the original call.

Where each argument slot comes from is computed once for each kernel (``slot_maps_of``). A "row" is
one index of the axis that is split. Strides are in elements, addresses in bytes.

Tests: tests/compiler/test_split_reductions.py, tests/targets/cuda/test_gpu_splits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.base.util import selector
from gpuflow.compiler.lowering.argument_block import StrideSource, stride_sources_of
from gpuflow.compiler.schedules.split_reduction import CHUNK_AXIS, SplitKernels, split_kernel
from gpuflow.kir.interpret import storage_dtype
from gpuflow.kir.nodes import Argument, Kernel, arguments, memoized


class _RowStride(NamedTuple):
    """The slot of a stride along rows, or along chunks.

    Attributes:
        slot: the argument slot.
        source: the stride along rows in the original call.
        is_chunk: whether the slot has the stride of chunks, which is that of all rows of a chunk.
    """

    slot: int
    source: StrideSource
    is_chunk: bool


class _ChunkOffset(NamedTuple):
    """The slot of an address or index that moves to the first row of the first chunk.

    Attributes:
        slot: the argument slot.
        source: the stride along rows in the original call.
        unit: bytes of an element for an address; 1 for an index.
    """

    slot: int
    source: StrideSource
    unit: int


@record
class _SlotMap:
    """Where the argument slots of one of the two kernels come from.

    Attributes:
        buffers_of: selects the buffers from those of the original call and the scratch buffers.
        copied: selects values of the original call; slots that are filled later get any value.
        changed_extents: (slot, axis) of extents that differ from the original call, or are new.
        grouped_extents: slots of the extent that is multiplied if rows are grouped.
        scratch_addresses: (slot, bytes of an element) of addresses in scratch memory.
        scratch_strides: (slot, axis) of strides in scratch memory.
        row_strides: strides along rows and chunks; none in ``combine``.
        chunk_offsets: addresses and indices that start at the first row of a chunk; none in
            ``combine``.
    """

    buffers_of: Callable[[Sequence[int]], tuple[int, ...]]
    copied: Callable[[Sequence[int]], tuple[int, ...]]
    changed_extents: tuple[tuple[int, str], ...]
    grouped_extents: tuple[int, ...]
    scratch_addresses: tuple[tuple[int, int], ...]
    scratch_strides: tuple[tuple[int, str], ...]
    row_strides: tuple[_RowStride, ...]
    chunk_offsets: tuple[_ChunkOffset, ...]


@record
class SlotMaps:
    """The slot maps of both kernels, and the strides of the operands of the chunks.

    Attributes:
        partial, combine: the slot map of each kernel.
        operand_strides: for each operand of ``partial`` except scratch, its strides along rows and
            along the last retained axis.
        itemsizes: bytes of an element of each scratch operand, in the order of
            ``SplitKernels.scratch``.
    """

    partial: _SlotMap
    combine: _SlotMap
    operand_strides: tuple[tuple[StrideSource, StrideSource], ...]
    itemsizes: tuple[int, ...]


def slot_maps_of(kernel: Kernel) -> SlotMaps:
    """The slot maps of the two kernels of a reduction.

    ``split_kernel`` must return kernels for it.
    """
    return memoized(kernel, _slot_maps_of)


def _slot_maps_of(kernel: Kernel) -> SlotMaps:
    split = split_kernel(kernel)
    assert split is not None  # it can be split
    slots = {argument: slot for slot, argument in enumerate(arguments(kernel))}
    partial, scratch_names = split.partial, {operand.name for operand in split.scratch}
    stride_sources = stride_sources_of(kernel)
    last = split.retained[-1] if split.retained else split.split_axis
    operand_strides = [
        (stride_sources[operand.name, split.split_axis], stride_sources[operand.name, last])
        for operand in partial.operands
        if operand.name not in scratch_names
    ]
    return SlotMaps(
        _slot_map(partial, split, kernel, slots, stride_sources),
        _slot_map(split.combine, split, kernel, slots, None),
        tuple(operand_strides),
        tuple([storage_dtype(operand.dtype).itemsize for operand in split.scratch]),
    )


def _slot_map(
    kernel: Kernel,
    split: SplitKernels,
    whole: Kernel,
    slots: Mapping[Argument, int],
    stride_sources: Mapping[tuple[str, str], StrideSource] | None,
) -> _SlotMap:
    """The slot map of one of the two kernels.

    Args:
        kernel: ``split.partial`` or ``split.combine``.
        split: both kernels.
        whole: the original kernel.
        slots: the argument slots of the original kernel.
        stride_sources: its strides; None for ``combine``.
    """
    order = [operand.name for operand in (*whole.operands, *split.scratch)]
    buffers = [order.index(operand.name) for operand in kernel.operands]
    scratch_names = {operand.name for operand in split.scratch}
    itemsize = {o.name: storage_dtype(o.dtype).itemsize for o in kernel.operands if o.dtype}
    source_slots: list[int] = []
    changed_extents, grouped_extents = [], []
    scratch_addresses, scratch_strides = [], []
    row_strides, chunk_offsets = [], []
    for slot, argument in enumerate(arguments(kernel)):
        name, axis = argument.operand, argument.axis
        source_slots.append(slots.get(argument, 0))
        if argument.kind == "extent":
            if axis in (CHUNK_AXIS, split.split_axis) or argument not in slots:
                changed_extents.append((slot, axis))
            if axis in split.retained[:1]:
                grouped_extents.append(slot)
        elif name in scratch_names and argument.kind == "stride":
            scratch_strides.append((slot, axis))
        elif name in scratch_names:
            scratch_addresses.append((slot, itemsize[name]))
        elif stride_sources is None or argument.kind == "scalar":
            continue
        elif argument.kind != "stride":
            unit = 1 if argument.kind == "base" else itemsize[name]
            source = stride_sources[name, split.split_axis]
            chunk_offsets.append(_ChunkOffset(slot, source, unit))
        elif axis in (CHUNK_AXIS, split.split_axis):
            source = stride_sources[name, split.split_axis]
            row_strides.append(_RowStride(slot, source, axis == CHUNK_AXIS))
    return _SlotMap(
        selector(buffers),
        selector(source_slots),
        tuple(changed_extents),
        tuple(grouped_extents),
        tuple(scratch_addresses),
        tuple(scratch_strides),
        tuple(row_strides),
        tuple(chunk_offsets),
    )


class SlotWriter(NamedTuple):
    """Writer of the argument blocks of one call.

    Attributes:
        split: the kernels.
        sizes: the extent of each axis of the original call.
        slots: the argument block of the original call.
        slot_maps: the slot maps of its kernel.
    """

    split: SplitKernels
    sizes: Mapping[str, int]
    slots: Sequence[int]
    slot_maps: SlotMaps

    def partial(
        self, count: int, rows: int, group: int, first_row: int, first_result: int
    ) -> tuple[int, ...]:
        """The arguments of ``partial`` for ``count`` chunks of ``rows`` rows.

        Args:
            count: count of chunks.
            rows: rows of a chunk, where a group counts as one row.
            group: count of adjacent rows that are treated as one.
            first_row: the first row of the first chunk, counted in groups.
            first_result: the index of its result in scratch memory.
        """
        slot_map, whole_slots = self.slot_maps.partial, self.slots
        extents = {**self.sizes, CHUNK_AXIS: count, self.split.split_axis: rows}
        values = self._start(slot_map, extents, group, first_result)
        if group > 1:
            for slot in slot_map.grouped_extents:
                values[slot] *= group
        for slot, source, is_chunk in slot_map.row_strides:
            stride = source.value_in(whole_slots) * group
            values[slot] = stride * rows if is_chunk else stride
        if first_row:
            for slot, source, unit in slot_map.chunk_offsets:
                values[slot] += first_row * source.value_in(whole_slots) * group * unit
        return tuple(values)

    def combine(self, results: int) -> tuple[int, ...]:
        """The arguments of ``combine``, which reduces ``results`` partial results."""
        return tuple(self._start(self.slot_maps.combine, {**self.sizes, CHUNK_AXIS: results}, 1, 0))

    def _start(
        self, slot_map: _SlotMap, extents: Mapping[str, int], group: int, first_result: int
    ) -> list[int]:
        """Arguments that both kernels have: originals, extents, and row-major scratch memory."""
        values = list(slot_map.copied(self.slots))
        for slot, axis in slot_map.changed_extents:
            values[slot] = extents[axis]
        for slot, itemsize in slot_map.scratch_addresses:
            values[slot] = first_result * itemsize
        if slot_map.scratch_strides:
            stride_of, stride = {}, 1
            for axis in reversed(self.split.retained):
                stride_of[axis] = stride
                stride *= self.sizes[axis]
            stride_of[CHUNK_AXIS] = stride * group
            for slot, axis in slot_map.scratch_strides:
                values[slot] = stride_of[axis]
        return values
