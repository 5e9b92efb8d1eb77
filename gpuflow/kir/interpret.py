"""Reference interpreter of kernels, in slow NumPy: every access is checked.

``run`` takes arrays by operand name; ``interpret`` takes the arguments of a compiled kernel, and
memory by address.

Tests: tests/kir/test_kir_interpret.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuflow.kir import nodes
from gpuflow.kir.machine import Machine, Pointer, storage_dtype
from gpuflow.kir.nodes import Kernel, Mode, Operand
from gpuflow.kir.rules import KernelError
from gpuflow.kir.scalar import compute_dtype, storage_bytes

Array = np.ndarray


def run(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    extents: Mapping[str, int],
    strides: Mapping[tuple[str, str], int] | None = None,
    span: tuple[int, int] | None = None,
) -> None:
    """Run ``kernel`` once; OUT and INOUT arrays are written in place.

    Args:
        kernel: a kernel that ``verify`` accepts.
        arrays: for each pointer operand a flat contiguous array, or a pair of one and the
            position of the first element; for INDEX operands the base; for SCALAR operands the
            value.
        extents: the extent of each axis that is not exact, 0 or more.
        strides: by (operand, axis), the strides of class ANY, in elements; they may be negative.
        span: the half-open range ``lo, hi`` of the first PARALLEL axis that runs; by default all.

    Raises:
        KernelError: an access leaves its array, or an OUT element is stored twice.
    """
    pointer_of, scalars = {}, {}
    for operand in kernel.operands:
        argument = arrays[operand.name]
        if operand.mode is Mode.INDEX:
            scalars[operand.name] = np.int64(argument)
        elif operand.mode is Mode.SCALAR:
            stored = np.asarray(argument).astype(storage_dtype(operand.dtype))
            scalars[operand.name] = stored.astype(compute_dtype(operand.dtype))
        else:
            pointer_of[operand.name] = _pointer(kernel, operand, argument)
    extent_of = {axis.name: axis.exact or extents[axis.name] for axis in kernel.axes}
    strides_of = _all_strides(kernel, strides or {})
    Machine(kernel, pointer_of, scalars, extent_of, strides_of, span).run()


def interpret(
    kernel: Kernel,
    slots: Sequence[int],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run ``kernel`` on an argument block.

    Args:
        kernel: a kernel that ``verify`` accepts.
        slots: the arguments that ``nodes.arguments`` lists, as integers; a scalar's bits are in the
            low bytes of its slot.
        memory: allocations by address in bytes, as contiguous arrays of any dtype.
        span: as in ``run``.

    Raises:
        KernelError: as in ``run``, or if a pointer is outside all allocations.
    """
    argument_slots = nodes.arguments(kernel)
    if len(slots) != len(argument_slots):
        raise KernelError(
            f"[{kernel.name}] the argument block must have {len(argument_slots)} slots; got "
            f"{len(slots)}."
        )
    dtypes = {operand.name: operand.dtype for operand in kernel.operands}
    arrays: dict[str, Any] = {}
    extents: dict[str, int] = {}
    strides: dict[tuple[str, str], int] = {}
    for argument, slot in zip(argument_slots, slots, strict=True):
        if argument.kind == "pointer":
            arrays[argument.operand] = _resolve(kernel, argument.operand, dtypes, slot, memory)
        elif argument.kind == "base":
            arrays[argument.operand] = slot
        elif argument.kind == "scalar":
            arrays[argument.operand] = scalar_from_slot(dtypes[argument.operand], slot)
        elif argument.kind == "extent":
            extents[argument.axis] = slot
        else:
            strides[argument.operand, argument.axis] = slot
    run(kernel, arrays, extents, strides, span)


def interpret_segments(
    kernel: Kernel,
    argument_blocks: Sequence[Sequence[int]],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run a segmented kernel over its argument blocks, in order.

    Args:
        kernel: a segmented kernel.
        argument_blocks: the arguments of each segment, as of ``interpret``.
        memory: as in ``interpret``.
        span: the range of the concatenated segments that runs; by default all. Each segment of a
            kernel without a PARALLEL axis is one point of it.

    Raises:
        KernelError: as in ``interpret``.
    """
    (axis,) = kernel.axes
    argument_slots = nodes.arguments(kernel)
    start = 0
    for slots in argument_blocks:
        extent = axis.exact if axis.role is nodes.Role.PARALLEL else 1
        if extent is None:
            extent = slots[argument_slots.index(nodes.Argument("extent", axis=axis.name))]
        lo, hi = (start, start + extent) if span is None else span
        segment_span = (max(lo - start, 0), min(hi - start, extent))
        if segment_span[0] < segment_span[1]:
            interpret(kernel, slots, memory, segment_span)
        start += extent


def scalar_from_slot(dtype: str, slot: int) -> np.generic:
    """The SCALAR value with its bits in the low bytes of an 8-byte argument."""
    stored_bytes = struct.pack("<Q", slot & 0xFFFFFFFFFFFFFFFF)[: storage_bytes(dtype)]
    return np.frombuffer(stored_bytes, storage_dtype(dtype))[0]


def scalar_to_slot(dtype: str, value: Any) -> int:
    """The argument slot that holds ``value`` of a storage dtype in its low bytes."""
    stored_bytes = np.asarray(value).astype(storage_dtype(dtype)).tobytes()
    return struct.unpack("<q", stored_bytes.ljust(8, b"\0"))[0]


def _pointer(kernel: Kernel, operand: Operand, argument: Array | tuple[Array, int]) -> Pointer:
    """The pointer for an argument of ``run``; raises KernelError for another dtype or layout."""
    array, first_element = argument if isinstance(argument, tuple) else (argument, 0)
    expected = storage_dtype(operand.dtype)
    if array.dtype.itemsize != expected.itemsize or not array.flags.c_contiguous:
        raise KernelError(
            f"[{kernel.name}] {operand.name} must be given as contiguous {operand.dtype}; "
            f"got {array.dtype}[{array.shape}] with strides {array.strides}."
        )
    return Pointer(array.reshape(-1).view(expected), first_element)


def _resolve(
    kernel: Kernel, name: str, dtypes: Mapping[str, str], slot: int, memory: Mapping[int, Array]
) -> Pointer:
    """The allocation that a pointer points into, and its offset there in elements."""
    itemsize = storage_bytes(dtypes[name])
    for address, array in memory.items():
        if address <= slot <= address + array.nbytes and (slot - address) % itemsize == 0:
            flat = array.reshape(-1).view(np.uint8)
            whole_elements = flat[: len(flat) // itemsize * itemsize]
            storage = whole_elements.view(storage_dtype(dtypes[name]))
            return Pointer(storage, (slot - address) // itemsize)
    raise KernelError(f"[{kernel.name}] pointer {name} must point into memory; got {slot:#x}.")


def _all_strides(
    kernel: Kernel, strides: Mapping[tuple[str, str], int]
) -> dict[str, tuple[int, ...]]:
    """The stride of each operand on each kernel axis, in elements."""
    strides_of = {}
    for operand in kernel.operands:
        axis_strides = []
        for axis, stride in zip(kernel.axes, operand.strides, strict=False):
            static = stride.static_value
            axis_strides.append(strides[operand.name, axis.name] if static is None else static)
        strides_of[operand.name] = tuple(axis_strides)
    return strides_of
