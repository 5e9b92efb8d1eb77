"""Printer of full reductions: all threads of the grid compute one point."""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.kir import nodes
from gpuflow.kir.nodes import For, Kernel, Reduce, Store
from gpuflow.kir.walk import all_uses, results_of
from gpuflow.targets.cuda.codegen.printing import combining, segments
from gpuflow.targets.cuda.codegen.printing.groups import GroupPrinter
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrintError
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig


class FullPrinter(GroupPrinter):
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
        # The first summand of indices in the scratch memory: the start of the segment's.
        self._scratch_start = "scratch_start + " if launch.segmented else ""

    def parameters(self) -> list[tuple[str, str]]:
        if self.launch.segmented:
            return [segments.TABLE, ("scratch_words", "*uint64"), ("block_counters", "int64")]
        return [
            *super().parameters(),
            ("scratch_words", "*uint64"),
            ("block_counter", "*uint32"),
        ]

    def _begin(self) -> None:
        """Print the arguments, and the id and number of the blocks of this reduction."""
        if self.launch.segmented:
            self._begin_segment()
            return
        self.unpack()
        self.emit(f"block_id = {self.index('cuda.blockIdx.x')}")
        self.emit(f"block_count = {self.index('cuda.gridDim.x')}")

    def _begin_segment(self) -> None:
        self.emit("grid_block = np.int64(cuda.blockIdx.x)")
        self._find_segment()
        segments.unpack(self)
        self.emit(f"block_id = {self.index('grid_block - segment_start')}")
        count = "segment_table[3 + 2 * segment_id] - segment_start"
        self.emit(f"block_count = {self.index(count)}")
        self.emit(f"scratch_start = segment_start * {self.launch.components}")
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
        before, reduces, after = self.stages
        self._begin()
        first = self.index_product("block_id", "cuda.blockDim.x")
        self.emit(f"member_id = {self.index_sum(first, 'cuda.threadIdx.x')}")
        self.emit(f"member_count = {self.index_product('block_count', 'cuda.blockDim.x')}")
        if self.launch.width > 1:
            self.count_vectors()
        self.in_points = True
        for statement in before:
            self.statement(statement)
        for axes in dict.fromkeys(s.axes for s in reduces):
            self.partial_reduces([s for s in reduces if s.axes == axes])
        for s in reduces:
            self.combine_members(s, "row")
        self._publish(reduces)
        self.helper("is_last_block", combining.IS_LAST_BLOCK)
        last = "np.uint32(block_count - 1)"
        with self.indented(f"if is_last_block(block_counter, {last}):"):
            first = 0
            for s in reduces:
                self._combine_blocks(s, first)
                first += len(s.outs)
            with self.indented("if cuda.threadIdx.x == 0:"):
                self.members_diverge = True  # only thread 0 gets here: no distribution, no barrier
                for statement in after:
                    self.statement(statement)

    def _publish(self, reduces: Sequence[Reduce]) -> None:
        """Store component k of block b at index ``k * block_count + b``."""
        values = [value for s in reduces for value in s.outs]
        with self.indented("if cuda.threadIdx.x == 0:"):
            for number, value in enumerate(values):
                index = f"{self._scratch_start}{number} * block_count + block_id"
                bits = combining.to_bits(self.value(value), value.dtype)
                self.emit(f"scratch_words[{index}] = {bits}")

    def _combine_blocks(self, s: Reduce, first: int) -> None:
        outs = self.results(s)
        self.assign(outs, [self.value(v) for v in s.init])
        combine = self.combine_function(s)
        start = self.index("cuda.threadIdx.x")
        with self.counting("other_id", start, "block_count", "cuda.blockDim.x"):
            partials = []
            for number, value in enumerate(s.outs, start=first):
                index = f"{self._scratch_start}{number} * block_count + other_id"
                bits = f"load_shared_by_gpu(scratch_words, {index})"
                partials.append(combining.from_bits(bits, value.dtype))
            self.emit(f"{', '.join(outs)} = {combine}({', '.join([*outs, *partials])})")
        self.combine_members(s, "row")


Stages = tuple[list[nodes.Statement], list[Reduce], list[nodes.Statement]]


def split_stages(kernel: Kernel) -> Stages:
    """Split a full reduction into prologue, reductions and epilogue.

    The epilogue has the stores and the statements that use results. Raises CudaPrintError if it
    has a loop over axes, which would need another pass over the grid.
    """
    before: list[nodes.Statement] = []
    reduces: list[Reduce] = []
    after: list[nodes.Statement] = []
    late: set[int] = set()
    for statement in kernel.body.body:
        is_late = bool(all_uses(statement) & late)
        if is_late and (isinstance(statement, Reduce | For) and _is_over_axes(statement)):
            raise CudaPrintError(
                f"[cuda] the result of a full reduction must not be used in another loop over its "
                f"axes; got that in {kernel.name}. Fix: make it a row kernel, or two kernels."
            )
        if isinstance(statement, Reduce):
            reduces.append(statement)
            late |= {value.number for value in statement.outs}
        elif is_late or isinstance(statement, Store):
            after.append(statement)
            late |= {value.number for value in results_of(statement)}
        else:
            before.append(statement)
    return before, reduces, after


def _is_over_axes(statement: Reduce | For) -> bool:
    return isinstance(statement, Reduce) or statement.axis is not None
