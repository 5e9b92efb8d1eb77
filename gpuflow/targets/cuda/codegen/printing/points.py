"""Printer of map kernels: one thread computes a point, or a vector of neighboring points.

If points are tiles of two axes, a block computes each (``block_tiles``). Vectors are in
``vectors``. All loops over points are grid-stride loops.

In a segmented kernel, the loop is over the concatenated points of all segments (``segments``). So
the grid covers many small segments as well as a few large ones.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuflow.kir.nodes import Block
from gpuflow.targets.cuda.codegen.printing import segments
from gpuflow.targets.cuda.codegen.printing.point_printer import Nest
from gpuflow.targets.cuda.codegen.printing.vectors import VectorPrinter
from gpuflow.targets.cuda.codegen.schedules.launch_config import ALONE_THREADS, axes_of


class PointPrinter(VectorPrinter):
    """Prints a kernel of strategy "point"."""

    def parameters(self) -> list[tuple[str, str]]:
        return [segments.TABLE] if self.launch.segmented else super().parameters()

    def entry(self) -> None:
        if self.launch.segmented:
            self._thread_names()
            self._over_segments()
            return
        self.unpack()
        self.in_points = not self.launch.points
        if self.launch.points and not self.launch.block_tile:
            self._thread_names()
        self.block(self.kernel.body)

    def _thread_names(self) -> None:
        """Print the id of the thread in the grid, and the number of threads."""
        if self.launch.alone:
            width, height = ALONE_THREADS
            first = f"{width} * cuda.threadIdx.y + cuda.threadIdx.x"
            self.emit(f"thread_id = {self.index(first)}")
            self.emit(f"thread_count = {self.index(str(width * height))}")
            return
        first = self.index_product(self.index("cuda.blockIdx.x"), "cuda.blockDim.x")
        self.emit(f"thread_id = {self.index_sum(first, 'cuda.threadIdx.x')}")
        count = self.index_product(self.index("cuda.gridDim.x"), "cuda.blockDim.x")
        self.emit(f"thread_count = {count}")

    def points(self, nest: Nest) -> None:
        if self.launch.segmented:
            self._segment_points(nest)
        elif self.launch.width > 1:
            self.vector_points(nest)
        elif self.launch.block_tile:
            first, step = map(self.index, self.grid)
            self._single_points(nest, first, step, self.tile_body)
        else:
            self._single_points(nest, "thread_id", "thread_count", self.block)

    def _single_points(
        self, nest: Nest, first: str, step: str, print_body: Callable[[Block], None]
    ) -> None:
        axes = [self.counted(loop) for loop in nest]
        self.emit(f"point_count = {self.product(axes)}")
        with self.counting("point_id", first, "point_count", step):
            self.split("point_id", axes)
            self.inside(nest, print_body)

    # Segments

    def _over_segments(self) -> None:
        """Print the loop over segments: a thread's points are in ascending order, as they are."""
        self.emit("segment_id = np.int64(0)")
        self.emit("point_id = np.int64(thread_id)")
        self.emit("point_count = segment_table[1 + 2 * segment_table[0]]")
        with self.indented("while point_id < point_count:"):
            with self.indented("while point_id >= segment_table[3 + 2 * segment_id]:"):
                self.emit("segment_id = segment_id + 1")
            segments.unpack(self)
            self.block(self.kernel.body)

    def _segment_points(self, nest: Nest) -> None:
        """Print the loop over this thread's points in the current segment."""
        (axis,) = axes_of(nest, self.axes)
        start, stop = self.index("point_id - segment_start"), self.extent(axis)
        with self.counting(axis.name, start, stop, "thread_count"):
            self.inside(nest, self.block)
        self.emit(f"point_id = segment_start + {axis.name}")
