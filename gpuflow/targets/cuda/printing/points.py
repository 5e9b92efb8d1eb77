"""The emitter of kernels whose points are done by one thread each, one by one or in vectors.

Points may be pieces of two axes (``pieces``): then a block does each.

Several neighbors are read and written with 128-bit accesses where a schedule says so:

    x_lanes = load_vector_readonly(x, i0, 4)
    lane_0 = each_element(x_lanes[0])
    ...
    store_vector(o, i0, (lane_0, lane_1, lane_2, lane_3))

The expression stands in a device function that is called once per lane: Numba types it once, which
takes a quarter of the time that the expression written out for every lane would.

A segmented kernel has a table of argument blocks: a thread takes every ``thread_count``-th point of
all of them together, so that small segments are spread over the grid like large ones.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuflow.base.records import record
from gpuflow.kir.nodes import Block, Load, Mode, Operand, Store
from gpuflow.targets.cuda.printing import segments
from gpuflow.targets.cuda.printing.phases import moves_as_vector
from gpuflow.targets.cuda.printing.pieces import PiecePrinter
from gpuflow.targets.cuda.printing.point_printer import CudaPrintError, Nest
from gpuflow.targets.cuda.printing.scalar_text import narrow, widen
from gpuflow.targets.cuda.schedules.spread import ALONE_THREADS, axes_of


@record
class Element:
    """The device function for one point: what its caller loads, stores and passes along."""

    loads: list[Operand]
    stores: list[Operand]
    captured: list[str]
    accesses: Block


class PointPrinter(PiecePrinter):
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
        if self.launch.points and not self.launch.pieces:
            self._thread_names()
        self.block(self.kernel.body)

    def _thread_names(self) -> None:
        """Number the threads of the grid."""
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
            self._vector_points(nest)
        elif self.launch.pieces:
            first, step = map(self.index, self.grid)
            self._single_points(nest, first, step, self.piece)
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
        """A thread meets segments in order, so it only ever steps forward in the table."""
        self.emit("segment_id = np.int64(0)")
        self.emit("point_id = np.int64(thread_id)")
        self.emit("point_count = segment_table[1 + 2 * segment_table[0]]")
        with self.indented("while point_id < point_count:"):
            with self.indented("while point_id >= segment_table[3 + 2 * segment_id]:"):
                self.emit("segment_id = segment_id + 1")
            segments.unpack(self)
            self.block(self.kernel.body)

    def _segment_points(self, nest: Nest) -> None:
        """The points of this thread in the current segment."""
        (axis,) = axes_of(nest, self.axes)
        start, stop = self.index("point_id - segment_start"), self.extent(axis)
        with self.counting(axis.name, start, stop, "thread_count"):
            self.inside(nest, self.block)
        self.emit(f"point_id = segment_start + {axis.name}")

    # Vectors

    def _vector_points(self, nest: Nest) -> None:
        """With one axis, what is left after the last whole vector is done point by point."""
        axes, width = axes_of(nest, self.axes), self.launch.width
        last = axes[-1]
        self.emit(f"row_vectors = {self.index(f'{self.names.extent(last)} // {width}')}")
        self.emit("vector_count = row_vectors")
        for axis in axes[:-1]:
            count = self.index_product("vector_count", self.names.extent(axis))
            self.emit(f"vector_count = {count}")
        with self.counting("vector_id", "thread_id", "vector_count", "thread_count"):
            self.split("vector_id", axes, last_extent="row_vectors")
            self.emit(f"{last.name} = {self.index_product(last.name, str(width))}")
            self._outside_last(nest, self._vector_body)
        if len(axes) == 1:
            start = self.index_sum(self.index_product("vector_count", str(width)), "thread_id")
            with self.counting(last.name, start, self.extent(last), "thread_count"):
                self._outside_last(nest, self._tail_body)

    def _outside_last(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        """As for single points, but the innermost axis is entered by ``print_body``.

        The device function enters it for itself, and the accesses around it enter it here.
        """
        loop, *inner = nest
        if not inner:
            print_body(loop.body)
            return
        with self.at_loop(loop):
            for statement in loop.body.body[:-1]:
                self.statement(statement)
            self._outside_last(inner, print_body)

    def _vector_body(self, body: Block) -> None:
        element = self._element_function(body)
        with self.at_point(self.launch.points[-1], element.accesses):
            self._vector_accesses(element)

    def _vector_accesses(self, element: Element) -> None:
        width, last = self.launch.width, self.launch.points[-1].name
        for operand in element.loads:
            call = "load_vector_readonly" if operand.mode is Mode.IN else "load_vector"
            name, at = self.names.operand(operand.name), self.offsets[operand.name]
            self.emit(f"{name}_lanes = {call}({name}, {at}, {width})")
        for lane in range(width):
            loaded = [f"{self.names.operand(o.name)}_lanes[{lane}]" for o in element.loads]
            captured = [
                self.index_sum(last, str(lane)) if name == last and lane else name
                for name in element.captured
            ]
            self.emit(f"lane_{lane} = each_element({', '.join([*loaded, *captured])})")
        for operand, part in self._parts(element):
            name, at = self.names.operand(operand.name), self.offsets[operand.name]
            values = ", ".join(f"lane_{lane}{part}" for lane in range(width))
            self.emit(f"store_vector({name}, {at}, ({values}))")

    def _tail_body(self, body: Block) -> None:
        element = self._element_function(body)
        with self.at_point(self.launch.points[-1], element.accesses):
            self._tail_accesses(element)

    def _tail_accesses(self, element: Element) -> None:
        loaded = [self.raw_load(operand, self.offsets[operand.name]) for operand in element.loads]
        self.emit(f"lane_0 = each_element({', '.join([*loaded, *element.captured])})")
        for operand, part in self._parts(element):
            at = self.offsets[operand.name]
            self.emit(f"{self.names.operand(operand.name)}[{at}] = lane_0{part}")

    def _parts(self, element: Element) -> list[tuple[Operand, str]]:
        """Each stored operand and how its value is taken from a result of the device function."""
        if len(element.stores) == 1:
            return [(element.stores[0], "")]
        return [(operand, f"[{number}]") for number, operand in enumerate(element.stores)]

    def _element_function(self, body: Block) -> Element:
        """Print the device function for one point; the tail finds it printed already."""
        moved = [s for s in body.body if moves_as_vector(s, self.kernel)]
        loads = dict.fromkeys(s.operand for s in moved if isinstance(s, Load))
        stores = [s for s in moved if isinstance(s, Store)]
        rest = Block(body=tuple(s for s in body.body if s not in moved))
        with self.function_body() as lines, self.at_point(self.launch.points[-1], rest):
            for s in body.body:
                if s not in moved:
                    self.statement(s)
                elif isinstance(s, Load):
                    lane = widen(self._lane(s.operand), self.operands[s.operand].dtype)
                    self.emit(f"{self.value(s.out)} = {lane}")
            results = [narrow(self.value(s.value), self.operands[s.operand].dtype) for s in stores]
            self.emit(f"return {', '.join(results)}")
        parameters = [self._lane(name) for name in loads]
        captured = self.captured(body.body, moved, self.launch.points[-1:])
        head = f"def each_element({', '.join([*parameters, *captured])}):"
        text = "\n".join(["@device_function", head, *lines])
        self.helper("each_element", text)
        if self.helpers["each_element"] != text:
            raise CudaPrintError(
                f"[cuda] {self.kernel.name} must have one loop over points to use vectors; got "
                "two. Fix: print it with vectorize=False."
            )
        loaded = [self.operands[name] for name in loads]
        stored = [self.operands[s.operand] for s in stores]
        return Element(loaded, stored, captured, Block(body=tuple(moved)))

    def _lane(self, operand: str) -> str:
        return f"{self.names.operand(operand)}_lane"
