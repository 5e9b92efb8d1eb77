"""Launch sequences: a library call as launches of handwritten kernels and calls of libraries.

Providers of GPUs return them, and ``launch_binding`` binds them to a device. Launches refer to
arrays by index: first the operands, then the outputs, then the workspace. The workspace has all
intermediate results, such as row-major copies of operands.
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
from gpuflow.targets.cuda.codegen.build import Touched
from gpuflow.targets.cuda.codegen.handwritten import LaunchBounds, Scalar
from gpuflow.targets.cuda.codegen.schedules.launch_config import Dim
from gpuflow.targets.cuda.codegen.user_kernels import ParameterType
from gpuflow.targets.cuda.library.copy_forms import MOST_DIMS, collapsed, copy_form
from gpuflow.targets.cuda.library.dnn.calls import PlannedCall
from gpuflow.targets.cuda.runtime.driver.api import Gemm

ALIGNMENT = 256  # bytes, of memory in the workspace
THREADS = 256  # per block, in launches with a thread for each element


class At(NamedTuple):
    """A memory location: an array of the sequence, by index, and a byte offset in it."""

    array: int
    offset: int = 0

    def plus(self, count: int) -> At:
        """The location ``count`` bytes further."""
        return At(self.array, self.offset + count)


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
        plain: constants of the build for arrays that are not aligned to 16 bytes; None if
            ``constants`` serve for any address.
        smaller: the launch with smaller tiles, for devices on which this one spills registers or
            lacks shared memory; None: there is none.
    """

    kernel: Callable[..., None]
    signature: tuple[str, ...]
    constants: tuple[tuple[str, Scalar], ...]
    bounds: LaunchBounds
    grid: Dim
    block: Dim
    arguments: tuple[At | int, ...]
    plain: tuple[tuple[str, Scalar], ...] | None = None
    smaller: BlockLaunch | None = None


@record
class UserLaunch:
    """One launch of a user's kernel.

    Attributes:
        kernel: the kernel.
        types: types of its arguments, as the user passes them.
        arguments: values of its argument slots, of which an array may take several.
        touches: arrays that the kernel may access.
    """

    kernel: UserKernel
    types: tuple[ParameterType, ...]
    arguments: tuple[At | int, ...]
    touches: tuple[Touched, ...]


# Why cuDNN is not used, on a target without it.
NOT_IN_USE = "it is not in use: GPUFLOW_CUDNN=0, or a simulated GPU"
OUT = 2  # index of the output among the buffers of a convolution or GEMM


@record
class LibraryLaunch:
    """A call of cuDNN.

    Attributes:
        what: the call, for which the library has a plan.
        locations: locations of operands, outputs and workspace.
        plain: launches that replace the call if an operand or output is not aligned to 16 bytes,
            which cuDNN requires; if empty, the call raises an error.
    """

    what: PlannedCall
    locations: tuple[At, ...]
    plain: tuple[BlockLaunch, ...] = ()


@record
class GemmLaunch:
    """Calls of one GEMM with arrays 0 and 1 as operands and array 2 as output.

    Attributes:
        gemm: the operation of each call.
        locations: for each call, byte offsets in left, right and output.
    """

    gemm: Gemm
    locations: tuple[tuple[int, int, int], ...]


@record
class EpilogueLaunch:
    """A GEMM with an epilogue.

    Attributes:
        gemm, epilogue: the operation.
        locations: left and right operand, output, bias and auxiliary buffer; None: not used.
    """

    gemm: Gemm
    epilogue: Epilogue
    locations: tuple[At | None, ...]


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

    def memory(self, count: int) -> At:
        """Allocate ``count`` bytes in the workspace."""
        location = At(self._workspace, self.workspace_bytes)
        self.workspace_bytes += -(-max(count, 1) // ALIGNMENT) * ALIGNMENT
        return location

    def launch(
        self,
        kernel: Callable[..., None],
        arguments: Sequence[tuple[str, At | int]],
        grid: Dim,
        threads: int,
        constants: Mapping[str, Scalar],
        plain: Mapping[str, Scalar] | None = None,
        smaller: BlockLaunch | None = None,
        resident: int = 1,
    ) -> None:
        """Add a launch of a handwritten kernel.

        Args:
            kernel: a function of kernels/.
            arguments: (type, location or scalar) in the order of the kernel's parameters.
            grid: blocks.
            threads: threads per block.
            constants, plain, smaller: as in ``BlockLaunch``.
            resident: blocks of a multiprocessor that must have enough registers at once.
        """
        one = one_launch(kernel, arguments, grid, threads, constants, plain, smaller)
        if resident > 1:
            one = replace(one, bounds=(threads, resident))
        self.launches.append(one)

    def instead(self) -> LaunchSequence:
        """An empty sequence for the ``plain`` launches of a ``call``, in the same workspace."""
        return LaunchSequence(self._workspace, self.workspace_bytes)

    def call(
        self,
        what: PlannedCall,
        locations: tuple[At, ...],
        plain: LaunchSequence | None = None,
    ) -> None:
        """Add a call of cuDNN.

        Args:
            what: the call.
            locations: locations of operands and outputs.
            plain: from ``instead``: launches with the same results, for unaligned arrays. None:
                unaligned arrays are an error.
        """
        workspace, launches = self.memory(what.workspace_bytes), []
        if plain is not None:
            self.workspace_bytes = max(self.workspace_bytes, plain.workspace_bytes)
            launches = [one for one in plain.launches if isinstance(one, BlockLaunch)]
        self.launches.append(LibraryLaunch(what, (*locations, workspace), tuple(launches)))

    def multiply(self, gemm: GemmLaunch) -> None:
        """Add calls of a GEMM, which writes array 2 of the sequence."""
        self.launches.append(gemm)

    def for_each(
        self,
        kernel: Callable[..., None],
        arguments: Sequence[tuple[str, At | int]],
        count: int,
        constants: Mapping[str, Scalar],
    ) -> None:
        """Add a launch with a thread for each of ``count`` elements."""
        grid = (-(-count // THREADS), 1, 1)
        self.launch(kernel, arguments, grid, THREADS, constants)

    def row_major(self, location: At, view: View, dtype: np.dtype) -> At | None:
        """The location of an operand if it is row-major, else of a copy, whose launch is added.

        None if the view has too many dimensions to copy.
        """
        start = location.plus(view.offset * dtype.itemsize)
        if view.is_contiguous:
            return start
        if len(collapsed(view)) > MOST_DIMS:
            return None
        copy = self.memory(prod(view.shape) * dtype.itemsize)
        self.copy(start, copy, view, dtype)
        return copy

    def copy(self, start: At, target: At, view: View, dtype: np.dtype) -> None:
        """Add a copy of a view to row-major memory.

        Args:
            start: location of the view's first element; ``view.offset`` is ignored.
            target: location of the copy.
            view: shape and strides, with at most MOST_DIMS dimensions after collapsing.
            dtype: dtype of the elements.
        """
        form = copy_form(view, dtype.itemsize)
        pointer = uint_pointer(dtype.itemsize)
        scalars = scalar_arguments(form.kernel, form.index, form.numbers)
        self.launch(
            form.kernel,
            [(pointer, start), (pointer, target), *scalars],
            form.grid,
            form.threads,
            form.constants,
            form.plain,
        )


def scalar_arguments(kernel: Any, index: str, scalars: Any) -> list[tuple[str, int]]:
    """The scalar arguments of a kernel, which must be its last parameters.

    Args:
        kernel: a function of kernels/.
        index: type of the scalars.
        scalars: a NamedTuple, whose fields must have the names and the order of the parameters.
    """
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    assert names[-len(scalars) :] == scalars._fields, (kernel, scalars)
    return [(index, value) for value in scalars]


def one_launch(
    kernel: Callable[..., None],
    arguments: Sequence[tuple[str, At | int]],
    grid: Dim,
    threads: int,
    constants: Mapping[str, Scalar],
    plain: Mapping[str, Scalar] | None = None,
    smaller: BlockLaunch | None = None,
) -> BlockLaunch:
    """Create a launch; arguments are those of ``LaunchSequence.launch``."""
    kinds, values = zip(*arguments, strict=True)
    return BlockLaunch(
        kernel,
        kinds,
        tuple(sorted(constants.items())),
        threads,
        grid,
        (threads, 1, 1),
        values,
        None if plain is None else tuple(sorted(plain.items())),
        smaller,
    )


def uint_pointer(itemsize: int) -> str:
    """Type of a pointer to elements as unsigned integers; an element of 16 bytes is two of 8."""
    return f"*uint{8 * min(itemsize, 8)}"


# Adds the launches of an operation: (sequence, operation, locations of row-major operands,
# locations of outputs, dtypes of operands). Returns False if kernels do not support it.
Add = Callable[[LaunchSequence, Any, Sequence[At], Sequence[At], Sequence[Any]], bool]


def on_rows(name: str, add: Add) -> Provider:
    """A provider for ``add``, which gets row-major operands: others are copied first."""

    def choose(block: Block, step: CallStep, target: Any) -> LaunchSequence | None:
        del target
        count = len(step.operands)
        sequence, kinds = LaunchSequence(count + len(step.outputs)), []
        sources: list[At] = []
        for number, operand in enumerate(step.operands):
            dtype = operand.aval.dtype
            location = sequence.row_major(At(number), operand.layout, storage_dtype(dtype))
            if location is None:
                return None
            sources.append(location)
            kinds.append(dtype)
        outs = [At(number) for number in range(count, count + len(step.outputs))]
        return sequence if add(sequence, block, sources, outs, kinds) else None

    return Provider(name, choose)


# scan.KIND and pointer type by dtype.
_FLOATS = {
    "float32": (scan.FLOAT32, "*float32"),
    "float64": (scan.FLOAT64, "*float64"),
    "bfloat16": (scan.BFLOAT16, "*uint16"),
    "float16": (scan.FLOAT16, "*uint16"),
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
def number_kind(dtype: Any) -> tuple[int, str] | None:
    """``scan.KIND`` and pointer type of a dtype; None if kernels do not support it."""
    stored = storage_dtype(dtype)
    if stored.name in _FLOATS:
        return _FLOATS[stored.name]
    if stored == np.bool_:
        return scan.UNSIGNED, "*uint8"
    if isinstance(stored, np.dtype) and stored.kind in "iu" and stored.isbuiltin == 1:
        return (scan.SIGNED if stored.kind == "i" else scan.UNSIGNED), f"*{stored.name}"
    return None
