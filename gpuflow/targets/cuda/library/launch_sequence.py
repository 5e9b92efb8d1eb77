"""Library calls as launches of handwritten kernels: the launches and their arrays, in order.

Arrays have indices: the operands, then the outputs, then the workspace, which holds all
intermediate results of the launches. Operands that are not row-major are copied there.
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

ALIGNMENT = 256
THREADS = 256


class At(NamedTuple):
    """A memory location: byte offset from the start of an array.

    A literal operand and the workspace are arrays like others.
    """

    array: int
    offset: int = 0

    def plus(self, count: int) -> At:
        """The location at a byte offset."""
        return At(self.array, self.offset + count)


@record
class BlockLaunch:
    """One launch of a handwritten kernel; arguments are locations and scalars.

    ``plain`` has the constants of the build for arrays that do not begin at multiples of 16 bytes,
    where there is such a build. ``smaller`` does the same with smaller tiles, for devices on which
    this one spills registers or lacks shared memory.
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
    """One launch of a kernel that a user wrote.

    Attributes:
        kernel: the kernel to launch.
        types: of its parameters.
        arguments: its arguments.
        touches: the argument slots that are addresses of arrays, and the access to these.
    """

    kernel: UserKernel
    types: tuple[ParameterType, ...]
    arguments: tuple[At | int, ...]
    touches: tuple[Touched, ...]


# Reason for a target without a library.
NOT_IN_USE = "it is not in use: GPUFLOW_CUDNN=0, or a simulated GPU"
OUT = 2  # index of the output among the buffers of a convolution or GEMM


@record
class LibraryLaunch:
    """A call of a library between launches.

    Attributes:
        what: the operation; the device has the function.
        locations: the operands, the outputs and the workspace.
        plain: launches that replace it if an operand or output is not aligned to 16 bytes, which
            the library does not support; if empty, that is an error.
    """

    what: PlannedCall
    locations: tuple[At, ...]
    plain: tuple[BlockLaunch, ...] = ()


@record
class GemmLaunch:
    """Calls of one GEMM at several locations.

    Attributes:
        gemm: the operation of each call.
        locations: byte offsets in the operands' buffers and in the output, for each call.
    """

    gemm: Gemm
    locations: tuple[tuple[int, int, int], ...]


@record
class EpilogueLaunch:
    """A GEMM with an epilogue.

    Attributes:
        gemm, epilogue: the operation.
        locations: left and right operand, output, vector and auxiliary buffer.
    """

    gemm: Gemm
    epilogue: Epilogue
    locations: tuple[At | None, ...]


# One of the launches of a sequence.
AnyLaunch = BlockLaunch | LibraryLaunch | GemmLaunch | EpilogueLaunch | UserLaunch


class LaunchSequence:
    """Launches in order, and their workspace.

    Args:
        workspace: the index of that array.
        workspace_bytes: bytes that are allocated already.
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
        """Add a launch; arguments are pairs of a type and a location or number.

        ``resident``: blocks that a multiprocessor must have registers for.
        """
        one = one_launch(kernel, arguments, grid, threads, constants, plain, smaller)
        if resident > 1:
            one = replace(one, bounds=(threads, resident))
        self.launches.append(one)

    def instead(self) -> LaunchSequence:
        """An empty sequence for an alternative to the next call, in the same memory."""
        return LaunchSequence(self._workspace, self.workspace_bytes)

    def call(
        self,
        what: PlannedCall,
        locations: tuple[At, ...],
        plain: LaunchSequence | None = None,
    ) -> None:
        """Add a call of a library.

        Args:
            what: the call.
            locations: its operands and outputs.
            plain: from ``instead``: launches of the same, for arrays at any locations. None: there
                are none.
        """
        workspace, launches = self.memory(what.workspace_bytes), []
        if plain is not None:
            self.workspace_bytes = max(self.workspace_bytes, plain.workspace_bytes)
            launches = [one for one in plain.launches if isinstance(one, BlockLaunch)]
        self.launches.append(LibraryLaunch(what, (*locations, workspace), tuple(launches)))

    def multiply(self, gemm: GemmLaunch) -> None:
        """Add calls of a GEMM on the first two arrays into the third."""
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
        """The location of a row-major operand or of its copy; None if neither is possible."""
        start = location.plus(view.offset * dtype.itemsize)
        if view.is_contiguous:
            return start
        if len(collapsed(view)) > MOST_DIMS:
            return None
        copy = self.memory(prod(view.shape) * dtype.itemsize)
        self.copy(start, copy, view, dtype)
        return copy

    def copy(self, start: At, target: At, view: View, dtype: np.dtype) -> None:
        """Add a row-major copy of a view that begins at ``start``, of at most four dimensions."""
        form = copy_form(view, dtype.itemsize)
        pointer = uint_pointer(dtype.itemsize)
        numbers = [(form.index, number) for number in form.numbers]
        self.launch(
            form.kernel,
            [(pointer, start), (pointer, target), *numbers],
            form.grid,
            form.threads,
            form.constants,
            form.plain,
        )


def one_launch(
    kernel: Callable[..., None],
    arguments: Sequence[tuple[str, At | int]],
    grid: Dim,
    threads: int,
    constants: Mapping[str, Scalar],
    plain: Mapping[str, Scalar] | None = None,
    smaller: BlockLaunch | None = None,
) -> BlockLaunch:
    """A launch; arguments are pairs of a type and a location or number."""
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
    """A pointer to elements as unsigned integers; two for one of 16 bytes."""
    return f"*uint{8 * min(itemsize, 8)}"


# Adds the launches of an operation to a sequence, given the locations of operands and outputs and
# the operands' dtypes; False if kernels do not support it.
Add = Callable[[LaunchSequence, Any, Sequence[At], Sequence[At], Sequence[Any]], bool]


def on_rows(name: str, add: Add) -> Provider:
    """A provider whose launches take row-major operands, copied if they are not."""

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


# scan.KIND of each dtype, and the type of a pointer to its elements.
_FLOATS = {
    "float32": (scan.FLOAT32, "*float32"),
    "float64": (scan.FLOAT64, "*float64"),
    "bfloat16": (scan.BFLOAT16, "*uint16"),
    "float16": (scan.FLOAT16, "*uint16"),
}
# The accumulator dtype of each kind.
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
    """``scan.KIND`` of a dtype and the type of its pointers; None if kernels do not support it."""
    stored = storage_dtype(dtype)
    if stored.name in _FLOATS:
        return _FLOATS[stored.name]
    if stored == np.bool_:
        return scan.UNSIGNED, "*uint8"
    if isinstance(stored, np.dtype) and stored.kind in "iu" and stored.isbuiltin == 1:
        return (scan.SIGNED if stored.kind == "i" else scan.UNSIGNED), f"*{stored.name}"
    return None
