"""Select the width of a GPU kernel's index arithmetic: 32 bits if the sizes of its calls allow it.

A 64-bit index takes two registers, and operations on it take two instructions. With 32 bits, all of
these must be below 2**31 in absolute value:

    offsets    for each operand, the sum of |stride| * extent, which bounds all partial sums
    counters   of points, and of the elements that a group's threads share; a counter exceeds its
               end by up to four steps, as loops are unrolled to keep loads in flight

Always computed in 64 bits are byte addresses, offsets that the kernel computes or loads (gathers,
scatters), offsets of complex components, and values of INDEX operands. Strides of INDEX operands
are 32-bit parameters. Offsets past the end may wrap, as no access uses them.

Tests: tests/targets/cuda/test_gpu_index_bits.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gpuflow.compiler.lowering.argument_block import extents_of, stride_sources_of
from gpuflow.compiler.lowering.lower import KernelCall
from gpuflow.kir.nodes import Kernel, Mode, memoized
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, POINT_ROLES

_MAX_INT32 = 2**31 - 1  # of int32
# The most by which a counter exceeds its end: four steps of the grid, of at most 4,096 threads for
# each of some 1,000 multiprocessors.
MAX_COUNTER_OVERSHOOT = 1 << 24


def with_narrowest_indices(kernel: Kernel, calls: Sequence[KernelCall]) -> Kernel:
    """Return the kernel with 32-bit index arithmetic, if that suffices for all of its calls.

    Args:
        kernel: the kernel of the calls, with 64-bit index arithmetic, or its segmented variant.
        calls: the calls of one launch.
    """
    if all(map(fits_32_bits, calls)):
        return memoized(kernel, _with_32_bits)
    return kernel


def fits_32_bits(call: KernelCall) -> bool:
    """Whether all index arithmetic of a call provably stays within int32."""
    kernel, extents = call.kernel, extents_of(call)
    for roles in (POINT_ROLES, MEMBER_ROLES):
        count = prod([max(extents[axis.name], 1) for axis in kernel.axes if axis.role in roles])
        if count > _MAX_INT32 - MAX_COUNTER_OVERSHOOT:
            return False
    stride_sources = stride_sources_of(kernel)
    for operand in kernel.operands:
        strides = [abs(stride_sources[operand.name, axis].value_in(call.slots)) for axis in extents]
        if operand.mode is Mode.INDEX:
            max_offset = max(strides, default=0)  # offsets are computed in 64 bits, not strides
        else:
            pairs = zip(strides, extents.values(), strict=True)
            max_offset = sum([stride * max(size, 1) for stride, size in pairs])
        if max_offset > _MAX_INT32:
            return False
    return True


def _with_32_bits(kernel: Kernel) -> Kernel:
    return replace(kernel, index_bits=32)
