"""Select the width of a GPU kernel's index arithmetic: 32 bits if the sizes of its calls allow it.

A 64-bit index takes two registers, and operations on it take two instructions. With 32 bits, all of
these must be below 2**31 in absolute value:

    offsets    for each operand, the sum of |stride| * extent, which bounds all partial sums
    counters   of points, and of the elements that a group's threads share; a counter exceeds its
               end by up to four steps, as loops are unrolled to keep loads in flight

Always computed in 64 bits are byte addresses, offsets that the kernel computes or loads (gathers,
scatters), offsets of complex components, and values of INDEX operands. Strides of INDEX operands
are 32-bit parameters. Offsets past the end may wrap, as no access uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gpuflow.compiler.lowering.call_layout import distances_of, sizes_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Kernel, Mode, remembered
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, POINT_ROLES

_LARGEST = 2**31 - 1
# The most by which a counter exceeds its end: four steps of the grid, of at most 4,096 threads for
# each of some 1,000 multiprocessors.
MOST_AHEAD = 1 << 24


def at_fitting_width(kernel: Kernel, calls: Sequence[KernelCall]) -> Kernel:
    """Return the kernel with 32-bit index arithmetic, if that suffices for all of its calls.

    Args:
        kernel: the kernel of the calls, with 64-bit index arithmetic, or its segmented variant.
        calls: the calls of one launch.
    """
    if all(map(fits_32_bits, calls)):
        return remembered(kernel, _with_32_bits)
    return kernel


def fits_32_bits(call: KernelCall) -> bool:
    """Whether all index arithmetic of a call provably stays within int32."""
    kernel, sizes = call.kernel, sizes_of(call)
    for roles in (POINT_ROLES, MEMBER_ROLES):
        count = prod([max(sizes[axis.name], 1) for axis in kernel.axes if axis.role in roles])
        if count > _LARGEST - MOST_AHEAD:
            return False
    distances = distances_of(kernel)
    for operand in kernel.operands:
        steps = [abs(distances[operand.name, axis].within(call.slots)) for axis in sizes]
        if operand.mode is Mode.INDEX:
            reach = max(steps, default=0)
        else:
            reach = sum([n * max(size, 1) for n, size in zip(steps, sizes.values(), strict=True)])
        if reach > _LARGEST:
            return False
    return True


def _with_32_bits(kernel: Kernel) -> Kernel:
    return replace(kernel, index_bits=32)
