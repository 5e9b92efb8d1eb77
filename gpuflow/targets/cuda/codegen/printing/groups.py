"""Printer of row kernels: a group of threads along the block's x computes one point.

If the schedule is vectorized, each thread accesses several neighbors with 128-bit loads and stores:

    x_lanes = load_vector_readonly(x, x_at_i1, 4)
    t5 = phase_0(t5, x_lanes, ...)      the lanes of a vector, one after the other

A row that several phases read is loaded once if it fits into the registers of its group:
``launch.tile`` vectors per thread. The text also has a variant with loops that load the row again
in every phase. The length of the row selects one of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpuflow.base.records import record
from gpuflow.kir.nodes import Axis, Block, For, Load, Mode, Operand, Reduce, Store
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.codegen.printing.members import MemberPrinter
from gpuflow.targets.cuda.codegen.printing.phases import moves_as_vector
from gpuflow.targets.cuda.codegen.printing.point_printer import Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, axes_of, perfect_nest

# Unroll factor of a full reduction: vectors of a thread in flight at once. Its grid is small. A
# multiprocessor gets 4.8 TB/s / 132, or 20 bytes a cycle. With a latency of some 800 cycles, it
# needs 16 KiB in flight.
IN_FLIGHT = 4


@record
class VectorPhase:
    """The device function of a phase, which computes one vector.

    Attributes:
        name: name of the function.
        axes: axes of the phase, the innermost last.
        loads: operands whose vectors the caller loads and passes.
        stores: operands whose vectors the function returns and the caller stores.
        captured: variables of the kernel that the function takes as further arguments.
        accesses: those loads and stores, for the offsets that the caller prints.
    """

    name: str
    axes: Sequence[Axis]
    loads: list[Operand]
    stores: list[Operand]
    captured: list[str]
    accesses: Block


class GroupPrinter(MemberPrinter):
    """Prints a kernel of strategy "row"; if ``launch.width`` is 1, without vectors."""

    from_registers = False  # the printed variant has the row in registers

    # Points

    def points(self, nest: Nest) -> None:
        if self.launch.width > 1:
            self.count_vectors()
        super().points(nest)

    def inside(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        in_point = self.in_points and not self.members_diverge and len(nest) == 1
        super().inside(nest, self._point if in_point and self.launch.tile else print_body)

    def member_names(self) -> None:
        super().member_names()
        if self.launch.width > 1 and not self.launch.points:
            self.count_vectors()

    def count_vectors(self) -> None:
        """Print the number of vectors in a row, and along its last axis."""
        axes, width = self.launch.members, self.launch.width
        self.emit(f"last_vectors = {self.index(f'{self.names.extent(axes[-1])} // {width}')}")
        self.emit("row_vectors = last_vectors")
        for axis in axes[:-1]:
            count = self.index_product("row_vectors", self.names.extent(axis))
            self.emit(f"row_vectors = {count}")

    def _point(self, block: Block) -> None:
        """Print both variants of a point: with the row in registers, and from memory.

        A row of several axes must not be empty in the first one, which divides by the length of an
        axis. In the second one, the loops of an empty row have no iteration.
        """
        capacity = self.index_product("member_count", str(self.launch.tile))
        least = "0 < " if len(self.launch.members) > 1 else ""
        with self.indented(f"if {least}row_vectors <= {capacity}:"):
            self._load_row(block)
            self.from_registers = True
            self.block(block)
            self.from_registers = False
        with self.indented("else:"):
            self.block(block)

    def _load_row(self, block: Block) -> None:
        """Print the loads of a thread's vectors of the row; they overlap."""
        loads = {s.operand: s for s in statements(block) if isinstance(s, Load)}
        accesses = Block(body=tuple(loads[name] for name in self.launch.register_operands))
        for number in range(self.launch.tile):
            earlier = self.index_product("member_count", str(number))
            self.emit(f"vector_{number} = {self.index_sum('member_id', earlier)}")
            with self._at(self.launch.members, f"vector_{number}", accesses):
                for name in self.launch.register_operands:
                    operand, at = self.operands[name], self.offsets[name]
                    pointer = self.names.operand(name)
                    call = f"{self._bounded_load(operand)}({pointer}, {at}, "
                    self.emit(f"{pointer}_kept_{number} = {call}vector_{number} < row_vectors)")

    def _bounded_load(self, operand: Operand) -> str:
        """Print the function that loads a vector, or gives zeros past the row; returns its name."""
        bits = STORAGE_BITS.get(operand.dtype, COMPONENT_DTYPES.get(operand.dtype, operand.dtype))
        width, name = self.launch.width, f"load_inside_{bits}"
        zeros = ", ".join([f"np.{bits}(0)"] * width)
        source = [
            "@device_function",
            f"def {name}(pointer, place, inside):",
            "    if inside:",
            f"        return load_vector_readonly(pointer, place, {width})",
            f"    return ({zeros})",
        ]
        self.helper(name, "\n".join(source))
        return name

    # Phases

    def loop(self, s: For) -> None:
        if self.launch.width == 1 or s.axis is None or not self.is_distributed(s.axis):
            super().loop(s)
            return
        self._barrier_before_inplace_stores(s.body)
        nest = perfect_nest(s, self.axes, MEMBER_ROLES)
        phase = self._phase(axes_of(nest, self.axes), [nest[-1].body], [])
        self._over_vectors(phase, [])

    def partial_reduces(self, reduces: Sequence[Reduce]) -> None:
        if self.launch.width == 1 or not reduces:
            super().partial_reduces(reduces)
            return
        self.begin_reduces(reduces)
        axes = [axis for axis in self.kernel.axes if axis.name in reduces[0].axes]
        phase = self._phase(axes, [s.body for s in reduces], reduces)
        self._over_vectors(phase, [out for s in reduces for out in self.results(s)])

    def _over_vectors(self, phase: VectorPhase, sums: Sequence[str]) -> None:
        """Print the calls of a phase for all vectors of this member.

        Args:
            phase: the phase.
            sums: variables of the reductions' results, which it updates.
        """
        self.members_diverge = True
        if self.from_registers:
            for number in range(self.launch.tile):
                with self.indented(f"if vector_{number} < row_vectors:"):
                    self._run(phase, f"vector_{number}", sums, number)
        else:
            self.emit("vector_id = member_id")
            if self.launch.strategy == "full" and not phase.stores:
                self._overlap_loads(phase, sums)
            with self.indented("while vector_id < row_vectors:"):
                self._run(phase, "vector_id", sums, None)
                self.emit(f"vector_id = {self.index_sum('vector_id', 'member_count')}")
        self.members_diverge = False

    def _overlap_loads(self, phase: VectorPhase, sums: Sequence[str]) -> None:
        """Print an unrolled loop that loads ``IN_FLIGHT`` vectors before it uses the first."""
        for number in range(1, IN_FLIGHT):
            before = "member_count" if number == 1 else f"ahead_{number - 1}"
            ahead = before if number == 1 else self.index_sum(before, "member_count")
            self.emit(f"ahead_{number} = {ahead}")
        vectors = [f"vector_{number}" for number in range(IN_FLIGHT)]
        last = self.index_sum("vector_id", f"ahead_{IN_FLIGHT - 1}")
        with self.indented(f"while {last} < row_vectors:"):
            for number, vector in enumerate(vectors):
                ahead = self.index_sum("vector_id", f"ahead_{number}") if number else "vector_id"
                self.emit(f"{vector} = {ahead}")
                with self._at(phase.axes, vector, phase.accesses):
                    for operand in phase.loads:
                        self._load_lanes(operand, f"_{number}")
            for number, vector in enumerate(vectors):
                lanes = [f"{self._lanes(operand)}_{number}" for operand in phase.loads]
                if any(axis.name in phase.captured for axis in phase.axes):
                    with self._at(phase.axes, vector, Block(body=())):
                        self._call(phase, lanes, sums)
                else:
                    self._call(phase, lanes, sums)
            self.emit(f"vector_id = {self.index_sum(last, 'member_count')}")

    def _run(
        self, phase: VectorPhase, vector: str, sums: Sequence[str], register: int | None
    ) -> None:
        """Print a phase of one vector.

        Args:
            phase, sums: as for ``_over_vectors``.
            vector: variable of the vector's index in the row.
            register: ordinal of the vector in the thread's registers; None: it is in memory.
        """
        with self._at(phase.axes, vector, phase.accesses):
            lanes = []
            for operand in phase.loads:
                if register is not None and operand.name in self.launch.register_operands:
                    lanes.append(f"{self.names.operand(operand.name)}_kept_{register}")
                    continue
                self._load_lanes(operand, "")
                lanes.append(self._lanes(operand))
            self._call(phase, lanes, sums)
            for number, operand in enumerate(phase.stores):
                name, at = self.names.operand(operand.name), self.offsets[operand.name]
                self.emit(f"store_vector({name}, {at}, new_lanes_{number})")

    def _call(self, phase: VectorPhase, lanes: Sequence[str], sums: Sequence[str]) -> None:
        results = [*sums, *(f"new_lanes_{number}" for number in range(len(phase.stores)))]
        arguments = ", ".join([*sums, *lanes, *phase.captured])
        self.emit(f"{', '.join(results)} = {phase.name}({arguments})")

    def _load_lanes(self, operand: Operand, suffix: str) -> None:
        call = "load_vector_readonly" if operand.mode is Mode.IN else "load_vector"
        name, at = self.names.operand(operand.name), self.offsets[operand.name]
        self.emit(f"{self._lanes(operand)}{suffix} = {call}({name}, {at}, {self.launch.width})")

    def _lanes(self, operand: Operand) -> str:
        return f"{self.names.operand(operand.name)}_lanes"

    @contextmanager
    def _at(self, axes: Sequence[Axis], vector: str, accesses: Block) -> Iterator[None]:
        """Print the indices of a vector's first element, and the offsets of ``accesses``."""
        last = axes[-1].name
        self.split(vector, axes, last_extent="last_vectors")
        self.emit(f"{last} = {self.index_product(last, str(self.launch.width))}")
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.at_point(axis, accesses))
            yield

    # Device functions

    def _phase(
        self, axes: Sequence[Axis], bodies: Sequence[Block], reduces: Sequence[Reduce]
    ) -> VectorPhase:
        """Print the device functions of a phase: for one element, and for one vector."""
        moved = [s for b in bodies for s in b.body if moves_as_vector(s, self.kernel)]
        loads = [
            self.operands[name]
            for name in dict.fromkeys(s.operand for s in moved if isinstance(s, Load))
        ]
        stores = [self.operands[s.operand] for s in moved if isinstance(s, Store)]
        lanes = [f"{self.names.operand(operand.name)}_lane" for operand in loads]
        suite = self._element_suite(axes, bodies, moved, reduces)
        items = [s for body in bodies for s in body.body]
        captured = self.captured(items, moved, axes)
        head = f"def element({', '.join([*lanes, *captured])}):"
        element = self._function("element", [head, *suite])
        vector = self._vector_source(element, axes[-1].name, loads, captured, reduces, len(stores))
        name = self._function("phase", vector)
        return VectorPhase(name, axes, loads, stores, captured, Block(body=tuple(moved)))

    def _element_suite(
        self,
        axes: Sequence[Axis],
        bodies: Sequence[Block],
        moved: Sequence[Load | Store],
        reduces: Sequence[Reduce],
    ) -> list[str]:
        """The body of the function for one element: it returns stored values, then reduced ones."""
        rest = Block(body=tuple(s for b in bodies for s in b.body if s not in moved))
        results = []
        with self.function_body() as suite, ExitStack() as stack:
            self.members_diverge = True
            for axis in axes:
                stack.enter_context(self.at_point(axis, rest))
            for s in (s for body in bodies for s in body.body):
                if isinstance(s, Store):
                    results.append(narrow(self.value(s.value), self.operands[s.operand].dtype))
                elif isinstance(s, Load) and s in moved:
                    lane = f"{self.names.operand(s.operand)}_lane"
                    stored = widen(lane, self.operands[s.operand].dtype)
                    self.emit(f"{self.value(s.out)} = {stored}")
                else:
                    self.statement(s)
            results += [self.value(v) for s in reduces for v in s.body.results]
            self.emit(f"return {', '.join(results)}")
            self.members_diverge = False
        return suite

    def _vector_source(
        self,
        element: str,
        last: str,
        loads: Sequence[Operand],
        captured: Sequence[str],
        reduces: Sequence[Reduce],
        stores: int,
    ) -> list[str]:
        """The text of the function for one vector, head first."""
        width, sum_count = self.launch.width, sum(len(s.outs) for s in reduces)
        sums = [f"sum_{number}" for number in range(sum_count)]
        lanes = [self._lanes(operand) for operand in loads]
        text = [f"def phase({', '.join([*sums, *lanes, *captured])}):"]
        combines = [(self.combine_function(s), len(s.outs)) for s in reduces]
        for lane in range(width):
            new = [f"new_{number}_{lane}" for number in range(stores + sum_count)]
            arguments = [f"{name}[{lane}]" for name in lanes]
            arguments += [
                self.index_sum(name, str(lane)) if name == last and lane else name
                for name in captured
            ]
            text.append(f"    {', '.join(new)} = {element}({', '.join(arguments)})")
            first = 0
            for combine, outs in combines:
                totals, added = sums[first : first + outs], new[stores + first :][:outs]
                text.append(f"    {', '.join(totals)} = {combine}({', '.join([*totals, *added])})")
                first += outs
        tuples = [
            f"({', '.join(f'new_{number}_{lane}' for lane in range(width))})"
            for number in range(stores)
        ]
        text.append(f"    return {', '.join([*sums, *tuples])}")
        return text

    def _function(self, kind: str, source: Sequence[str]) -> str:
        """Print a device function, unless one of the same text exists; returns its name."""
        existing = [name for name in self.helpers if name.startswith(f"{kind}_")]
        for number in range(len(existing) + 1):
            name = f"{kind}_{number}"
            head = source[0].replace(f"def {kind}(", f"def {name}(", 1)
            text = "\n".join(["@device_function", head, *source[1:]])
            if self.helpers.setdefault(name, text) == text:
                return name
        raise AssertionError(kind)
