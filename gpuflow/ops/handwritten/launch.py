"""Kernels written by hand: their operands and launches.

Such a kernel is built by a rule of ``Library.what``. Sizes and strides are arguments of it, as
of any other kernel, so that one serves all shapes.
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


def is_held(dtype: Any) -> bool:
    """Whether kernels hold single elements of ``dtype``."""
    return storage_name(dtype) in (*COMPUTE_DTYPES, *NARROW_DTYPES)


def array(name: str, dtype: str, mode: Mode, axes: int) -> Operand:
    """An operand in memory, with a stride along each axis."""
    return Operand(name, dtype, mode, (Stride.ANY,) * axes)


def number(name: str, axes: int) -> Operand:
    """An int64 that a launch brings."""
    return Operand(name, "int64", Mode.SCALAR, (Stride.ZERO,) * axes)


def parallel_axes(count: int) -> tuple[Axis, ...]:
    """Axes ``i0``, ``i1``, ... of independent points."""
    return tuple(Axis(f"i{k}", Role.PARALLEL) for k in range(count))


def worker_axes(count: int) -> tuple[Axis, ...]:
    """The same if each point is a separate loop: few points, taken one by one."""
    *outer, last = parallel_axes(count)
    return (*outer, replace(last, is_short=True))


def builder_of(operands: Sequence[Operand], axes: Sequence[Axis]) -> Builder:
    """Return the function that writes the body of a kernel with these operands."""
    return Builder({operand.name: operand for operand in operands}, [axis.name for axis in axes])


def launch(
    kernel: Kernel,
    arrays: Mapping[str, tuple[int | None, int]],
    extents: Sequence[int],
    strides: Mapping[str, Sequence[int]],
    numbers: Numbers,
    points: int,
) -> Launch:
    """A launch of a kernel.

    Args:
        kernel: the kernel to run.
        arrays: by operand the number of its array and the bytes from that one's start; or None and
            an address. Operands that the kernel has not are left out.
        extents: of the axes.
        strides: by operand the elements between neighbours along each axis.
        numbers: the values of scalar operands.
        points: how many elements it visits.
    """
    places = {axis.name: k for k, axis in enumerate(kernel.axes)}
    words = []
    for argument in arguments(kernel):
        if argument.kind == "extent":
            words.append(extents[places[argument.axis]])
        elif argument.kind == "stride":
            words.append(strides[argument.operand][places[argument.axis]])
        elif argument.kind == "scalar":
            words.append(numbers[argument.operand])
        elif argument.kind == "base":
            words.append(0)
        else:
            words.append(arrays[argument.operand][1])
    array_numbers = [arrays.get(operand.name, (None, 0))[0] for operand in kernel.operands]
    return Launch(kernel, tuple(words), tuple(array_numbers), extents[0], points)
