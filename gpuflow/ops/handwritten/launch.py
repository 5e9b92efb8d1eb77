"""Handwritten kernels: their operands and launches.

A rule of ``Library.what`` builds such a kernel. Sizes and strides are arguments, as for any other
kernel, so one kernel serves all shapes.

Tests: tests/ops/test_scan_kernels.py, tests/ops/test_scatter_shares.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuflow.core.aval import storage_name
from gpuflow.core.blocks import Launch
from gpuflow.kir.builder import Builder
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Role, Stride, arguments
from gpuflow.kir.scalar import COMPUTE_DTYPES, NARROW_DTYPES

Numbers = Mapping[str, int]


def fits_kernels(dtype: Any) -> bool:
    """Whether kernels hold single elements of ``dtype``."""
    return storage_name(dtype) in (*COMPUTE_DTYPES, *NARROW_DTYPES)


def array(name: str, dtype: str, mode: Mode, axes: int) -> Operand:
    """An operand in memory, with a stride along each axis."""
    return Operand(name, dtype, mode, (Stride.ANY,) * axes)


def number(name: str, axes: int) -> Operand:
    """An int64 scalar of the launch."""
    return Operand(name, "int64", Mode.SCALAR, (Stride.ZERO,) * axes)


def parallel_axes(count: int) -> tuple[Axis, ...]:
    """Axes ``i0``, ``i1``, ... of independent points."""
    return tuple(Axis(f"i{k}", Role.PARALLEL) for k in range(count))


def worker_axes(count: int) -> tuple[Axis, ...]:
    """Axes of independent points of which each is a separate loop, so that there are few."""
    *outer, last = parallel_axes(count)
    return (*outer, replace(last, is_short=True))


def builder_of(operands: Sequence[Operand], axes: Sequence[Axis]) -> Builder:
    """Return a builder for the body of a kernel with these operands."""
    return Builder({operand.name: operand for operand in operands}, [axis.name for axis in axes])


def launch(
    kernel: Kernel,
    arrays: Mapping[str, tuple[int | None, int]],
    extents: Sequence[int],
    strides: Mapping[str, Sequence[int]],
    numbers: Numbers,
    points: int,
) -> Launch:
    """Build a launch of a kernel.

    Args:
        kernel: the kernel to run.
        arrays: by operand the index of its array and a byte offset; or None and an address.
            Operands that the kernel does not have are ignored.
        extents: of the axes.
        strides: by operand the stride along each axis, in elements.
        numbers: the values of scalar operands.
        points: number of elements that it visits.
    """
    positions = {axis.name: k for k, axis in enumerate(kernel.axes)}
    slots = []
    for argument in arguments(kernel):
        if argument.kind == "extent":
            slots.append(extents[positions[argument.axis]])
        elif argument.kind == "stride":
            slots.append(strides[argument.operand][positions[argument.axis]])
        elif argument.kind == "scalar":
            slots.append(numbers[argument.operand])
        elif argument.kind == "base":
            slots.append(0)
        else:
            slots.append(arrays[argument.operand][1])
    array_indices = [arrays.get(operand.name, (None, 0))[0] for operand in kernel.operands]
    return Launch(kernel, tuple(slots), tuple(array_indices), extents[0], points)
