"""Strided vector loads by contiguous loads and shuffles, for strides of two to four elements.

Shuffles select the requested elements of the contiguous vectors:

    step 2, a vector of 4:    0 . 1 .    . 2 . 3    the last load ends with the last element,
                              0 . 1 .    2 . 3 .    or has a mask that does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import load
from gpuflow.targets.cpu.codegen.functions import Access
from gpuflow.targets.llvm.ir_values import Instruction, IRValue, counted, shuffle_mask, splat

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def load_strided(
    builder: ir.IRBuilder,
    address: Instruction,
    access: Access,
    width: int,
    step: int,
    active: IRValue | None,
) -> IRValue:
    """Load a vector of elements with stride ``step``. No memory after the last one is accessed.

    Args:
        builder: position of the load.
        address: address of the first element.
        access: the access of the load.
        width: number of elements of the vector.
        step: the stride, at least 2.
        active: number of elements that may be accessed; the others are undefined. None: all.
    """
    starts = [k * width for k in range(step)]
    if active is None:
        starts[-1] = step * (width - 1) + 1 - width
    loads = []
    for start in starts:
        mask = None
        if active is not None:
            mask = first_ones((active - 1) * step + (1 - start), width)
        at = builder.gep(address, [ir.Constant(ir.IntType(64), start)])
        loads.append(load(builder, at, access.storage, access.scopes, width, mask))
    return _select_strided(loads, starts, step)


def _select_strided(loads: Sequence[IRValue], starts: Sequence[int], step: int) -> IRValue:
    """Shuffle the elements 0, ``step``, 2 ``step`` and so on out of several vectors.

    Args:
        loads: contiguous vectors.
        starts: the index of each vector's first element.
        step: the stride.
    """
    selected, width = loads[0], loads[0].width
    for k in range(1, len(loads)):
        # Merges elements of vector k; those of later vectors are arbitrary until their step.
        indices = []
        for number in range(0, step * width, step):
            of = max(n for n in range(len(loads)) if starts[n] <= number)
            index = number // step if k > 1 else number
            indices.append(width + number - starts[k] if of == k else min(index, width - 1))
        mask = shuffle_mask(indices)
        selected = selected.like(
            selected.builder.shuffle_vector(selected.value, loads[k].value, mask)
        )
    return selected


def first_ones(count: IRValue, width: int) -> Instruction:
    """The mask of the first ``count`` elements of a vector."""
    return (splat(count, width) > count.like(counted(count.dtype, 0, width))).value
