"""Vectors of every second to fourth element in memory, from whole loads.

The loads are contiguous, and shuffles select the requested elements:

    step 2, a vector of 4:    0 . 1 .    . 2 . 3    the last load ends with the last element,
                              0 . 1 .    2 . 3 .    or has a mask that does
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import load
from gpuflow.targets.cpu.codegen.functions import Access
from gpuflow.targets.llvm.lanes import Instruction, Lane, counted, shuffle_mask, spread

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def load_strided(
    builder: ir.IRBuilder, place: Instruction, access: Access, width: int, step: int,
    there: Lane | None,
) -> Lane:  # fmt: skip
    """Load a vector of elements with stride ``step``.

    Args:
        place: the address of the first one.
        access: the access of the load.
        width: how many elements the vector has.
        step: at least 2.
        there: how many of them may be touched; the others are anything. None: all.
    """
    starts = [k * width for k in range(step)]
    if there is None:
        starts[-1] = step * (width - 1) + 1 - width
    loads = []
    for start in starts:
        mask = None
        if there is not None:
            mask = first_ones((there - 1) * step + (1 - start), width)
        at = builder.gep(place, [ir.Constant(ir.IntType(64), start)])
        loads.append(load(builder, at, access.storage, access.scopes, width, mask))
    return _taken(loads, starts, step)


def _taken(loads: Sequence[Lane], starts: Sequence[int], step: int) -> Lane:
    """The vector of every ``step``-th element of vectors.

    Args:
        loads: the vectors.
        starts: the number of each one's first element.
    """
    taken, width = loads[0], loads[0].width
    for k in range(1, len(loads)):
        # Where in a vector each element is; those of later vectors are not there yet.
        places = []
        for number in range(0, step * width, step):
            of = max(n for n in range(len(loads)) if starts[n] <= number)
            place = number // step if k > 1 else number
            places.append(width + number - starts[k] if of == k else min(place, width - 1))
        mask = shuffle_mask(places)
        taken = taken.like(taken.builder.shuffle_vector(taken.value, loads[k].value, mask))
    return taken


def first_ones(count: Lane, width: int) -> Instruction:
    """The mask of the first elements of a vector."""
    return (spread(count, width) > count.like(counted(count.dtype, 0, width))).value
