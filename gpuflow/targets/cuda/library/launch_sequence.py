"""Launch sequences: a library call as launches of handwritten kernels and calls of libraries.

Providers of GPUs return them, and ``launch_binding`` binds them to a device. Launches refer to
arrays by index: first the operands, then the outputs, then the workspace. The workspace has all
intermediate results, such as row-major copies of operands. Launches run in order on one stream, so
each may read the results of earlier ones.

Tests: tests/kernels/test_kernel_strided_copies.py, tests/kernels/test_kernels_offline.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

import gpuflow.kernels.scan as scan
from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.aval import storage_dtype
from gpuflow.core.blocks import Block, UserKernel
from gpuflow.core.epilogues import Epilogue
from gpuflow.core.views import View
from gpuflow.targets.cuda.codegen.build import KernelArrayAccess
from gpuflow.targets.cuda.codegen.handwritten import LaunchBounds, Scalar
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.codegen.user_kernels import ParameterType
from gpuflow.targets.cuda.library.copy_launches import MAX_DIMS, collapsed, copy_launch
from gpuflow.targets.cuda.library.dnn.calls import PlannedCall
from gpuflow.targets.cuda.runtime.driver.api import Gemm

ALIGNMENT = 256  # bytes: offsets in the workspace are multiples of it
THREADS = 256  # per block, in launches with a thread for each element


class ArrayLocation(NamedTuple):
    """A location in an array of a launch sequence.

    Attributes:
        array: index of the array: operands, then outputs, then the workspace.
        offset: byte offset from the start of its buffer.
    """

    array: int
    offset: int = 0

    def plus(self, count: int) -> ArrayLocation:
        """The location ``count`` bytes further in the same array."""
        return ArrayLocation(self.array, self.offset + count)


@record
class BlockLaunch:
    """One launch of a handwritten kernel.

    Attributes:
        kernel: a function of kernels/.
        signature: one type per argument, in the notation of ``build_cuda``.
        constants: (name, value) of the build's constants, sorted by name.
        bounds: launch bounds of the build.
        grid, block: launch configuration.
        arguments: locations of arrays, and scalars by their bits, in the order of parameters.
        unaligned_constants: constants of the build that runs if an array is not aligned to 16
            bytes, sorted by name; None if ``constants`` serve for any address.
        smaller: the launch with smaller tiles, for devices on which this one spills registers or
            lacks shared memory; None: there is none.
    """

    kernel: Callable[..., None]
    signature: tuple[str, ...]
    constants: tuple[tuple[str, Scalar], ...]
    bounds: LaunchBounds
    grid: Dim
    block: Dim
    arguments: tuple[ArrayLocation | int, ...]
    unaligned_constants: tuple[tuple[str, Scalar], ...] | None = None
    smaller: BlockLaunch | None = None


@record
class UserLaunch:
    """One launch of a user's kernel.

    Attributes:
        kernel: the kernel.
        types: types of its arguments, as the user passes them.
        arguments: values of its argument slots, of which an array may take several.
        array_accesses: arrays that the kernel may access.
    """

    kernel: UserKernel
    types: tuple[ParameterType, ...]
    arguments: tuple[ArrayLocation | int, ...]
    array_accesses: tuple[KernelArrayAccess, ...]


# Why cuDNN is not used, on a target without it.
NOT_IN_USE = "it is not in use: GPUFLOW_CUDNN=0, or a simulated GPU"
OUT = 2  # index of the output among the buffers of a convolution or GEMM


@record
class LibraryLaunch:
    """A call of cuDNN.

    Attributes:
        planned_call: the call, with the library's plan.
        locations: locations of operands, outputs and workspace, in this order.
        unaligned_launches: launches that replace the call if an operand or output is not aligned to
            16 bytes, which cuDNN requires; if empty, the call raises an error.
    """

    planned_call: PlannedCall
    locations: tuple[ArrayLocation, ...]
    unaligned_launches: tuple[BlockLaunch, ...] = ()


class GemmOffsets(NamedTuple):
    """Byte offsets of one GEMM in the buffers of its left and right operand and its output."""

    left: int
    right: int
    out: int


@record
class GemmLaunch:
    """Calls of one GEMM with arrays 0 and 1 as operands and array 2 as output.

    Attributes:
        gemm: the operation of each call.
        offsets: offsets of each call in the three arrays.
    """

    gemm: Gemm
    offsets: tuple[GemmOffsets, ...]


@record
class EpilogueLaunch:
    """A GEMM with an epilogue.

    Attributes:
        gemm, epilogue: the operation.
        locations: left and right operand, output, bias and auxiliary buffer; None: not used.
    """

    gemm: Gemm
    epilogue: Epilogue
    locations: tuple[ArrayLocation | None, ...]


# An element of a launch sequence.
AnyLaunch = BlockLaunch | LibraryLaunch | GemmLaunch | EpilogueLaunch | UserLaunch


class LaunchSequence:
    """Launches in order, and the size of their workspace.

    Args:
        workspace: array index of the workspace: operands plus outputs.
        workspace_bytes: bytes of the workspace that are allocated already.
    """

    def __init__(self, workspace: int, workspace_bytes: int = 0) -> None:
        self.launches: list[AnyLaunch] = []
        self.workspace_bytes = workspace_bytes
        self._workspace = workspace

    def memory(self, count: int) -> ArrayLocation:
        """Allocate ``count`` bytes in the workspace, uninitialized; nothing is ever freed."""
        location = ArrayLocation(self._workspace, self.workspace_bytes)
        self.workspace_bytes += -(-max(count, 1) // ALIGNMENT) * ALIGNMENT
        return location

    def launch(
        self,
        kernel: Callable[..., None],
        arguments: Sequence[tuple[str, ArrayLocation | int]],
        grid: Dim,
        threads: int,
        constants: Mapping[str, Scalar],
        unaligned_constants: Mapping[str, Scalar] | None = None,
        smaller: BlockLaunch | None = None,
        resident: int = 1,
    ) -> None:
        """Add a launch of a handwritten kernel.

        Args:
            kernel: a function of kernels/.
            arguments: (type, location or scalar) in the order of the kernel's parameters.
            grid: blocks.
            threads: threads per block.
            constants, unaligned_constants, smaller: as in ``BlockLaunch``.
            resident: blocks of a multiprocessor that must have enough registers at once.
        """
        launch = make_block_launch(
            kernel, arguments, grid, threads, constants, unaligned_constants, smaller
        )
        if resident > 1:
            launch = replace(launch, bounds=(threads, resident))
        self.launches.append(launch)

    def unaligned_sequence(self) -> LaunchSequence:
        """An empty sequence for the ``unaligned`` argument of ``call``, in the same workspace.

        It may only receive launches of handwritten kernels. Until it is passed to ``call``, this
        sequence must not allocate memory.
        """
        return LaunchSequence(self._workspace, self.workspace_bytes)

    def call(
        self,
        planned_call: PlannedCall,
        locations: tuple[ArrayLocation, ...],
        unaligned: LaunchSequence | None = None,
    ) -> None:
        """Add a call of cuDNN.

        Args:
            planned_call: the call, with the library's plan.
            locations: locations of operands and outputs.
            unaligned: from ``unaligned_sequence``: launches with the same results, for unaligned
                arrays. None: unaligned arrays are an error.
        """
        workspace, launches = self.memory(planned_call.workspace_bytes), []
        if unaligned is not None:  # it shares the workspace, as only one of both runs
            self.workspace_bytes = max(self.workspace_bytes, unaligned.workspace_bytes)
            launches = [one for one in unaligned.launches if isinstance(one, BlockLaunch)]
        self.launches.append(LibraryLaunch(planned_call, (*locations, workspace), tuple(launches)))

    def multiply(self, gemm: GemmLaunch) -> None:
        """Add calls of a GEMM, which writes array 2 of the sequence."""
        self.launches.append(gemm)

    def for_each(
        self,
        kernel: Callable[..., None],
        arguments: Sequence[tuple[str, ArrayLocation | int]],
        count: int,
        constants: Mapping[str, Scalar],
    ) -> None:
        """Add a launch with a thread for each of ``count`` elements."""
        grid = (-(-count // THREADS), 1, 1)
        self.launch(kernel, arguments, grid, THREADS, constants)

    def row_major(
        self, location: ArrayLocation, view: View, dtype: np.dtype
    ) -> ArrayLocation | None:
        """The location of an operand if it is row-major, else of a copy, whose launch is added.

        Args:
            location: start of the operand's buffer; ``view.offset`` is added to it.
            view: layout of the operand.
            dtype: storage dtype of its elements.

        Returns:
            The location of its first element, or None if the view has more than MAX_DIMS
            dimensions after collapsing.
        """
        start = location.plus(view.offset * dtype.itemsize)
        if view.is_contiguous:
            return start
        if len(collapsed(view)) > MAX_DIMS:
            return None
        copy = self.memory(prod(view.shape) * dtype.itemsize)
        self.copy(start, copy, view, dtype)
        return copy

    def copy(
        self, start: ArrayLocation, target: ArrayLocation, view: View, dtype: np.dtype
    ) -> None:
        """Add a copy of a view to row-major memory.

        Args:
            start: location of the view's first element; ``view.offset`` is ignored.
            target: location of the copy.
            view: shape and strides, with at most MAX_DIMS dimensions after collapsing.
            dtype: dtype of the elements.
        """
        copied = copy_launch(view, dtype.itemsize)
        pointer = uint_pointer(dtype.itemsize)
        scalars = scalar_arguments(copied.kernel, copied.index_type, copied.scalars)
        self.launch(
            copied.kernel,
            [(pointer, start), (pointer, target), *scalars],
            copied.grid,
            copied.threads,
            copied.constants,
            copied.unaligned_constants,
        )


def scalar_arguments(kernel: Any, index_type: str, scalars: Any) -> list[tuple[str, int]]:
    """The scalar arguments of a kernel, which must be its last parameters.

    Args:
        kernel: a function of kernels/.
        index_type: type of the scalars, "int32" or "int64".
        scalars: a NamedTuple, whose fields must have the names and the order of the parameters.
    """
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    assert names[-len(scalars) :] == scalars._fields, (kernel, scalars)
    return [(index_type, value) for value in scalars]


def make_block_launch(
    kernel: Callable[..., None],
    arguments: Sequence[tuple[str, ArrayLocation | int]],
    grid: Dim,
    threads: int,
    constants: Mapping[str, Scalar],
    unaligned_constants: Mapping[str, Scalar] | None = None,
    smaller: BlockLaunch | None = None,
) -> BlockLaunch:
    """Create a launch; arguments are those of ``LaunchSequence.launch``."""
    types, values = zip(*arguments, strict=True)
    return BlockLaunch(
        kernel,
        types,
        tuple(sorted(constants.items())),
        threads,
        grid,
        (threads, 1, 1),
        values,
        None if unaligned_constants is None else tuple(sorted(unaligned_constants.items())),
        smaller,
    )


def uint_pointer(itemsize: int) -> str:
    """Type of a pointer to elements as unsigned integers; an element of 16 bytes is two of 8."""
    return f"*uint{8 * min(itemsize, 8)}"


# Adds the launches of an operation: (sequence, operation, locations of row-major operands,
# locations of outputs, dtypes of operands). Returns False if kernels do not support it; the
# sequence is then dropped.
Add = Callable[
    [LaunchSequence, Any, Sequence[ArrayLocation], Sequence[ArrayLocation], Sequence[Any]], bool
]


def on_rows(name: str, add: Add) -> Provider:
    """A provider for ``add``, which gets row-major operands: others are copied first."""

    def choose(block: Block, step: CallStep, target: Any) -> LaunchSequence | None:
        del target
        count = len(step.operands)
        sequence, operand_dtypes = LaunchSequence(count + len(step.outputs)), []
        sources: list[ArrayLocation] = []
        for index, operand in enumerate(step.operands):
            dtype = operand.aval.dtype
            location = sequence.row_major(
                ArrayLocation(index), operand.layout, storage_dtype(dtype)
            )
            if location is None:
                return None
            sources.append(location)
            operand_dtypes.append(dtype)
        outs = [ArrayLocation(index) for index in range(count, count + len(step.outputs))]
        return sequence if add(sequence, block, sources, outs, operand_dtypes) else None

    return Provider(name, choose)


class ScalarFormat(NamedTuple):
    """The format of scalars in kernels that are built for a KIND of kernels/scan.py.

    Attributes:
        kind: value of the constant ``KIND``.
        pointer: type of a pointer to the scalars, such as "*float32"; 16-bit floats are "*uint16".
    """

    kind: int
    pointer: str


_FLOATS = {
    "float32": ScalarFormat(scan.FLOAT32, "*float32"),
    "float64": ScalarFormat(scan.FLOAT64, "*float64"),
    "bfloat16": ScalarFormat(scan.BFLOAT16, "*uint16"),
    "float16": ScalarFormat(scan.FLOAT16, "*uint16"),
}
# Accumulator dtype by scan.KIND.
WIDE = {
    scan.FLOAT32: "float32",
    scan.FLOAT64: "float64",
    scan.BFLOAT16: "float32",
    scan.FLOAT16: "float32",
    scan.SIGNED: "int64",
    scan.UNSIGNED: "uint64",
}


@lru_cache(64)
def scalar_format(dtype: Any) -> ScalarFormat | None:
    """The format of a dtype's elements; None if kernels do not support it, such as complex64."""
    stored = storage_dtype(dtype)
    if stored.name in _FLOATS:
        return _FLOATS[stored.name]
    if stored == np.bool_:
        return ScalarFormat(scan.UNSIGNED, "*uint8")
    if isinstance(stored, np.dtype) and stored.kind in "iu" and stored.isbuiltin == 1:
        kind = scan.SIGNED if stored.kind == "i" else scan.UNSIGNED
        return ScalarFormat(kind, f"*{stored.name}")
    return None
