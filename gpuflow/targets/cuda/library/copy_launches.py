"""Copies of a view to row-major memory: selects the kernel, its launch and scalar arguments.

    rows     kernels/copying.py, in the order of the target. A block has threads along a row and
             across rows, so that a thread divides once for all of its elements, and not at all in
             up to two dimensions
    tiles    kernels/transposing.py, if the innermost dimensions of source and target differ: a
             transposition through shared memory

Rows that are contiguous in the source, and aligned to a vector, are copied in vectors of up to 16
bytes. At unaligned addresses, the same launch copies element by element
(``unaligned_constants``). Indices have 32 bits if offsets allow it. The elements per thread, and
the sizes from which tiles are used, are guesses: nothing was measured on a GPU.

Tests: tests/kernels/test_kernel_strided_copies.py, tests/kernels/test_kernel_convolution.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import gpuflow.kernels.copying as copying
import gpuflow.kernels.transposing as transposing
from gpuflow.base.records import record
from gpuflow.base.util import row_major_strides
from gpuflow.core.views import View
from gpuflow.targets.cuda.codegen.handwritten import Scalar
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim

MAX_DIMS = 4  # dimensions of a collapsed view that kernels support
THREADS = 256
VECTOR_BYTES = 16
MIN_TILED_ELEMENTS = 16  # least size of both transposed dimensions for tiles
# Elements that a thread copies without vectors, in rows of at least LONG_ROW: so several loads are
# in flight at once.
ELEMENTS_PER_THREAD = 4
LONG_ROW = 32 * ELEMENTS_PER_THREAD
_MAX_ROWS = 1 << 15  # largest grid.y
_MAX_INDEX = 2**31 - 2**24  # largest counter or offset in 32 bits; leaves room for a last step


class StridedScalars(NamedTuple):
    """The scalar arguments of ``copy_strided``: its parameters after ``target``, in order.

    Attributes:
        bits: 2**bits threads of a block copy elements of one row.
        rows: number of rows; a row is the innermost dimension.
        size1, size2, size3: sizes of all dimensions but the outermost, padded to MAX_DIMS.
        step0, step1, step2, step3: strides of the source in elements.
    """

    bits: int
    rows: int
    size1: int
    size2: int
    size3: int
    step0: int
    step1: int
    step2: int
    step3: int


class TransposedScalars(NamedTuple):
    """The scalar arguments of ``copy_transposed``: its parameters after ``target``, in order.

    Dimension a is innermost in the source and b in the target; i and j are the others, i outermost.

    Attributes:
        size_j, size_a, size_b: sizes.
        step_i, step_j, step_b: strides of the source in elements.
        out_i, out_j, out_a: strides of the target in elements.
    """

    size_j: int
    size_a: int
    size_b: int
    step_i: int
    step_j: int
    step_b: int
    out_i: int
    out_j: int
    out_a: int


class TakeScalars(NamedTuple):
    """The scalar arguments of ``take``: its parameters after ``positions``, in order.

    Attributes:
        count: number of taken elements, with a thread for each.
        length: length of the source's rows.
        inner: product of the dimensions after that of the rows.
        taken: number of elements to take from each row.
    """

    count: int
    length: int
    inner: int
    taken: int


@record
class CopyLaunch:
    """One launch that copies a view.

    Attributes:
        kernel: a function of kernels/; its first two arguments are source and target.
        index_type: type of the scalar arguments, "int32" or "int64".
        scalars: the scalar arguments, which must be those of ``kernel``.
        grid, threads: grid, and threads per block.
        constants: constants of the build.
        unaligned_constants: constants of the build for arrays that are not aligned to 16 bytes;
            None if ``constants`` serve.
    """

    kernel: Callable[..., None]
    index_type: str
    scalars: StridedScalars | TransposedScalars
    grid: Dim
    threads: int
    constants: dict[str, Scalar]
    unaligned_constants: dict[str, Scalar] | None = None


class StridedDim(NamedTuple):
    """Size and stride of a dimension, in elements."""

    size: int
    stride: int


def collapsed(view: View) -> list[StridedDim]:
    """The dimensions of a view, outermost first, without its offset.

    Those of size 1 are dropped, and adjacent ones are merged where strides allow it.
    """
    dims: list[StridedDim] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1].stride == stride * size:
            dims[-1] = StridedDim(dims[-1].size * size, stride)
        else:
            dims.append(StridedDim(size, stride))
    return dims


def copy_launch(view: View, itemsize: int) -> CopyLaunch:
    """The launch that copies a view to row-major memory.

    Args:
        view: shape and strides; at most MAX_DIMS dimensions after ``collapsed``. The offset is
            ignored: the source argument of the kernel is the address of the first element.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
    """
    tiles = tiled_copy(view, itemsize)
    return _row_copy(collapsed(view), itemsize) if tiles is None else tiles


def index_reaching(most: int) -> tuple[str, int]:
    """The type for indices up to ``most``, and the constant LONG of a kernel that uses it.

    LONG is 1 for "int64", else 0.
    """
    is_long = most > _MAX_INDEX
    return ("int64" if is_long else "int32"), int(is_long)


def rows_grid(columns: int, rows: int) -> Dim:
    """A grid of ``columns`` blocks per row; the index of a row is ``z * grid.y + y``."""
    return (columns, min(rows, _MAX_ROWS), -(-rows // _MAX_ROWS))


def _row_copy(dims: Sequence[StridedDim], itemsize: int) -> CopyLaunch:
    """The launch of ``copy_strided`` for at most MAX_DIMS dimensions, outermost first."""
    dims = dims or [StridedDim(1, 1)]
    size = dims[-1].size
    rows = prod([dim.size for dim in dims[:-1]])
    each = _vector_length(dims, itemsize)
    vectors = each > 1
    if not vectors:
        each = ELEMENTS_PER_THREAD if size >= LONG_ROW and itemsize < VECTOR_BYTES else 1
    threads_of_row = -(-size // each)
    bits = min((threads_of_row - 1).bit_length(), THREADS.bit_length() - 1)
    grid = rows_grid(-(-threads_of_row >> bits), -(-rows // (THREADS >> bits)))
    padded = [StridedDim(1, 0)] * (MAX_DIMS - len(dims)) + list(dims)
    largest_index = max(rows * size, sum([dim.size * abs(dim.stride) for dim in dims]))
    index_type, is_long = index_reaching(largest_index)
    sizes = [dim.size for dim in padded[1:]]
    scalars = StridedScalars(bits, rows, *sizes, *[dim.stride for dim in padded])
    constants = {
        "SIZE": itemsize,
        "EACH": each,
        "VECTORS": int(vectors),
        "DIMS": max(len(dims), 2),
        "LONG": is_long,
    }
    unaligned_constants = {**constants, "VECTORS": 0} if vectors else None
    return CopyLaunch(
        copying.copy_strided, index_type, scalars, grid, THREADS, constants, unaligned_constants
    )


def _vector_length(dims: Sequence[StridedDim], itemsize: int) -> int:
    """Elements per vector of 4 to 16 bytes; 1 if rows cannot be copied in vectors."""
    row = dims[-1]
    if row.stride != 1:
        return 1
    row_strides = [dim.stride for dim in dims[:-1]]
    length = VECTOR_BYTES // itemsize
    while length * itemsize >= 4 and length > 1:
        if all(extent % length == 0 for extent in (row.size, *row_strides)):
            return length
        length //= 2
    return 1


class _CopyAxis(NamedTuple):
    """A dimension of a copy: its size, and its strides in source and target, in elements."""

    size: int
    step: int
    out: int


def tiled_copy(view: View, itemsize: int) -> CopyLaunch | None:
    """The tiled transposition of a view; None if ``copy_transposed`` does not apply.

    It applies to elements of at most 8 bytes in 2 to MAX_DIMS collapsed dimensions, of which not
    the last one is contiguous in the source.
    """
    if itemsize > 8:
        return None
    dims = collapsed(view)
    out_strides = row_major_strides([dim.size for dim in dims])
    axes = [_CopyAxis(*dim, out) for dim, out in zip(dims, out_strides, strict=True)]
    if not 2 <= len(axes) <= MAX_DIMS:
        return None
    *others, axis_b = axes
    axis_a = next((axis for axis in others if axis.step == 1), None)
    if (
        axis_b.step in (0, 1)
        or axis_a is None
        or min(axis_b.size, axis_a.size) < MIN_TILED_ELEMENTS
    ):
        return None
    others.remove(axis_a)
    axis_i, axis_j = [_CopyAxis(1, 0, 0)] * (2 - len(others)) + others
    tiles = prod(-(-axis.size // transposing.TILE) for axis in (axis_a, axis_b))
    scalars = TransposedScalars(
        size_j=axis_j.size,
        size_a=axis_a.size,
        size_b=axis_b.size,
        step_i=axis_i.step,
        step_j=axis_j.step,
        step_b=axis_b.step,
        out_i=axis_i.out,
        out_j=axis_j.out,
        out_a=axis_a.out,
    )
    constants = {"SIZE": itemsize, "PITCH": transposing.TILE + max(4 // itemsize, 1)}
    return CopyLaunch(
        transposing.copy_transposed,
        "int64",
        scalars,
        (axis_i.size * axis_j.size * tiles, 1, 1),
        transposing.THREADS,
        constants,
    )
