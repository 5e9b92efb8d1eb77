"""Prints maps in tiles: a block does one piece of two axes after the other, with local arrays.

    tile_id counts blocks:
        j0_start, i0_start = ...                    the piece
        for each nest of loops over both axes:      the outer along y, the inner along x
            if inside: ...
        barriers where one nest reads what another wrote

A local array of such a kernel lies in shared memory, with rows that are an element longer, so that
lanes that walk down a column are in different banks.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuflow.kir.nodes import Axis, Block, Copy, For, Load, Local, Statement, Store, Strip, Value
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.printing.point_printer import CudaPrinter
from gpuflow.targets.cuda.printing.scalar_text import STORAGE_BITS, narrow, widen
from gpuflow.targets.cuda.schedules.spread import POINT_THREADS


class TilePrinter(CudaPrinter):
    """Prints a kernel of strategy "tile": a nest of loops around two Strips."""

    def entry(self) -> None:
        self.unpack()
        self.in_points = True  # no other loop is shared
        side = self.launch.side
        for local in self.kernel.locals:
            kind = STORAGE_BITS.get(local.dtype, local.dtype)
            self.emit(f"{local.name} = shared_array(np.{kind}, {side * (side + 1)})")
        *outer, down, along = self.launch.points
        for axis in (down, along):
            pieces = f"({self.extent(axis)} + {side - 1}) >> {side.bit_length() - 1}"
            self.emit(f"{axis.name}_pieces = {self.index(pieces)}")
        count = self.index_product(f"{down.name}_pieces", f"{along.name}_pieces")
        self.emit(f"tile_count = {count}")
        for axis in outer:
            self.emit(f"tile_count = {self.index_product('tile_count', self.extent(axis))}")
        first, step = self.index("cuda.blockIdx.x"), self.index("cuda.gridDim.x")
        with self.counting("tile_id", first, "tile_count", step):
            self._start_of_tile(outer, down, along)
            self._inside(self.kernel.body)
            self.emit("barrier()")  # before the next tile is written

    def _start_of_tile(self, outer: Sequence[Axis], down: Axis, along: Axis) -> None:
        self.emit(f"rest, {along.name}_piece = split_index(tile_id, {along.name}_pieces)")
        if outer:
            self.emit(f"rest, {down.name}_piece = split_index(rest, {down.name}_pieces)")
            self.split("rest", outer)
        else:
            self.emit(f"{down.name}_piece = rest")
        for axis in (down, along):
            start = self.index_product(f"{axis.name}_piece", str(self.launch.side))
            self.emit(f"{axis.name}_start = {start}")

    def _inside(self, block: Block) -> None:
        """Print what stands in the loops around the Strips, whose indices are set."""
        *before, last = block.body
        for statement in before:
            self.statement(statement)
        if isinstance(last, For) and last.axis is not None:
            with self.at_point(self.axes[last.axis], last.body):
                self._inside(last.body)
            return
        self.statement(last)

    def strip(self, s: Strip) -> None:
        """The piece is the block's; nests of loops in the inner Strip follow each other."""
        waiting: set[str] = set()  # local arrays that were written and not waited for
        for statement in s.body.body:
            if isinstance(statement, Copy):
                statement = self.loops_of(statement)
            if waiting & _accessed(statement, Load):
                self.emit("barrier()")
                waiting.clear()
            self.statement(statement)
            waiting |= _accessed(statement, Store) & self.locals.keys()

    def loop(self, s: For) -> None:
        if s.axis is None:
            super().loop(s)
            return
        *before, inner = s.body.body
        assert isinstance(inner, For) and inner.axis is not None  # a nest of two
        rows, lanes = self.axes[s.axis], self.axes[inner.axis]
        side, height = self.launch.side, POINT_THREADS // self.launch.side
        lane = self.index_sum(f"{lanes.name}_start", self.index("cuda.threadIdx.x"))
        self.emit(f"{lanes.name} = {lane}")
        row = self.index_sum(f"{rows.name}_start", self.index("cuda.threadIdx.y"))
        self.emit(f"{rows.name}_first = {row}")
        with self.counting("turn", self.index("0"), str(side // height), "1"):
            at = self.index_product("turn", str(height))
            self.emit(f"{rows.name} = {self.index_sum(f'{rows.name}_first', at)}")
            inside = [f"{axis.name} < {self.extent(axis)}" for axis in (rows, lanes)]
            with self.indented(f"if {' and '.join(inside)}:"), self.at_point(rows, s.body):
                for statement in before:
                    self.statement(statement)
                with self.at_point(lanes, inner.body):
                    self.block(inner.body)

    def load_local(self, local: Local, offset: Value | None) -> str:
        assert offset is None  # tiles are accessed at points
        return widen(self._element_of(local), local.dtype)

    def store_local(self, local: Local, offset: Value | None, value: str) -> str:
        assert offset is None
        return f"{self._element_of(local)} = {narrow(value, local.dtype)}"

    def _element_of(self, local: Local) -> str:
        (row, _), (lane, _) = local.axes
        pitch = self.launch.side + 1
        return f"{local.name}[({row} - {row}_start) * {pitch} + {lane} - {lane}_start]"


def _accessed(statement: Statement, kind: type[Load] | type[Store]) -> set[str]:
    inside = statements(Block(body=(statement,)))
    return {s.operand for s in inside if isinstance(s, kind)}
