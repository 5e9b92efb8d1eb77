"""Strided vector loads by contiguous loads and shuffles, for strides of two to four elements.

Shuffles select the requested elements of the contiguous vectors:

    stride 2, a vector of 4:  0 . 1 .    . 2 . 3    the last load ends with the last element,
                              0 . 1 .    2 . 3 .    or has a mask that does

Tests: tests/targets/cpu/test_strided_vectors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.elements import load
from gpuflow.targets.cpu.codegen.functions import Access
from gpuflow.targets.llvm.ir_values import IRValue, LlvmValue, shuffle_mask, splat, step_vector

if TYPE_CHECKING:
    import llvmlite.ir as ir
else:
    ir = LazyModule("llvmlite.ir")


def load_strided(
    builder: ir.IRBuilder,
    address: LlvmValue,
    access: Access,
    width: int,
    stride: int,
    active_count: IRValue | None,
) -> IRValue:
    """Load a vector of elements with stride ``stride``. No memory after the last one is accessed.

    Args:
        builder: position of the load.
        address: address of the first element, a pointer to the storage dtype.
        access: storage dtype and alias scope of the elements.
        width: number of elements of the vector.
        stride: the stride in elements, at least 2.
        active_count: number of elements that may be accessed; the others are undefined. None: all.
    """
    starts = [k * width for k in range(stride)]
    if active_count is None:
        starts[-1] = stride * (width - 1) + 1 - width
    loads = []
    for start in starts:
        mask = None
        if active_count is not None:
            mask = first_elements_mask((active_count - 1) * stride + (1 - start), width)
        load_address = builder.gep(address, [ir.Constant(ir.IntType(64), start)])
        loads.append(load(builder, load_address, access.storage, access.alias_scope, width, mask))
    return _select_strided(loads, starts, stride)


def _select_strided(loads: Sequence[IRValue], starts: Sequence[int], stride: int) -> IRValue:
    """Shuffle the elements 0, ``stride``, 2 ``stride`` and so on out of several vectors.

    Args:
        loads: contiguous vectors of equal width, which contain all these elements.
        starts: the index of each vector's first element, in ascending order.
        stride: the stride in elements.
    """
    selected, width = loads[0], loads[0].width
    for k in range(1, len(loads)):
        # Merge the elements of vector k; those of later vectors are arbitrary until then.
        # The first shuffle also compacts the elements of vector 0; later ones find them in place.
        indices = []
        for element_index in range(0, stride * width, stride):
            source_load = max(n for n in range(len(loads)) if starts[n] <= element_index)
            selected_index = element_index // stride if k > 1 else element_index
            indices.append(
                width + element_index - starts[k]
                if source_load == k
                else min(selected_index, width - 1)
            )
        mask = shuffle_mask(indices)
        selected = selected.like(
            selected.builder.shuffle_vector(selected.value, loads[k].value, mask)
        )
    return selected


def first_elements_mask(count: IRValue, width: int) -> LlvmValue:
    """The mask of the first ``count`` elements of a vector; ``count`` is a signed scalar."""
    return (splat(count, width) > count.like(step_vector(count.dtype, 0, width))).value
