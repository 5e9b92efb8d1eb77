"""Printer of map kernels: one thread computes a point, or a vector of neighboring points.

If points are tiles of two axes, a block computes each (``block_tiles``). Vectors are in
``vectors``. All loops over points are grid-stride loops.

In a segmented kernel, the loop is over the concatenated points of all segments (``segments``). So
the grid covers many small segments as well as a few large ones.

Tests: tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuflow.kir.nodes import Block
from gpuflow.targets.cuda.codegen.printing import segments
from gpuflow.targets.cuda.codegen.printing.point_printer import Nest
from gpuflow.targets.cuda.codegen.printing.vectors import VectorPrinter
from gpuflow.targets.cuda.codegen.schedules.launch_config import SINGLE_BLOCK_THREADS, axes_of


class PointPrinter(VectorPrinter):
    """Prints a kernel of strategy "point"."""

    def parameters(self) -> list[tuple[str, str]]:
        return [segments.TABLE] if self.launch.segmented else super().parameters()

    def entry(self) -> None:
        if self.launch.segmented:
            self._name_threads()
            self._segment_loop()
            return
        self.unpack()
        self.is_at_point = not self.launch.point_axes
        if self.launch.point_axes and not self.launch.block_tile:
            self._name_threads()
        self.block(self.kernel.body)

    def _name_threads(self) -> None:
        """Print the id of the thread in the grid, and the number of threads."""
        if self.launch.is_single_block:
            width, height = SINGLE_BLOCK_THREADS
            first = f"{width} * cuda.threadIdx.y + cuda.threadIdx.x"
            self.emit(f"thread_id = {self.cast_index(first)}")
            self.emit(f"thread_count = {self.cast_index(str(width * height))}")
            return
        first = self.index_product(self.cast_index("cuda.blockIdx.x"), "cuda.blockDim.x")
        self.emit(f"thread_id = {self.index_sum(first, 'cuda.threadIdx.x')}")
        count = self.index_product(self.cast_index("cuda.gridDim.x"), "cuda.blockDim.x")
        self.emit(f"thread_count = {count}")

    def point_loop(self, nest: Nest) -> None:
        if self.launch.segmented:
            self._segment_points(nest)
        elif self.launch.vector_width > 1:
            self.vector_points(nest)
        elif self.launch.block_tile:
            first, step = map(self.cast_index, self.grid)
            self._grid_stride_loop(nest, first, step, self.tile_body)
        else:
            self._grid_stride_loop(nest, "thread_id", "thread_count", self.block)

    def _grid_stride_loop(
        self, nest: Nest, first: str, step: str, print_body: Callable[[Block], None]
    ) -> None:
        """Print the loop over points, or over tiles, from ``first`` in steps of ``step``."""
        axes = [self.iterated_axis(loop) for loop in nest]
        self.emit(f"point_count = {self.point_count(axes)}")
        with self.counted_loop("point_id", first, "point_count", step):
            self.unravel("point_id", axes)
            self.nest_body(nest, print_body)

    # Segments

    def _segment_loop(self) -> None:
        """Print the loop over a thread's points in all segments; both are in ascending order."""
        self.emit("segment_id = np.int64(0)")
        self.emit("point_id = np.int64(thread_id)")
        self.emit("point_count = segment_table[1 + 2 * segment_table[0]]")
        with self.indented("while point_id < point_count:"):
            with self.indented("while point_id >= segment_table[3 + 2 * segment_id]:"):
                self.emit("segment_id = segment_id + 1")
            segments.unpack(self)
            self.block(self.kernel.body)

    def _segment_points(self, nest: Nest) -> None:
        """Print the loop over this thread's points in the current segment; there is one axis."""
        (axis,) = axes_of(nest, self.axes)
        start, stop = self.cast_index("point_id - segment_start"), self.extent(axis)
        with self.counted_loop(axis.name, start, stop, "thread_count"):
            self.nest_body(nest, self.block)
        self.emit(f"point_id = segment_start + {axis.name}")
