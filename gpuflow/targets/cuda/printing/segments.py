"""Prints segmented kernels: one launch over many argument blocks.

The first parameter is a table in device memory, as docs/kernel_ir.md lays it out:

    [segments, start_0, words_0, start_1, words_1, ..., total]

``words_k`` is the device address of segment k's argument block, ``start_k`` where it begins in the
concatenated range. That is a range of points for a map: a thread takes every ``thread_count``-th
point, so that small segments are spread over the grid like large ones. For a full reduction it is
a range of blocks.
"""

from __future__ import annotations

from gpuflow.kir import nodes
from gpuflow.targets.cuda.printing.combining import from_word
from gpuflow.targets.cuda.printing.full import FullPrinter
from gpuflow.targets.cuda.printing.point_printer import CudaPrinter, Nest
from gpuflow.targets.cuda.printing.scalar_text import STORAGE_BITS, widen

_TABLE = ("segment_table", "*int64")


class _OfSegments(CudaPrinter):
    """What printers of segmented kernels share."""

    def unpack_segment(self) -> None:
        """Define the arguments of segment ``segment_id``."""
        address = "segment_table[2 + 2 * segment_id]"
        self.emit(f"segment_words = pointer_from_address({address}, np.int64)")
        for number, argument in enumerate(nodes.arguments(self.kernel)):
            self._unpack_word(argument, f"segment_words[{number}]")

    def _unpack_word(self, argument: nodes.Argument, word: str) -> None:
        name, dtype = self.parameter(argument)
        if argument.kind == "pointer":
            self.emit(f"{name} = pointer_from_address({word}, np.{dtype[1:]})")
        elif argument.kind in ("extent", "stride"):
            self.emit(f"{name} = {self.index(word)}")
        elif argument.kind == "base":
            self.emit(f"{name} = {word}")
        else:
            storage = self.operands[argument.operand].dtype
            suffix = "_value" if storage in STORAGE_BITS else ""
            self.emit(f"{name}{suffix} = {widen(from_word(word, dtype), storage)}")


class SegmentPrinter(_OfSegments):
    """Prints a map with ``segmented`` set."""

    def parameters(self) -> list[tuple[str, str]]:
        return [_TABLE]

    def entry(self) -> None:
        """A thread meets segments in order, so it only ever steps forward in the table."""
        self.thread_names("thread")
        self.emit("segment_id = np.int64(0)")
        self.emit("point_id = np.int64(thread_id)")
        self.emit("point_count = segment_table[1 + 2 * segment_table[0]]")
        with self.indented("while point_id < point_count:"):
            with self.indented("while point_id >= segment_table[3 + 2 * segment_id]:"):
                self.emit("segment_id = segment_id + 1")
            self.emit("segment_start = segment_table[1 + 2 * segment_id]")
            self.unpack_segment()
            self.block(self.kernel.body)

    def points(self, nest: Nest) -> None:
        """The points of this thread in the current segment."""
        ((axis, _),) = nest
        start, stop = self.index("point_id - segment_start"), self.extent(axis)
        with self.counting(axis.name, start, stop, "thread_count"):
            self.inside(nest, self.block)
        self.emit(f"point_id = segment_start + {axis.name}")


class FullSegmentPrinter(FullPrinter, _OfSegments):
    """Prints a full reduction with ``segmented`` set.

    A segment's blocks do what the grid does for one reduction alone, and as many of them: results
    have the bits of its scalar variant. Two parameters stand behind the table:

        scratch_words    uint64[components * blocks]: a segment's begin at its first block's
        block_counters   the address of uint32[segments], each as in ``FullPrinter``
    """

    scratch_start = "scratch_start + "

    def parameters(self) -> list[tuple[str, str]]:
        return [_TABLE, ("scratch_words", "*uint64"), ("block_counters", "int64")]

    def begin(self) -> None:
        self.emit("grid_block = np.int64(cuda.blockIdx.x)")
        self._find_segment()
        self.emit("segment_start = segment_table[1 + 2 * segment_id]")
        self.unpack_segment()
        self.emit(f"block_id = {self.index('grid_block - segment_start')}")
        count = "segment_table[3 + 2 * segment_id] - segment_start"
        self.emit(f"block_count = {self.index(count)}")
        self.emit(f"scratch_start = segment_start * {self.launch.components}")
        counter = "block_counters + 4 * segment_id"
        self.emit(f"block_counter = pointer_from_address({counter}, np.uint32)")

    def _find_segment(self) -> None:
        """The last segment that starts at or before this block; every one has a block."""
        self.emit("segment_id = np.int64(0)")
        self.emit("segment_end = segment_table[0]")
        with self.indented("while segment_end - segment_id > 1:"):
            self.emit("middle_id = (segment_id + segment_end) >> 1")
            with self.indented("if segment_table[1 + 2 * middle_id] <= grid_block:"):
                self.emit("segment_id = middle_id")
            with self.indented("else:"):
                self.emit("segment_end = middle_id")
