"""Provider of scatter-add by atomic additions; sums of floats may differ between runs.

Tests: tests/kernels/test_kernel_atomic_sums.py, tests/kernels/test_kernels_offline.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import gpuflow.kernels.atomic_sums as kernels
from gpuflow.base import dtypes
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import AtomicSums
from gpuflow.core.views import contiguous
from gpuflow.targets.cuda.library.launch_sequence import (
    ArrayLocation,
    LaunchSequence,
    on_rows,
    scalar_arguments,
)

_INDEX = "int64"
_MAX_DIMS = 3  # dimensions of a window in the kernel; smaller windows are padded


class _RowScalars(NamedTuple):
    """The scalar arguments of ``add_rows``: its parameters after ``out``, in order.

    Attributes:
        threads: elements of all rows, with a thread for each.
        width: elements of a window.
        size1, size2: sizes of a window's dimensions but the outermost, padded to _MAX_DIMS.
        step0, step1, step2: strides of a window in the array, in elements.
    """

    threads: int
    width: int
    size1: int
    size2: int
    step0: int
    step1: int
    step2: int


def add_atomic_sums(
    sequence: LaunchSequence,
    sums: AtomicSums,
    sources: Sequence[ArrayLocation],
    outs: Sequence[ArrayLocation],
    operand_dtypes: Sequence[Any],
) -> bool:
    """Add the launches: copy or clear the array, then add all rows to it; always returns True.

    Args:
        sequence: receives the launches.
        sums: the operation.
        sources: locations of the array (unless it is fresh, and starts as zeros), of indices,
            validity and rows.
        outs: location of the result.
        operand_dtypes: dtypes of the operands; the last one is that of the sums.
    """
    dtype, (out,) = storage_dtype(operand_dtypes[-1]), outs
    components = 2 if dtypes.is_complex(dtype) else 1
    scalar_type = f"float{4 * dtype.itemsize}" if components == 2 else dtype.name
    pointer, constants = f"*{scalar_type}", {"COMPONENTS": components}
    if sums.is_fresh:
        count = components * sums.size
        sequence.for_each(kernels.clear, [(pointer, out), (_INDEX, count)], count, {})
    else:
        sequence.copy(sources[0], out, contiguous((sums.size,)), dtype)
    indices, is_valid, rows = sources[-3:]
    dims = [(1, 0)] * (_MAX_DIMS - len(sums.window)) + list(sums.window)
    width = prod(size for size, _ in dims)
    threads = sums.count * width
    scalars = _RowScalars(threads, width, dims[1][0], dims[2][0], *[step for _, step in dims])
    arrays = [(pointer, rows), ("*int64", indices), ("*uint8", is_valid), (pointer, out)]
    arguments = [*arrays, *scalar_arguments(kernels.add_rows, _INDEX, scalars)]
    sequence.for_each(kernels.add_rows, arguments, threads, constants)
    return True


PROVIDER = on_rows("kernels of ours", add_atomic_sums)
