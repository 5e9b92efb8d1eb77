"""The width of a GPU kernel's index arithmetic: 32 bits if the sizes of its calls allow it.

A 64-bit index takes two registers, and each step with it two instructions. With 32 bits, computed
values must be below 2**31 in absolute value:

    offsets    of each operand, and every partial sum: the sum of |stride| * extent has to fit
    counters   of points, and of what the members of a point share; a thread goes one step past the
               end before it sees that, and looks ahead for loads in flight

Always computed in 64 bits: addresses in bytes, offsets that the kernel itself computes or reads
(gathers, scatters), components of complex numbers, and values of INDEX operands; of those only the
strides are 32-bit parameters. Offsets past the end that no access uses may wrap.
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
# The most that a counter exceeds its end: four steps of all threads of a grid, of which there are
# at most 4,096 for each of some 1,000 multiprocessors.
MOST_AHEAD = 1 << 24


def at_fitting_width(kernel: Kernel, calls: Sequence[KernelCall]) -> Kernel:
    """The kernel with 32-bit index arithmetic, if that is enough for all of its calls.

    Args:
        kernel: with 64-bit index arithmetic, or its segmented variant.
        calls: that one launch makes.
    """
    if all(map(fits_32_bits, calls)):
        return remembered(kernel, _with_32_bits)
    return kernel


def fits_32_bits(call: KernelCall) -> bool:
    """Whether all index arithmetic of a call certainly stays within int32."""
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
