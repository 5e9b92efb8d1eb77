"""Blocks: library calls as records that providers of targets know.

``Library.what`` returns them. A block describes the operation, not its implementation;
targets/*/providers/ contain tables of implementations. See
docs/design/0028-targets-and-providers.md.

Tests: tests/ops/test_device_programs.py, tests/kernels/test_kernels_offline.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.core.epilogues import Epilogue
from gpuflow.kir.nodes import Kernel

Dims = tuple[int, ...]
MAX_WARP_ELEMENTS = 32  # rows or columns of a matrix that a warp of a GPU takes


def _fits_a_warp(dtype: Any, *sizes: int) -> bool:
    return dtype.name in ("float32", "float64") and all(0 < n <= MAX_WARP_ELEMENTS for n in sizes)


@record
class Product:
    """A stack of matrix products over dimensions of two operands.

    The result is row-major with dimensions batch, rows, columns. Sums are computed in float32 for
    floats of 16 bits, else in the wider of the dtypes.

    Attributes:
        left: the left operand's dimensions: batch, rows, depth.
        right: the right operand's dimensions: batch, depth, columns.
        one_dtype: operands and result have the dtype in which sums are computed.
        reduced: float32 and complex64 operands may be rounded to TF32, where that is faster.
        epilogue: of the result; a third operand is the vector that is added, or the forward pass's
            ``aux``; a second output ``aux``, or the sums.
    """

    left: tuple[Dims, Dims, Dims]
    right: tuple[Dims, Dims, Dims]
    one_dtype: bool = True
    reduced: bool = False
    epilogue: Epilogue | None = None


Roles = tuple[Dims, Dims, Dims, Dims]


@record
class Convolution:
    """A stack of convolutions over dimensions of two operands; the right one slides.

    Each position of the result sums ``left[position * stride + tap * right dilation - low]`` times
    ``right[tap]`` over taps and depth; the left operand is zero in dilation gaps and padding.

    Attributes:
        left, right: the operand's dimensions: batch, free, depth, space.
        out: the result's: batch, free in left, free in right, space. It is row-major.
        strides: steps of the right operand, in each dimension of space.
        padding: (low, high) zeros around the left operand; negative ones cut.
        left_dilation, right_dilation: dilations of the operands.
        reduced: as for ``Product``.
    """

    left: Roles
    right: Roles
    out: Roles
    strides: Dims
    padding: tuple[tuple[int, int], ...]
    left_dilation: Dims
    right_dilation: Dims
    reduced: bool = False


@record
class Triangular:
    """Systems with triangular matrices: op(A) X = B, or X op(A) = B; operands are A and B.

    Attributes:
        left_side: whether op(A) is on the left of X.
        lower: whether A is lower triangular.
        transpose, conjugate: the components of op.
        unit_diagonal: the diagonal is taken to be ones.
        matrices: the number of matrices A.
        size: rows and columns of each.
        sides: right-hand sides of each: columns of B, or rows if op(A) is on the right.
        dtype: of both.
    """

    left_side: bool
    lower: bool
    transpose: bool
    conjugate: bool
    unit_diagonal: bool
    matrices: int
    size: int
    sides: int
    dtype: Any

    @property
    def fits_a_warp(self) -> bool:
        """Whether each matrix is real, and so small that a warp of a GPU takes it."""
        return _fits_a_warp(self.dtype, self.size)


@record
class Launch:
    """One launch of a kernel that was written by hand.

    Attributes:
        kernel: the kernel to run.
        slots: its argument block; for an address the byte offset in its array.
        arrays: for each operand of the kernel the index of its array, or None: it has no memory.
            Arrays are the op's operands, then its outputs, then the workspace.
        extent: of the axis that threads share.
        points: the number of elements that it visits.
    """

    kernel: Kernel
    slots: tuple[int, ...]
    arrays: tuple[int | None, ...]
    extent: int
    points: int


@record
class Launches:
    """Launches that implement a library call, one after the other.

    Their results depend on the types of the operands, never on the number of threads.

    Attributes:
        launches: in order.
        workspace: the bytes of additional memory that they need.
        owners: objects that own memory whose addresses are arguments.
    """

    launches: tuple[Launch, ...]
    workspace: int = 0
    owners: tuple[Any, ...] = ()


# ``(views, out_avals, params) -> Launches``, or None; views are the layouts of the operands.
MakeLaunches = Callable[..., Launches | None]


@record
class Kernels:
    """A call without a library, implemented by handwritten kernels of KernelIR.

    Attributes:
        launches: ``(views, out_avals, params) -> Launches``, or None if they are not supported;
            views are the layouts of the operands.
    """

    launches: MakeLaunches


@record
class Fourier:
    """Discrete Fourier transforms over the last dimensions.

    Attributes:
        kind: "FFT", "IFFT", "RFFT" or "IRFFT".
        lengths: of the transformed dimensions.
    """

    kind: str
    lengths: Dims


@record
class Scan:
    """Running values of row-major rows, (outer, length, inner): each row along its length.

    ``combine`` is "add", "mul", "max", "min" or "logaddexp"; with ``reverse`` from the end.
    ``launches`` is as in ``Kernels``.
    """

    combine: str
    outer: int
    length: int
    inner: int
    reverse: bool
    launches: MakeLaunches | None = None


@record
class Sort:
    """Rows of row-major arrays, (outer, length, inner), in the order of some of them.

    Attributes:
        keys: the number of leading operands that are keys; the first one is primary.
        descending: keys are in descending order; equal ones keep their order.
        total_order: floats are ordered by sign and magnitude alone; else all nan are equal and
            come last, and zeros are equal.
        out_length: requested elements of each row. The outputs are those of the operands, and of
            their positions if there is one output more.
        launches: as in ``Kernels``.
    """

    outer: int
    length: int
    inner: int
    keys: int
    out_length: int
    descending: bool = False
    total_order: bool = False
    launches: MakeLaunches | None = None


@record
class Runs:
    """Rows, (count, width), combined if they belong to one index.

    Operands are indices, int64; whether each is valid, bool; and rows. Outputs are distinct valid
    indices, their validity, and the values to combine with the element at the index.

    Attributes:
        combine: as for ``Scan``, or None: the last row of an index wins.
        limit: exclusive bound of the indices.
    """

    combine: str | None
    count: int
    width: int
    limit: int


@record
class AtomicSums:
    """Rows added to an array in any order, by additions that do not disturb each other.

    Operands are the array, unless it is fresh; indices, int64, the elements at which windows start;
    whether each is valid, bool; and rows, a window each. The output is the array.

    Attributes:
        size: elements of the array.
        is_fresh: the array is zeros, and not an operand.
        count: rows.
        window: (size, elements from one to the next) of each dimension of a window, at most three.
    """

    size: int
    is_fresh: bool
    count: int
    window: tuple[tuple[int, int], ...]


@record
class Attention:
    """Fused attention, or its gradients; see kernels/attention.py.

    Operands are query, key and value; for gradients dout, sums and dots; then, where they are,
    bias, mask, query_lengths and key_lengths. Outputs are out and sums; or dquery, dkey and dvalue.

    Attributes:
        batch, queries, keys, heads, key_heads, size: of query and key.
        scale: of the products of queries and keys.
        causal: queries attend to keys up to their own position.
        window: counts of keys to the left and to the right of their position to which queries
            attend, or None.
        bias, mask: the shape, in which 1 broadcasts to any size, or None.
        query_lengths, key_lengths: whether these operands exist.
        gradient: whether it computes the gradients.
        reduced: as for ``Product``.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    size: int
    scale: float
    causal: bool
    window: tuple[int, int] | None
    bias: tuple[int, ...] | None
    mask: tuple[int, ...] | None
    query_lengths: bool
    key_lengths: bool
    gradient: bool
    reduced: bool = False


@record
class CudaText:
    """A text of CUDA C, and the name of the kernel in it, which has C linkage."""

    text: str
    name: str


@record
class UserKernel:
    """A kernel that a user wrote for GPUs, and its launch.

    Attributes:
        name: the name of the user's function.
        code: a Python function for Numba, or a CudaText.
        parameters: of the kernel: the index of an array, operands first and then outputs; or a
            NumPy scalar.
        begins: for each output the operand whose elements it holds when the kernel begins, or None.
        grid, block: blocks, and threads of each.
        shared_bytes: dynamic shared memory of each block.
    """

    name: str
    code: Callable[..., None] | CudaText
    parameters: tuple[int | np.generic, ...]
    begins: tuple[int | None, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


@record
class Decomposition:
    """Matrices, decomposed; each op has a separate class, with the op's operands and outputs.

    Attributes:
        count, rows, columns, dtype: of the operand.
        params: of the op.
    """

    count: int
    rows: int
    columns: int
    dtype: Any
    params: dict[str, Any]

    @property
    def fits_a_warp(self) -> bool:
        """Whether each matrix is real, and so small that a warp of a GPU takes it."""
        return _fits_a_warp(self.dtype, self.rows, self.columns)


@record
class Lu(Decomposition):
    """Outputs are factors, pivots and the permutation, both int32."""


@record
class Cholesky(Decomposition):
    """The output is the lower factor."""


@record
class Qr(Decomposition):
    """Outputs are Q and R; columns are not exchanged."""


@record
class Eigh(Decomposition):
    """Outputs are vectors, if requested, and values."""


@record
class Svd(Decomposition):
    """Outputs are values, and left and right vectors, if requested."""


@record
class Eig(Decomposition):
    """Outputs are values, and the requested of left and right vectors."""

    @property
    def fits_a_warp(self) -> bool:
        """Whether each matrix is so small that a warp of a GPU takes it; it may be complex."""
        return 0 < self.rows <= MAX_WARP_ELEMENTS


Block = (
    Product
    | Convolution
    | Triangular
    | Kernels
    | Fourier
    | Scan
    | Sort
    | Runs
    | AtomicSums
    | Attention
    | UserKernel
    | Decomposition
)
