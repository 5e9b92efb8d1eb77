"""Prints full reductions, in which the whole grid works on one result."""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.kir import nodes
from gpuflow.kir.nodes import For, Kernel, Reduce, Store
from gpuflow.kir.walk import all_uses, results_of
from gpuflow.targets.cuda.printing import combining
from gpuflow.targets.cuda.printing.point_printer import CudaPrintError
from gpuflow.targets.cuda.printing.row_vectors import VectorGroupPrinter
from gpuflow.targets.cuda.schedules.spread import Launch


class FullPrinter(VectorGroupPrinter):
    """Prints a full reduction: one launch, two stages, and the same result in every run.

    Every block combines its share and writes it to scratch memory; the block that finishes last
    combines those in a fixed order and does what follows. Two parameters stand at the end:

        scratch_words   uint64[components * blocks]
        block_counter   uint32[1]: 0 before the first launch, and 0 again after every launch
    """

    scratch_start = ""  # what to add to a place in the scratch memory

    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        super().__init__(kernel, launch)
        self.stages = split_stages(kernel)

    def parameters(self) -> list[tuple[str, str]]:
        return [
            *super().parameters(),
            ("scratch_words", "*uint64"),
            ("block_counter", "*uint32"),
        ]

    def begin(self) -> None:
        """Define the arguments, and number the blocks and threads that work on the result."""
        self.unpack()
        self.emit(f"block_id = {self.index('cuda.blockIdx.x')}")
        self.emit(f"block_count = {self.index('cuda.gridDim.x')}")

    def entry(self) -> None:
        before, reduces, after = self.stages
        self.begin()
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
                self.in_members = True  # one thread is left: nothing is shared any more
                for statement in after:
                    self.statement(statement)

    def _publish(self, reduces: Sequence[Reduce]) -> None:
        """Component k of block b is word ``k * block_count + b``."""
        values = [value for s in reduces for value in s.outs]
        with self.indented("if cuda.threadIdx.x == 0:"):
            for number, value in enumerate(values):
                place = f"{self.scratch_start}{number} * block_count + block_id"
                word = combining.to_word(self.value(value), value.dtype)
                self.emit(f"scratch_words[{place}] = {word}")

    def _combine_blocks(self, s: Reduce, first: int) -> None:
        outs = self.results(s)
        self.assign(outs, [self.value(v) for v in s.init])
        combine = self.combine_function(s)
        start = self.index("cuda.threadIdx.x")
        with self.counting("other_id", start, "block_count", "cuda.blockDim.x"):
            words = []
            for number, value in enumerate(s.outs, start=first):
                place = f"{self.scratch_start}{number} * block_count + other_id"
                word = f"load_shared_by_gpu(scratch_words, {place})"
                words.append(combining.from_word(word, value.dtype))
            self.emit(f"{', '.join(outs)} = {combine}({', '.join([*outs, *words])})")
        self.combine_members(s, "row")


Stages = tuple[list[nodes.Statement], list[Reduce], list[nodes.Statement]]


def split_stages(kernel: Kernel) -> Stages:
    """Statements before the reductions, the reductions, and statements that the last block runs."""
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
