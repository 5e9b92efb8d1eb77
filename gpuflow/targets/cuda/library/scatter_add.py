"""Provider of scatter-add by atomic additions; sums of floats may differ between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpuflow.kernels.atomic_sums as kernels
from gpuflow.base import dtypes
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import AtomicSums
from gpuflow.core.views import contiguous
from gpuflow.targets.cuda.library.launch_sequence import At, LaunchSequence, on_rows

_INDEX = "int64"
_MOST_DIMS = 3  # dimensions of a window in the kernel; smaller windows are padded


def add_atomic_sums(
    sequence: LaunchSequence,
    sums: AtomicSums,
    sources: Sequence[At],
    outs: Sequence[At],
    kinds: Sequence[Any],
) -> bool:
    """Add the launches: copy or clear the array, then add all rows to it; always returns True.

    Args:
        sequence: receives the launches.
        sums: the operation.
        sources: locations of the array (unless it is fresh, and starts as zeros), of indices,
            validity and rows.
        outs: location of the result.
        kinds: dtypes of the operands.
    """
    dtype, (out,) = storage_dtype(kinds[-1]), outs
    components = 2 if dtypes.is_complex(dtype) else 1
    name = f"float{4 * dtype.itemsize}" if components == 2 else dtype.name
    pointer, constants = f"*{name}", {"COMPONENTS": components}
    if sums.is_fresh:
        count = components * sums.size
        sequence.for_each(kernels.clear, [(pointer, out), (_INDEX, count)], count, {})
    else:
        sequence.copy(sources[0], out, contiguous((sums.size,)), dtype)
    indices, is_valid, rows = sources[-3:]
    dims = [(1, 0)] * (_MOST_DIMS - len(sums.window)) + list(sums.window)
    width = 1
    for size, _ in dims:
        width *= size
    threads = sums.count * width
    sizes = [threads, width, dims[1][0], dims[2][0], *[step for _, step in dims]]
    arrays = [(pointer, rows), ("*int64", indices), ("*uint8", is_valid), (pointer, out)]
    sequence.for_each(
        kernels.add_rows, [*arrays, *[(_INDEX, n) for n in sizes]], threads, constants
    )
    return True


PROVIDER = on_rows("kernels of ours", add_atomic_sums)
