"""Printer of row kernels: a group of threads along the block's x computes one point.

If the schedule is vectorized, each thread accesses several neighbors with 128-bit loads and stores:

    x_lanes = load_vector_readonly(x, x_at_i1, 4)
    t5 = phase_0(t5, x_lanes, ...)      the lanes of a vector, one after the other

A row that several phases read is loaded once if it fits into the registers of its group, which
holds ``launch.register_vectors`` vectors per thread. The text also has a variant with loops that
load the row again in every phase. The length of the row selects the variant.

Tests: tests/targets/cuda/test_cuda_kernels.py, tests/targets/cuda/test_cuda_schedule.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from gpuflow.base.records import record
from gpuflow.kir.nodes import Axis, Block, For, Load, Mode, Operand, Reduce, Store
from gpuflow.kir.scalar import COMPONENT_DTYPES
from gpuflow.kir.walk import statements
from gpuflow.targets.cuda.codegen.printing.groups import GroupPrinter
from gpuflow.targets.cuda.codegen.printing.point_printer import Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen
from gpuflow.targets.cuda.codegen.printing.vector_accesses import is_vector_access
from gpuflow.targets.cuda.codegen.schedules.launch_config import MEMBER_ROLES, axes_of, perfect_nest

# Unroll factor of a full reduction: vectors of a thread in flight at once. Its grid is small. A
# multiprocessor gets 4.8 TB/s / 132, or 20 bytes a cycle. With a latency of some 800 cycles, it
# needs 16 KiB in flight.
VECTORS_IN_FLIGHT = 4


@record
class PhaseFunction:
    """The device function of a phase, which computes one vector.

    Attributes:
        name: name of the function.
        axes: axes of the phase, the innermost last.
        loads: operands whose vectors the caller loads and passes.
        stores: operands whose vectors the function returns and the caller stores.
        free_variables: variables of the kernel that the function takes as further arguments.
        accesses: the caller's loads and stores, for the offsets that it prints.
    """

    name: str
    axes: Sequence[Axis]
    loads: list[Operand]
    stores: list[Operand]
    free_variables: list[str]
    accesses: Block


class RowPrinter(GroupPrinter):
    """Prints a kernel of strategy "row"; if ``launch.vector_width`` is 1, without vectors.

    With vectors, ``launch_config.may_launch`` must have accepted the arguments: addresses and row
    strides of ``launch.vector_operands`` are multiples of a vector, as is the row's length.
    """

    is_row_in_registers = False  # whether statements are printed for the row in registers

    # Points

    def point_loop(self, nest: Nest) -> None:
        if self.launch.vector_width > 1:
            self.count_vectors()
        super().point_loop(nest)

    def nest_body(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        in_point = self.is_at_point and not self.members_diverge and len(nest) == 1
        super().nest_body(
            nest, self._both_variants if in_point and self.launch.register_vectors else print_body
        )

    def name_members(self) -> None:
        super().name_members()
        if self.launch.vector_width > 1 and not self.launch.point_axes:
            self.count_vectors()

    def count_vectors(self) -> None:
        """Print the number of vectors in a row, and along its last axis."""
        axes, width = self.launch.member_axes, self.launch.vector_width
        self.emit(f"last_vectors = {self.cast_index(f'{self.names.extent(axes[-1])} // {width}')}")
        self.emit("row_vectors = last_vectors")
        for axis in axes[:-1]:
            count = self.index_product("row_vectors", self.names.extent(axis))
            self.emit(f"row_vectors = {count}")

    def _both_variants(self, block: Block) -> None:
        """Print both variants of a point: with the row in registers, and from memory.

        A row of several axes must not be empty in the first one, which divides by the length of an
        axis. In the second one, the loops of an empty row have no iteration.
        """
        capacity = self.index_product("member_count", str(self.launch.register_vectors))
        lower_bound = "0 < " if len(self.launch.member_axes) > 1 else ""
        with self.indented(f"if {lower_bound}row_vectors <= {capacity}:"):
            self._load_row(block)
            self.is_row_in_registers = True
            self.block(block)
            self.is_row_in_registers = False
        with self.indented("else:"):
            self.block(block)

    def _load_row(self, block: Block) -> None:
        """Print the loads of a thread's vectors of the row; they overlap."""
        loads = {s.operand: s for s in statements(block) if isinstance(s, Load)}
        accesses = Block(body=tuple(loads[name] for name in self.launch.register_operands))
        for vector_index in range(self.launch.register_vectors):
            distance = self.index_product("member_count", str(vector_index))
            self.emit(f"vector_{vector_index} = {self.index_sum('member_id', distance)}")
            with self._at_vector(self.launch.member_axes, f"vector_{vector_index}", accesses):
                for name in self.launch.register_operands:
                    operand, at = self.operands[name], self.offsets[name]
                    pointer = self.names.operand(name)
                    call = f"{self._bounded_load(operand)}({pointer}, {at}, "
                    in_row = f"vector_{vector_index} < row_vectors"
                    self.emit(f"{pointer}_kept_{vector_index} = {call}{in_row})")

    def _bounded_load(self, operand: Operand) -> str:
        """Print the function that loads a vector, or gives zeros past the row; returns its name."""
        bits = STORAGE_BITS.get(operand.dtype, COMPONENT_DTYPES.get(operand.dtype, operand.dtype))
        width, function_name = self.launch.vector_width, f"load_inside_{bits}"
        zeros = ", ".join([f"np.{bits}(0)"] * width)
        source = [
            "@device_function",
            f"def {function_name}(pointer, place, inside):",
            "    if inside:",
            f"        return load_vector_readonly(pointer, place, {width})",
            f"    return ({zeros})",
        ]
        self.add_helper(function_name, "\n".join(source))
        return function_name

    # Phases

    def loop(self, s: For) -> None:
        if self.launch.vector_width == 1 or s.axis is None or not self.is_distributed(s.axis):
            super().loop(s)
            return
        self._barrier_before_inplace_stores(s.body)
        nest = perfect_nest(s, self.axes, MEMBER_ROLES)
        phase = self._phase(axes_of(nest, self.axes), [nest[-1].body], [])
        self._over_vectors(phase, [])

    def partial_reduces(self, reduces: Sequence[Reduce]) -> None:
        if self.launch.vector_width == 1 or not reduces:
            super().partial_reduces(reduces)
            return
        self.begin_reduces(reduces)
        axes = [axis for axis in self.kernel.axes if axis.name in reduces[0].axes]
        phase = self._phase(axes, [s.body for s in reduces], reduces)
        self._over_vectors(phase, [out for s in reduces for out in self.results(s)])

    def _over_vectors(self, phase: PhaseFunction, sums: Sequence[str]) -> None:
        """Print the calls of a phase for all vectors of this member.

        Args:
            phase: the phase.
            sums: variables of the reductions' results, which it updates.
        """
        self.members_diverge = True
        if self.is_row_in_registers:
            for number in range(self.launch.register_vectors):
                with self.indented(f"if vector_{number} < row_vectors:"):
                    self._print_vector(phase, f"vector_{number}", sums, number)
        else:
            self.emit("vector_id = member_id")
            if self.launch.strategy == "full" and not phase.stores:
                self._overlap_loads(phase, sums)
            with self.indented("while vector_id < row_vectors:"):
                self._print_vector(phase, "vector_id", sums, None)
                self.emit(f"vector_id = {self.index_sum('vector_id', 'member_count')}")
        self.members_diverge = False

    def _overlap_loads(self, phase: PhaseFunction, sums: Sequence[str]) -> None:
        """Print an unrolled loop: it loads ``VECTORS_IN_FLIGHT`` vectors, then uses the first.

        The phase must have no stores: loads of later vectors move before the uses of earlier ones.
        """
        for number in range(1, VECTORS_IN_FLIGHT):
            distance = "member_count"
            if number > 1:
                distance = self.index_sum(f"ahead_{number - 1}", "member_count")
            self.emit(f"ahead_{number} = {distance}")
        vectors = [f"vector_{number}" for number in range(VECTORS_IN_FLIGHT)]
        last = self.index_sum("vector_id", f"ahead_{VECTORS_IN_FLIGHT - 1}")
        with self.indented(f"while {last} < row_vectors:"):
            for number, vector in enumerate(vectors):
                index = self.index_sum("vector_id", f"ahead_{number}") if number else "vector_id"
                self.emit(f"{vector} = {index}")
                with self._at_vector(phase.axes, vector, phase.accesses):
                    for operand in phase.loads:
                        self._load_lanes(operand, f"_{number}")
            for number, vector in enumerate(vectors):
                lanes = [f"{self._lanes_variable(operand)}_{number}" for operand in phase.loads]
                if any(axis.name in phase.free_variables for axis in phase.axes):
                    with self._at_vector(phase.axes, vector, Block(body=())):
                        self._call_phase(phase, lanes, sums)
                else:
                    self._call_phase(phase, lanes, sums)
            self.emit(f"vector_id = {self.index_sum(last, 'member_count')}")

    def _print_vector(
        self, phase: PhaseFunction, vector: str, sums: Sequence[str], register: int | None
    ) -> None:
        """Print a phase of one vector.

        Args:
            phase, sums: as for ``_over_vectors``.
            vector: variable of the vector's index in the row.
            register: ordinal of the vector in the thread's registers; None: it is in memory.
        """
        with self._at_vector(phase.axes, vector, phase.accesses):
            lanes = []
            for operand in phase.loads:
                if register is not None and operand.name in self.launch.register_operands:
                    lanes.append(f"{self.names.operand(operand.name)}_kept_{register}")
                    continue
                self._load_lanes(operand, "")
                lanes.append(self._lanes_variable(operand))
            self._call_phase(phase, lanes, sums)
            for number, operand in enumerate(phase.stores):
                name, at = self.names.operand(operand.name), self.offsets[operand.name]
                self.emit(f"store_vector({name}, {at}, new_lanes_{number})")

    def _call_phase(self, phase: PhaseFunction, lanes: Sequence[str], sums: Sequence[str]) -> None:
        results = [*sums, *(f"new_lanes_{number}" for number in range(len(phase.stores)))]
        arguments = ", ".join([*sums, *lanes, *phase.free_variables])
        self.emit(f"{', '.join(results)} = {phase.name}({arguments})")

    def _load_lanes(self, operand: Operand, suffix: str) -> None:
        call = "load_vector_readonly" if operand.mode is Mode.IN else "load_vector"
        name, at = self.names.operand(operand.name), self.offsets[operand.name]
        width = self.launch.vector_width
        self.emit(f"{self._lanes_variable(operand)}{suffix} = {call}({name}, {at}, {width})")

    def _lanes_variable(self, operand: Operand) -> str:
        return f"{self.names.operand(operand.name)}_lanes"

    @contextmanager
    def _at_vector(self, axes: Sequence[Axis], vector: str, accesses: Block) -> Iterator[None]:
        """Print the indices of a vector's first element, and the offsets of ``accesses``.

        ``vector`` is the variable of its index in the row; ``axes`` must not be empty.
        """
        last = axes[-1].name
        self.unravel(vector, axes, last_extent="last_vectors")
        self.emit(f"{last} = {self.index_product(last, str(self.launch.vector_width))}")
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.at_point(axis, accesses))
            yield

    # Device functions

    def _phase(
        self, axes: Sequence[Axis], bodies: Sequence[Block], reduces: Sequence[Reduce]
    ) -> PhaseFunction:
        """Print the device functions of a phase: for one element, and for one vector."""
        vector_accesses = [s for b in bodies for s in b.body if is_vector_access(s, self.kernel)]
        loads = [
            self.operands[name]
            for name in dict.fromkeys(s.operand for s in vector_accesses if isinstance(s, Load))
        ]
        stores = [self.operands[s.operand] for s in vector_accesses if isinstance(s, Store)]
        lanes = [f"{self.names.operand(operand.name)}_lane" for operand in loads]
        suite = self._element_suite(axes, bodies, vector_accesses, reduces)
        items = [s for body in bodies for s in body.body]
        free_variables = self.free_variables(items, vector_accesses, axes)
        head = f"def element({', '.join([*lanes, *free_variables])}):"
        element = self._add_numbered_function("element", [head, *suite])
        vector = self._vector_source(
            element, axes[-1].name, loads, free_variables, reduces, len(stores)
        )
        name = self._add_numbered_function("phase", vector)
        return PhaseFunction(
            name, axes, loads, stores, free_variables, Block(body=tuple(vector_accesses))
        )

    def _element_suite(
        self,
        axes: Sequence[Axis],
        bodies: Sequence[Block],
        vector_accesses: Sequence[Load | Store],
        reduces: Sequence[Reduce],
    ) -> list[str]:
        """The body of the function for one element: it returns stored values, then reduced ones."""
        other_statements = Block(
            body=tuple(s for b in bodies for s in b.body if s not in vector_accesses)
        )
        results = []
        with self.function_body() as suite, ExitStack() as stack:
            self.members_diverge = True
            for axis in axes:
                stack.enter_context(self.at_point(axis, other_statements))
            for s in (s for body in bodies for s in body.body):
                if isinstance(s, Store):
                    results.append(narrow(self.value(s.value), self.operands[s.operand].dtype))
                elif isinstance(s, Load) and s in vector_accesses:
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
        innermost: str,
        loads: Sequence[Operand],
        free_variables: Sequence[str],
        reduces: Sequence[Reduce],
        store_count: int,
    ) -> list[str]:
        """The text of the function for one vector, head first.

        Args:
            element: name of the function for one element.
            innermost: name of the axis along which the lanes are neighbors.
            loads: operands whose vectors are parameters.
            free_variables: further parameters, variables of the kernel.
            reduces: reductions whose running values the function takes and returns.
            store_count: number of stored vectors that it returns.
        """
        width, sum_count = self.launch.vector_width, sum(len(s.outs) for s in reduces)
        sums = [f"sum_{number}" for number in range(sum_count)]
        lanes = [self._lanes_variable(operand) for operand in loads]
        text = [f"def phase({', '.join([*sums, *lanes, *free_variables])}):"]
        combines = [(self.combine_function(s), len(s.outs)) for s in reduces]
        for lane in range(width):
            new = [f"new_{number}_{lane}" for number in range(store_count + sum_count)]
            arguments = [f"{name}[{lane}]" for name in lanes]
            arguments += [
                self.index_sum(name, str(lane)) if name == innermost and lane else name
                for name in free_variables
            ]
            text.append(f"    {', '.join(new)} = {element}({', '.join(arguments)})")
            first = 0
            for combine, outs in combines:
                totals, added = sums[first : first + outs], new[store_count + first :][:outs]
                text.append(f"    {', '.join(totals)} = {combine}({', '.join([*totals, *added])})")
                first += outs
        tuples = [
            f"({', '.join(f'new_{number}_{lane}' for lane in range(width))})"
            for number in range(store_count)
        ]
        text.append(f"    return {', '.join([*sums, *tuples])}")
        return text

    def _add_numbered_function(self, kind: str, source: Sequence[str]) -> str:
        """Print a device function, unless one of the same text exists; returns its name.

        Args:
            kind: stem of the name, which ``source`` defines: ``def {kind}(``.
            source: lines of the function.
        """
        existing = [name for name in self.helpers if name.startswith(f"{kind}_")]
        for number in range(len(existing) + 1):
            name = f"{kind}_{number}"
            head = source[0].replace(f"def {kind}(", f"def {name}(", 1)
            text = "\n".join(["@device_function", head, *source[1:]])
            if self.helpers.setdefault(name, text) == text:
                return name
        raise AssertionError(kind)
