"""Printer of kernels whose points are tiles of two axes, each computed by a block of threads.

    strip i0 by 32: strip i1 by 32:     i0_start, i1_start = ...: the tile of the block
        each nest of two loops over         the outer loop along threadIdx.y, the inner one along
        i0 and i1                           threadIdx.x, with a bounds test at the edge
        between nests                       a barrier, if they access the same array and one stores

Local arrays are in shared memory. Their rows are padded by one element, so that the lanes of a warp
that access a column use different banks.

Tests: tests/targets/cuda/test_gpu_tiles.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from gpuflow.kir.nodes import Axis, Block, Copy, For, Kernel, Load, Local, Store, Strip, Value
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrinter
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig, PointLoop


class BlockTilePrinter(CudaPrinter):
    """Prints the statements of one tile; ``PointPrinter`` prints the loop over tiles."""

    def __init__(self, kernel: Kernel, launch: LaunchConfig) -> None:
        super().__init__(kernel, launch)
        self.tile_sizes: dict[str, int] = {}  # points along each axis that a Strip encloses

    def unpack(self) -> None:
        super().unpack()
        for local in self.kernel.locals:
            (_, rows), (_, lanes) = local.axes
            kind = STORAGE_BITS.get(local.dtype, local.dtype)
            self.shared_bytes += storage_bytes(local.dtype) * rows * (lanes + 1)
            self.emit(f"{local.name} = shared_array(np.{kind}, {rows * (lanes + 1)})")

    # Strips

    def iterated_axis(self, loop: PointLoop) -> Axis:
        """The axis of a loop over points; for a Strip, a new axis that counts its tiles.

        ``loop.size`` of a Strip must be a power of two.
        """
        assert loop.axis is not None
        axis = self.axes[loop.axis]
        if isinstance(loop, For):
            return axis
        tiles = replace(axis, name=f"{axis.name}_piece", exact=None)
        count = f"({self.extent(axis)} + {loop.size - 1}) >> {loop.size.bit_length() - 1}"
        self.emit(f"{self.extent(tiles)} = {self.cast_index(count)}")
        return tiles

    def strip(self, s: Strip) -> None:
        self.distributed_nest(s)

    def at_loop(self, loop: PointLoop) -> AbstractContextManager[None]:
        return self._at_strip(loop) if isinstance(loop, Strip) else super().at_loop(loop)

    @contextmanager
    def _at_strip(self, s: Strip) -> Iterator[None]:
        self.emit(f"{s.axis}_start = {self.index_product(f'{s.axis}_piece', str(s.size))}")
        self.tile_sizes[s.axis] = s.size
        yield
        del self.tile_sizes[s.axis]

    def tile_body(self, block: Block) -> None:
        """Print the statements of a tile, with barriers where a nest depends on an earlier one."""
        read, written = set[str](), set[str]()  # operands and local arrays, since the last barrier
        for statement in block.body:
            nest = self.loops_of(statement) if isinstance(statement, Copy) else statement
            nested = list(statements(Block(body=(nest,))))
            loads = {s.operand for s in nested if isinstance(s, Load)}
            stores = {s.operand for s in nested if isinstance(s, Store)}
            if written & (loads | stores) or read & stores:
                self.emit("barrier()")
                read, written = set(), set()
            self.statement(nest)
            read, written = read | loads, written | stores
        self.emit("barrier()")  # before the next tile is written

    # Loops and local arrays

    def loop(self, s: For) -> None:
        """Print a loop. One over a tile must end with the loop over the other axis of the tile.

        Tiles must be square, with rows as long as ``launch.tile_threads`` is wide. A thread
        computes elements of one column of the tile, ``height`` rows apart.
        """
        if s.axis not in self.tile_sizes:
            super().loop(s)
            return
        *preceding, inner = s.body.body
        assert isinstance(inner, For) and inner.axis in self.tile_sizes  # a nest of two
        rows, lanes, (width, height) = s.axis, inner.axis, self.launch.tile_threads
        assert self.tile_sizes[lanes] == width  # tiles are square
        column = self.index_sum(f"{lanes}_start", self.cast_index("cuda.threadIdx.x"))
        self.emit(f"{lanes} = {column}")
        first = self.index_sum(f"{rows}_start", self.cast_index("cuda.threadIdx.y"))
        self.emit(f"{rows}_first = {first}")
        trip_count = str(self.tile_sizes[rows] // height)
        with self.counted_loop("turn", self.cast_index("0"), trip_count, "1"):
            at = self.index_product("turn", str(height))
            self.emit(f"{rows} = {self.index_sum(f'{rows}_first', at)}")
            in_bounds = [f"{name} < {self.extent(self.axes[name])}" for name in (rows, lanes)]
            with self.indented(f"if {' and '.join(in_bounds)}:"), self.at_loop(s):
                for statement in preceding:
                    self.statement(statement)
                with self.at_loop(inner):
                    self.block(inner.body)

    def load_local(self, local: Local, offset: Value | None) -> str:
        assert offset is None  # the element is that of the current point
        return widen(self._element_of(local), local.dtype)

    def store_local(self, local: Local, offset: Value | None, value: str) -> None:
        assert offset is None
        self.set(self._element_of(local), narrow(value, local.dtype))

    def _element_of(self, local: Local) -> str:
        """The element of a local array at the current point; rows are padded by one element."""
        (row, _), (lane, size) = local.axes
        return f"{local.name}[({row} - {row}_start) * {size + 1} + {lane} - {lane}_start]"
