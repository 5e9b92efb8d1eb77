"""Prints map kernels whose threads handle several neighbouring points with 128-bit accesses.

    x_lanes = load_vector_readonly(x, i0, 4)
    lane_0 = each_element(x_lanes[0])
    ...
    store_vector(o, i0, (lane_0, lane_1, lane_2, lane_3))

The expression stands in a device function that is called once per lane: Numba types it once, which
takes a quarter of the time that the expression written out for every lane would.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuflow.base.records import record
from gpuflow.kir.nodes import Block, Load, Mode, Operand, Store
from gpuflow.targets.cuda.printing.phases import moves_as_vector
from gpuflow.targets.cuda.printing.point_printer import (
    CudaPrinter,
    CudaPrintError,
    Nest,
    captured_names,
)
from gpuflow.targets.cuda.printing.scalar_text import narrow, widen


@record
class Element:
    """The device function for one point: what its caller loads, stores and passes along."""

    loads: list[Operand]
    stores: list[Operand]
    captured: list[str]
    accesses: Block


class VectorPrinter(CudaPrinter):
    """Prints a kernel with ``launch.width`` > 1."""

    def points(self, nest: Nest) -> None:
        """With one axis, what is left after the last whole vector is done point by point."""
        axes, width = [axis for axis, _ in nest], self.launch.width
        last = axes[-1]
        self.emit(f"row_vectors = {self.index(f'{self.names.extent(last)} // {width}')}")
        self.emit("vector_count = row_vectors")
        for axis in axes[:-1]:
            count = self.index_product("vector_count", self.names.extent(axis))
            self.emit(f"vector_count = {count}")
        with self.counting("vector_id", "thread_id", "vector_count", "thread_count"):
            self.split("vector_id", axes, last_extent="row_vectors")
            self.emit(f"{last.name} = {self.index_product(last.name, str(width))}")
            self.inside(nest, self._vector_body)
        if len(axes) == 1:
            start = self.index_sum(self.index_product("vector_count", str(width)), "thread_id")
            with self.counting(last.name, start, self.extent(last), "thread_count"):
                self.inside(nest, self._tail_body)

    def inside(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        """As for single points, but the innermost axis is entered by ``print_body``.

        The device function enters it for itself, and the accesses around it enter it here.
        """
        (axis, body), *inner = nest
        if not inner:
            print_body(body)
            return
        with self.at_point(axis, body):
            for statement in body.body[:-1]:
                self.statement(statement)
            self.inside(inner, print_body)

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
        captured = captured_names(lines, self.known_names(), parameters)
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
