"""Reference interpreter of kernels, in slow NumPy: every access is checked.

``run`` takes arrays by operand name; ``interpret`` takes the arguments of a compiled kernel, and
memory by address.
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
        extents: the extent of each axis that is not exact.
        strides: by (operand, axis), the strides of class ANY, in elements.
        span: the range ``lo, hi`` of the first PARALLEL axis that runs; by default all of it.

    Raises:
        KernelError: an access leaves its array, or an OUT element is stored twice.
    """
    pointers, scalars = {}, {}
    for operand in kernel.operands:
        argument = arrays[operand.name]
        if operand.mode is Mode.INDEX:
            scalars[operand.name] = np.int64(argument)
        elif operand.mode is Mode.SCALAR:
            stored = np.asarray(argument).astype(storage_dtype(operand.dtype))
            scalars[operand.name] = stored.astype(compute_dtype(operand.dtype))
        else:
            pointers[operand.name] = _pointer(kernel, operand, argument)
    sizes = {axis.name: axis.exact or extents[axis.name] for axis in kernel.axes}
    steps = _all_strides(kernel, strides or {})
    Machine(kernel, pointers, scalars, sizes, steps, span).run()


def interpret(
    kernel: Kernel,
    slots: Sequence[int],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run ``kernel`` on an argument block.

    Args:
        kernel: a kernel that ``verify`` accepts.
        slots: the arguments that ``nodes.arguments`` lists, as integers.
        memory: allocations by address, as contiguous arrays of any dtype.
        span: as in ``run``.

    Raises:
        KernelError: as in ``run``, or if a pointer is outside all allocations.
    """
    listed = nodes.arguments(kernel)
    if len(listed) != len(slots):
        raise KernelError(
            f"[{kernel.name}] the argument block must have {len(listed)} slots; got {len(slots)}."
        )
    dtypes = {operand.name: operand.dtype for operand in kernel.operands}
    arrays: dict[str, Any] = {}
    extents: dict[str, int] = {}
    strides: dict[tuple[str, str], int] = {}
    for argument, slot in zip(listed, slots, strict=True):
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
    blocks: Sequence[Sequence[int]],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run a segmented kernel over its argument blocks, in order.

    Args:
        kernel: a segmented kernel.
        blocks: the arguments of each segment.
        memory: as in ``interpret``.
        span: the range of the concatenated segments that runs; by default all. Each segment of a
            kernel without a PARALLEL axis is one point of it.

    Raises:
        KernelError: as in ``interpret``.
    """
    (axis,) = kernel.axes
    listed = nodes.arguments(kernel)
    start = 0
    for slots in blocks:
        extent = axis.exact if axis.role is nodes.Role.PARALLEL else 1
        if extent is None:
            extent = slots[listed.index(nodes.Argument("extent", axis=axis.name))]
        lo, hi = (start, start + extent) if span is None else span
        own_span = (max(lo - start, 0), min(hi - start, extent))
        if own_span[0] < own_span[1]:
            interpret(kernel, slots, memory, own_span)
        start += extent


def scalar_from_slot(dtype: str, slot: int) -> np.generic:
    """The SCALAR value with its bits in the low bytes of an 8-byte argument."""
    raw = struct.pack("<Q", slot & 0xFFFFFFFFFFFFFFFF)[: storage_bytes(dtype)]
    return np.frombuffer(raw, storage_dtype(dtype))[0]


def scalar_to_slot(dtype: str, value: Any) -> int:
    """The argument slot that holds ``value`` of a storage dtype in its low bytes."""
    raw = np.asarray(value).astype(storage_dtype(dtype)).tobytes()
    return struct.unpack("<q", raw.ljust(8, b"\0"))[0]


def _pointer(kernel: Kernel, operand: Operand, argument: Array | tuple[Array, int]) -> Pointer:
    array, first = argument if isinstance(argument, tuple) else (argument, 0)
    expected = storage_dtype(operand.dtype)
    if array.dtype.itemsize != expected.itemsize or not array.flags.c_contiguous:
        raise KernelError(
            f"[{kernel.name}] {operand.name} must be given as contiguous {operand.dtype}; "
            f"got {array.dtype}[{array.shape}] with strides {array.strides}."
        )
    return array.reshape(-1).view(expected), first


def _resolve(
    kernel: Kernel, name: str, dtypes: Mapping[str, str], slot: int, memory: Mapping[int, Array]
) -> Pointer:
    """The allocation that a pointer points into, and its offset there in elements."""
    itemsize = storage_bytes(dtypes[name])
    for address, array in memory.items():
        if address <= slot <= address + array.nbytes and (slot - address) % itemsize == 0:
            flat = array.reshape(-1).view(np.uint8)
            whole = flat[: len(flat) // itemsize * itemsize]
            return whole.view(storage_dtype(dtypes[name])), (slot - address) // itemsize
    raise KernelError(f"[{kernel.name}] pointer {name} must point into memory; got {slot:#x}.")


def _all_strides(
    kernel: Kernel, strides: Mapping[tuple[str, str], int]
) -> dict[str, tuple[int, ...]]:
    """The stride of each operand on each kernel axis, in elements."""
    strides_of = {}
    for operand in kernel.operands:
        steps = []
        for axis, stride in zip(kernel.axes, operand.strides, strict=False):
            fixed = stride.number
            steps.append(strides[operand.name, axis.name] if fixed is None else fixed)
        strides_of[operand.name] = tuple(steps)
    return strides_of
