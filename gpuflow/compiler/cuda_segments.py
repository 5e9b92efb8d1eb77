"""Prints segmented kernels: one launch over many argument blocks.

The only parameter is a table in device memory, as docs/kernel_ir.md lays it out:

    [segments, start_0, words_0, start_1, words_1, ..., total]

``start_k`` is where segment k begins in the concatenated range, ``words_k`` the device address of
its argument block. A thread takes every ``thread_count``-th point of the whole range, so that small
segments are spread over the grid like large ones.
"""

from __future__ import annotations

from gpuflow.compiler.cuda_helpers import from_word
from gpuflow.compiler.cuda_printer import CudaPrinter, Nest
from gpuflow.compiler.cuda_scalar import STORAGE_BITS, widen
from gpuflow.kir import nodes


class SegmentPrinter(CudaPrinter):
    """Prints a kernel with ``segmented`` set."""

    def parameters(self) -> list[tuple[str, str]]:
        return [("segment_table", "*int64")]

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
            self.emit("segment_stop = segment_table[3 + 2 * segment_id]")
            address = "segment_table[2 + 2 * segment_id]"
            self.emit(f"segment_words = pointer_from_address({address}, np.int64)")
            for number, argument in enumerate(nodes.arguments(self.kernel)):
                self._unpack_word(argument, f"segment_words[{number}]")
            self.block(self.kernel.body)

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

    def points(self, nest: Nest) -> None:
        """The points of this thread in the current segment."""
        ((axis, _),) = nest
        with self.indented("while point_id < segment_stop:"):
            self.emit(f"{axis.name} = {self.index('point_id - segment_start')}")
            self.inside(nest, self.block)
            self.emit("point_id = point_id + thread_count")
