"""The meaning of a kernel, in slow NumPy: every access is checked, nothing is clever.

``run`` takes arrays by operand name; ``interpret`` takes the arguments of a compiled kernel, and
memory by address.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuflow.kir import nodes
from gpuflow.kir.machine import Machine, Place, storage_dtype
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
        span: the part ``lo, hi`` of the first PARALLEL axis that runs; by default all of it.

    Raises:
        KernelError: an access leaves its array, or an OUT element is stored twice.
    """
    places, scalars = {}, {}
    for operand in kernel.operands:
        argument = arrays[operand.name]
        if operand.mode is Mode.INDEX:
            scalars[operand.name] = np.int64(argument)
        elif operand.mode is Mode.SCALAR:
            stored = np.asarray(argument).astype(storage_dtype(operand.dtype))
            scalars[operand.name] = stored.astype(compute_dtype(operand.dtype))
        else:
            places[operand.name] = _placed(kernel, operand, argument)
    sizes = {axis.name: axis.exact or extents[axis.name] for axis in kernel.axes}
    steps = _all_strides(kernel, strides or {})
    Machine(kernel, places, scalars, sizes, steps, span).run()


def interpret(
    kernel: Kernel,
    words: Sequence[int],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run ``kernel`` on an argument block.

    Args:
        kernel: a kernel that ``verify`` accepts.
        words: the arguments that ``nodes.arguments`` lists, as integers.
        memory: allocations by address, as contiguous arrays of any dtype.
        span: as in ``run``.

    Raises:
        KernelError: as in ``run``, or if a pointer is outside of all allocations.
    """
    listed = nodes.arguments(kernel)
    if len(listed) != len(words):
        raise KernelError(
            f"[{kernel.name}] the argument block must have {len(listed)} slots; got {len(words)}."
        )
    dtypes = {operand.name: operand.dtype for operand in kernel.operands}
    arrays: dict[str, Any] = {}
    extents: dict[str, int] = {}
    strides: dict[tuple[str, str], int] = {}
    for argument, word in zip(listed, words, strict=True):
        if argument.kind == "pointer":
            arrays[argument.operand] = _resolve(kernel, argument.operand, dtypes, word, memory)
        elif argument.kind == "base":
            arrays[argument.operand] = word
        elif argument.kind == "scalar":
            arrays[argument.operand] = scalar_from_word(dtypes[argument.operand], word)
        elif argument.kind == "extent":
            extents[argument.axis] = word
        else:
            strides[argument.operand, argument.axis] = word
    run(kernel, arrays, extents, strides, span)


def interpret_segments(
    kernel: Kernel,
    blocks: Sequence[Sequence[int]],
    memory: Mapping[int, Array],
    span: tuple[int, int] | None = None,
) -> None:
    """Run a segmented kernel over its argument blocks, laid end to end.

    Args:
        kernel: a segmented kernel.
        blocks: the arguments of each segment.
        memory: as in ``interpret``.
        span: the part of the concatenated range that runs; by default all of it. Each segment of a
            kernel that has no PARALLEL axis is one point of it.

    Raises:
        KernelError: as in ``interpret``.
    """
    (axis,) = kernel.axes
    listed = nodes.arguments(kernel)
    start = 0
    for words in blocks:
        extent = axis.exact if axis.role is nodes.Role.PARALLEL else 1
        if extent is None:
            extent = words[listed.index(nodes.Argument("extent", axis=axis.name))]
        lo, hi = (start, start + extent) if span is None else span
        inside = (max(lo - start, 0), min(hi - start, extent))
        if inside[0] < inside[1]:
            interpret(kernel, words, memory, inside)
        start += extent


def scalar_from_word(dtype: str, word: int) -> np.generic:
    """The SCALAR value with its bits in the low bytes of an 8-byte argument."""
    raw = struct.pack("<Q", word & 0xFFFFFFFFFFFFFFFF)[: storage_bytes(dtype)]
    return np.frombuffer(raw, storage_dtype(dtype))[0]


def scalar_to_word(dtype: str, value: Any) -> int:
    """The argument word that holds ``value`` of a storage dtype in its low bytes."""
    raw = np.asarray(value).astype(storage_dtype(dtype)).tobytes()
    return struct.unpack("<q", raw.ljust(8, b"\0"))[0]


def _placed(kernel: Kernel, operand: Operand, argument: Array | tuple[Array, int]) -> Place:
    array, first = argument if isinstance(argument, tuple) else (argument, 0)
    wanted = storage_dtype(operand.dtype)
    if array.dtype.itemsize != wanted.itemsize or not array.flags.c_contiguous:
        raise KernelError(
            f"[{kernel.name}] {operand.name} must be given as contiguous {operand.dtype}; "
            f"got {array.dtype}[{array.shape}] with strides {array.strides}."
        )
    return array.reshape(-1).view(wanted), first


def _resolve(
    kernel: Kernel, name: str, dtypes: Mapping[str, str], word: int, memory: Mapping[int, Array]
) -> Place:
    """The allocation that a pointer lies in, and its position there in elements."""
    itemsize = storage_bytes(dtypes[name])
    for address, array in memory.items():
        if address <= word <= address + array.nbytes and (word - address) % itemsize == 0:
            flat = array.reshape(-1).view(np.uint8)
            whole = flat[: len(flat) // itemsize * itemsize]
            return whole.view(storage_dtype(dtypes[name])), (word - address) // itemsize
    raise KernelError(f"[{kernel.name}] pointer {name} must point into memory; got {word:#x}.")


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
