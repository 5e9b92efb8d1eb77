"""Copies of a view to row-major memory: selects the kernel, its launch and scalar arguments.

    rows     kernels/copying.py, in the order of the target. A block has threads along a row and
             across rows, so that a thread divides once for all of its elements, and not at all in
             up to two dimensions
    tiles    kernels/transposing.py, if the innermost dimensions of source and target differ: a
             transposition through shared memory

Rows that are contiguous in the source, and aligned to a vector, are copied in vectors of up to 16
bytes. At unaligned addresses, the same launch copies element by element (``plain``). Indices have
32 bits if offsets allow it. The elements per thread, and the sizes from which tiles are used, are
guesses: nothing was measured on a GPU.
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

MOST_DIMS = 4  # dimensions of a collapsed view that kernels support
THREADS = 256
VECTOR_BYTES = 16
FEWEST_IN_TILES = 16  # least extent of both transposed dimensions for tiles
# Elements that a thread copies without vectors, in rows of at least LONG_ROW: so several loads are
# in flight at once.
SEVERAL = 4
LONG_ROW = 32 * SEVERAL
_MOST_ROWS = 1 << 15  # largest grid.y
_LARGEST = 2**31 - 2**24  # largest counter or offset in 32 bits; leaves room for a last step


class StridedScalars(NamedTuple):
    """The scalar arguments of ``copy_strided``: its parameters after ``target``, in order.

    Attributes:
        bits: 2**bits threads of a block copy elements of one row.
        rows: number of rows; a row is the innermost dimension.
        size1, size2, size3: sizes of all dimensions but the outermost, padded to MOST_DIMS.
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
class CopyForm:
    """One launch that copies a view.

    Attributes:
        kernel: a function of kernels/; its first two arguments are source and target.
        index: type of the scalar arguments.
        numbers: the scalar arguments, which must be those of ``kernel``.
        grid, threads: grid, and threads per block.
        constants: constants of the build.
        plain: constants for arrays that are not aligned to 16 bytes; None if ``constants`` serve.
    """

    kernel: Callable[..., None]
    index: str
    numbers: StridedScalars | TransposedScalars
    grid: Dim
    threads: int
    constants: dict[str, Scalar]
    plain: dict[str, Scalar] | None = None


def collapsed(view: View) -> list[tuple[int, int]]:
    """Size and stride of each dimension; adjacent ones are merged where strides allow it."""
    dims: list[tuple[int, int]] = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == 1:
            continue
        if dims and dims[-1][1] == stride * size:
            dims[-1] = (dims[-1][0] * size, stride)
        else:
            dims.append((size, stride))
    return dims


def copy_form(view: View, itemsize: int) -> CopyForm:
    """The launch that copies a view, which must have at most MOST_DIMS dimensions collapsed."""
    tiles = tiled_form(view, itemsize)
    return _rows_form(collapsed(view), itemsize) if tiles is None else tiles


def index_reaching(most: int) -> tuple[str, int]:
    """The type for indices up to ``most``, and the constant LONG of a kernel that uses it."""
    is_long = most > _LARGEST
    return ("int64" if is_long else "int32"), int(is_long)


def rows_grid(columns: int, rows: int) -> Dim:
    """A grid of ``columns`` blocks per row; the index of a row is ``z * grid.y + y``."""
    return (columns, min(rows, _MOST_ROWS), -(-rows // _MOST_ROWS))


def _rows_form(dims: Sequence[tuple[int, int]], itemsize: int) -> CopyForm:
    dims = dims or [(1, 1)]
    size = dims[-1][0]
    rows = prod([count for count, _ in dims[:-1]])
    each = _vector(dims, itemsize)
    vectors = each > 1
    if not vectors:
        each = SEVERAL if size >= LONG_ROW and itemsize < VECTOR_BYTES else 1
    units = -(-size // each)
    bits = min((units - 1).bit_length(), THREADS.bit_length() - 1)
    grid = rows_grid(-(-units >> bits), -(-rows // (THREADS >> bits)))
    padded = [(1, 0)] * (MOST_DIMS - len(dims)) + list(dims)
    reach = max(rows * size, sum([count * abs(stride) for count, stride in dims]))
    index, is_long = index_reaching(reach)
    sizes = [count for count, _ in padded[1:]]
    numbers = StridedScalars(bits, rows, *sizes, *[stride for _, stride in padded])
    constants = {
        "SIZE": itemsize,
        "EACH": each,
        "VECTORS": int(vectors),
        "DIMS": max(len(dims), 2),
        "LONG": is_long,
    }
    plain = {**constants, "VECTORS": 0} if vectors else None
    return CopyForm(copying.copy_strided, index, numbers, grid, THREADS, constants, plain)


def _vector(dims: Sequence[tuple[int, int]], itemsize: int) -> int:
    """Elements per vector of 4 to 16 bytes; 1 if rows cannot be copied in vectors."""
    size, step = dims[-1]
    if step != 1:
        return 1
    each = VECTOR_BYTES // itemsize
    while each * itemsize >= 4 and each > 1:
        if all(number % each == 0 for number in (size, *[stride for _, stride in dims[:-1]])):
            return each
        each //= 2
    return 1


def tiled_form(view: View, itemsize: int) -> CopyForm | None:
    """A tiled transposition; None if it does not apply."""
    if itemsize > 8:
        return None
    dims = collapsed(view)
    sizes = [size for size, _ in dims]
    axes = [
        (size, step, out) for (size, step), out in zip(dims, row_major_strides(sizes), strict=True)
    ]
    if not 2 <= len(axes) <= MOST_DIMS:
        return None
    *others, (size_b, step_b, _) = axes
    across = next((one for one in others if one[1] == 1), None)
    if step_b in (0, 1) or across is None or min(size_b, across[0]) < FEWEST_IN_TILES:
        return None
    others.remove(across)
    (size_i, step_i, out_i), (size_j, step_j, out_j) = [(1, 0, 0)] * (2 - len(others)) + others
    size_a, _, out_a = across
    blocks = size_i * size_j * prod(-(-size // transposing.TILE) for size in (size_a, size_b))
    numbers = TransposedScalars(
        size_j=size_j,
        size_a=size_a,
        size_b=size_b,
        step_i=step_i,
        step_j=step_j,
        step_b=step_b,
        out_i=out_i,
        out_j=out_j,
        out_a=out_a,
    )
    constants = {"SIZE": itemsize, "PITCH": transposing.TILE + max(4 // itemsize, 1)}
    return CopyForm(
        transposing.copy_transposed,
        "int64",
        numbers,
        (blocks, 1, 1),
        transposing.THREADS,
        constants,
    )
