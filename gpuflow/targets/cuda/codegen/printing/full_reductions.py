"""Printer of full reductions: all threads of the grid compute one point.

Tests: tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpuflow.kir import nodes
from gpuflow.kir.nodes import For, Kernel, Reduce, Store
from gpuflow.kir.walk import results_of, value_numbers_used
from gpuflow.targets.cuda.codegen.printing import group_reductions, segments
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrintError
from gpuflow.targets.cuda.codegen.printing.rows import RowPrinter
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig


class FullReductionPrinter(RowPrinter):
    """Prints a full reduction: one launch with two stages, and the same bits in every run.

    Every block reduces its chunk and stores the partial result in scratch memory. The last block to
    finish combines the partial results in a fixed order and runs the epilogue. The last two
    parameters are:

        scratch_words   uint64[components * blocks], a component's bits in each
        block_counter   uint32[1]: must be 0 before the first launch; each launch resets it to 0

    In a segmented kernel, a segment has as many blocks as the grid of a single reduction, so that
    results have the bits of the scalar variant. Two parameters follow the table:

        scratch_words    uint64[components * blocks], concatenated in the order of segments
        block_counters   the address of uint32[segments], one counter as above per segment
    """

    def __init__(self, kernel: Kernel, launch: LaunchConfig) -> None:
        super().__init__(kernel, launch)
        self.stages = split_stages(kernel)
        # Prefix of index expressions into scratch memory: the first word of the segment.
        self._scratch_start = "scratch_start + " if launch.segmented else ""

    def parameters(self) -> list[tuple[str, str]]:
        if self.launch.segmented:
            return [segments.TABLE, ("scratch_words", "*uint64"), ("block_counters", "int64")]
        return [
            *super().parameters(),
            ("scratch_words", "*uint64"),
            ("block_counter", "*uint32"),
        ]

    def _begin_kernel(self) -> None:
        """Print the arguments, and the id and number of the blocks of this reduction."""
        if self.launch.segmented:
            self._begin_segment()
            return
        self.unpack()
        self.emit(f"block_id = {self.cast_index('cuda.blockIdx.x')}")
        self.emit(f"block_count = {self.cast_index('cuda.gridDim.x')}")

    def _begin_segment(self) -> None:
        self.emit("grid_block = np.int64(cuda.blockIdx.x)")
        self._find_segment()
        segments.unpack(self)
        self.emit(f"block_id = {self.cast_index('grid_block - segment_start')}")
        count = "segment_table[3 + 2 * segment_id] - segment_start"
        self.emit(f"block_count = {self.cast_index(count)}")
        self.emit(f"scratch_start = segment_start * {self.launch.scratch_components}")
        counter = "block_counters + 4 * segment_id"
        self.emit(f"block_counter = pointer_from_address({counter}, np.uint32)")

    def _find_segment(self) -> None:
        """Print a binary search for the segment of this block; each segment has a block."""
        self.emit("segment_id = np.int64(0)")
        self.emit("segment_end = segment_table[0]")
        with self.indented("while segment_end - segment_id > 1:"):
            self.emit("middle_id = (segment_id + segment_end) >> 1")
            with self.indented("if segment_table[1 + 2 * middle_id] <= grid_block:"):
                self.emit("segment_id = middle_id")
            with self.indented("else:"):
                self.emit("segment_end = middle_id")

    def entry(self) -> None:
        reduces = self.stages.reduces
        self._begin_kernel()
        first = self.index_product("block_id", "cuda.blockDim.x")
        self.emit(f"member_id = {self.index_sum(first, 'cuda.threadIdx.x')}")
        self.emit(f"member_count = {self.index_product('block_count', 'cuda.blockDim.x')}")
        if self.launch.vector_width > 1:
            self.count_vectors()
        self.is_at_point = True
        for statement in self.stages.prologue:
            self.statement(statement)
        for axes in dict.fromkeys(s.axes for s in reduces):
            self.partial_reduces([s for s in reduces if s.axes == axes])
        for s in reduces:
            self.combine_members(s, "row")
        self._publish(reduces)
        self.add_helper("is_last_block", group_reductions.IS_LAST_BLOCK)
        last = "np.uint32(block_count - 1)"
        with self.indented(f"if is_last_block(block_counter, {last}):"):
            first_component = 0
            for s in reduces:
                self._combine_blocks(s, first_component)
                first_component += len(s.outs)
            with self.indented("if cuda.threadIdx.x == 0:"):
                self.members_diverge = True  # only thread 0 gets here: no distribution, no barrier
                for statement in self.stages.epilogue:
                    self.statement(statement)

    def _publish(self, reduces: Sequence[Reduce]) -> None:
        """Print the stores of a block's partial results, by thread 0.

        Component k of block b has index ``k * block_count + b`` in the scratch memory.
        """
        values = [value for s in reduces for value in s.outs]
        with self.indented("if cuda.threadIdx.x == 0:"):
            for number, value in enumerate(values):
                index = f"{self._scratch_start}{number} * block_count + block_id"
                bits = group_reductions.to_bits(self.value(value), value.dtype)
                self.emit(f"scratch_words[{index}] = {bits}")

    def _combine_blocks(self, s: Reduce, first_component: int) -> None:
        """Print the reduction of all blocks' partial results by the threads of the last block.

        Args:
            s: the reduction.
            first_component: number of components of the reductions before it.
        """
        outs = self.results(s)
        self.assign(outs, [self.value(v) for v in s.init])
        combine = self.combine_function(s)
        start = self.cast_index("cuda.threadIdx.x")
        with self.counted_loop("other_id", start, "block_count", "cuda.blockDim.x"):
            partials = []
            for number, value in enumerate(s.outs, start=first_component):
                index = f"{self._scratch_start}{number} * block_count + other_id"
                bits = f"load_shared_by_gpu(scratch_words, {index})"
                partials.append(group_reductions.from_bits(bits, value.dtype))
            self.emit(f"{', '.join(outs)} = {combine}({', '.join([*outs, *partials])})")
        self.combine_members(s, "row")


class Stages(NamedTuple):
    """The top-level statements of a full reduction.

    Attributes:
        prologue: statements that no result of a reduction reaches; every thread runs them.
        reduces: the reductions.
        epilogue: stores, and statements that use results; one thread runs them.
    """

    prologue: list[nodes.Statement]
    reduces: list[Reduce]
    epilogue: list[nodes.Statement]


def split_stages(kernel: Kernel) -> Stages:
    """Split a full reduction into prologue, reductions and epilogue.

    Raises:
        CudaPrintError: if the epilogue has a loop over axes, which would need another pass over
            the grid.
    """
    stages = Stages([], [], [])
    late: set[int] = set()  # ids of the values that depend on a reduction
    for statement in kernel.body.body:
        is_late = bool(value_numbers_used(statement) & late)
        if is_late and (isinstance(statement, Reduce | For) and _is_over_axes(statement)):
            raise CudaPrintError(
                f"[cuda] the result of a full reduction must not be used in another loop over its "
                f"axes; got that in {kernel.name}. Fix: make it a row kernel, or two kernels."
            )
        if isinstance(statement, Reduce):
            stages.reduces.append(statement)
            late |= {value.number for value in statement.outs}
        elif is_late or isinstance(statement, Store):
            stages.epilogue.append(statement)
            late |= {value.number for value in results_of(statement)}
        else:
            stages.prologue.append(statement)
    return stages


def _is_over_axes(statement: Reduce | For) -> bool:
    return isinstance(statement, Reduce) or statement.axis is not None
