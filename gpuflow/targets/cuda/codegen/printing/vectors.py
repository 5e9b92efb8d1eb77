"""Printer of maps whose threads compute vectors of points: neighbors along the innermost axis.

A thread loads and stores them with 128-bit accesses:

    x_lanes = load_vector_readonly(x, i0, 4)
    lane_0 = each_element(x_lanes[0])
    ...
    store_vector(o, i0, (lane_0, lane_1, lane_2, lane_3))

The expression is in a device function that is called once per lane. Numba then types it once,
which takes a quarter of the time of the unrolled expression.

A load at a computed offset is a vector load too, if sizes and addresses are multiples of the
vector's (``computed_loads``). Kernels test that once, and else load element by element:

    if whole_vectors:
        if i0 < s0:
            t4_lanes = load_vector_readonly(x, i0, 4)
        else:
            t4_lanes = load_vector_readonly(y, i0 - s0, 4)
    else:
        t4_lanes = (t4_element(i0), t4_element(i0 + 1), ...)

Tests: tests/targets/cuda/test_gpu_computed_loads.py, tests/targets/cuda/test_cuda_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuflow.base.records import record
from gpuflow.kir.nodes import Block, Kernel, Load, Mode, Operand, Statement, Store
from gpuflow.kir.scalar import storage_bytes
from gpuflow.kir.walk import live_statements, results_of
from gpuflow.targets.cuda.codegen.printing.block_tiles import BlockTilePrinter
from gpuflow.targets.cuda.codegen.printing.computed_loads import ComputedLoad, computed_loads
from gpuflow.targets.cuda.codegen.printing.point_printer import CudaPrintError, Nest
from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen
from gpuflow.targets.cuda.codegen.printing.vector_accesses import is_vector_access
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig, axes_of
from gpuflow.targets.printer import constant


@record
class ElementFunction:
    """The device function ``each_element``, which computes one point.

    Attributes:
        loads: operands whose elements the caller loads and passes.
        computed_loads: loads at computed offsets, each with the parameters of its device function.
        stores: operands whose elements the function returns and the caller stores.
        free_variables: variables of the kernel that the function takes as further arguments.
        accesses: the caller's loads and stores, for the offsets that it prints.
    """

    loads: list[Operand]
    computed_loads: list[tuple[ComputedLoad, list[str]]]
    stores: list[Operand]
    free_variables: list[str]
    accesses: Block


class VectorPrinter(BlockTilePrinter):
    """Prints the loop over points if ``launch.vector_width`` > 1.

    ``launch_config.may_launch`` must have accepted the arguments of such a kernel: addresses of
    ``launch.vector_operands`` are multiples of a vector.
    """

    def __init__(self, kernel: Kernel, launch: LaunchConfig) -> None:
        super().__init__(kernel, launch)
        self._computed_loads: list[ComputedLoad] = []
        self._raw_widths: dict[int, int] = {}  # elements per load in storage dtype, by value number

    def vector_points(self, nest: Nest) -> None:
        """Print the loop over vectors; for a single axis, a remainder loop follows.

        With more axes, ``may_launch`` requires that the last extent is a multiple of the width.
        """
        axes, width = axes_of(nest, self.axes), self.launch.vector_width
        last = axes[-1]
        self.emit(f"row_vectors = {self.cast_index(f'{self.names.extent(last)} // {width}')}")
        self.emit("vector_count = row_vectors")
        for axis in axes[:-1]:
            count = self.index_product("vector_count", self.names.extent(axis))
            self.emit(f"vector_count = {count}")
        self._computed_loads = computed_loads(self.kernel, nest[-1].body, width)
        self._test_whole_vectors()
        with self.counted_loop("vector_id", "thread_id", "vector_count", "thread_count"):
            self.unravel("vector_id", axes, last_extent="row_vectors")
            self.emit(f"{last.name} = {self.index_product(last.name, str(width))}")
            self._enter_outer_axes(nest, self._vector_body)
        if len(axes) == 1:
            start = self.index_sum(self.index_product("vector_count", str(width)), "thread_id")
            with self.counted_loop(last.name, start, self.extent(last), "thread_count"):
                self._enter_outer_axes(nest, self._remainder_body)

    def _enter_outer_axes(self, nest: Nest, print_body: Callable[[Block], None]) -> None:
        """Print the statements of the outer loops; ``print_body`` must enter the innermost one.

        Device function and caller each enter it for their own accesses.
        """
        loop, *inner = nest
        if not inner:
            print_body(loop.body)
            return
        with self.at_loop(loop):
            for statement in loop.body.body[:-1]:
                self.statement(statement)
            self._enter_outer_axes(inner, print_body)

    def _vector_body(self, body: Block) -> None:
        """Print the computation of one vector of points."""
        element = self._element_function(body)
        with self.at_point(self.launch.point_axes[-1], element.accesses):
            self._vector_accesses(element)

    def _vector_accesses(self, element: ElementFunction) -> None:
        width = self.launch.vector_width
        for operand in element.loads:
            call = "load_vector_readonly" if operand.mode is Mode.IN else "load_vector"
            name, at = self.names.operand(operand.name), self.offsets[operand.name]
            self.emit(f"{name}_lanes = {call}({name}, {at}, {width})")
        for load, free_variables in element.computed_loads:
            self._computed_lanes(load, free_variables)
        names = [self.names.operand(o.name) for o in element.loads]
        names += [self.value(load.out) for load, _ in element.computed_loads]
        for lane in range(width):
            loaded = [f"{name}_lanes[{lane}]" for name in names]
            free_variables = self._lane_arguments(element.free_variables, lane)
            self.emit(f"lane_{lane} = each_element({', '.join([*loaded, *free_variables])})")
        for operand, suffix in self._stored_results(element):
            name, at = self.names.operand(operand.name), self.offsets[operand.name]
            values = ", ".join(f"lane_{lane}{suffix}" for lane in range(width))
            self.emit(f"store_vector({name}, {at}, ({values}))")

    def _lane_arguments(self, free_variables: Sequence[str], lane: int) -> list[str]:
        """Arguments of lane ``lane`` for parameters: it is added to the index of the last axis."""
        last = self.launch.point_axes[-1].name
        return [
            self.index_sum(last, str(lane)) if n == last and lane else n for n in free_variables
        ]

    def _remainder_body(self, body: Block) -> None:
        """Print the computation of one point of the remainder loop."""
        element = self._element_function(body)
        with self.at_point(self.launch.point_axes[-1], element.accesses):
            self._remainder_accesses(element)

    def _remainder_accesses(self, element: ElementFunction) -> None:
        loaded = [self.raw_load(operand, self.offsets[operand.name]) for operand in element.loads]
        loaded += [self._computed_element(*load, 0) for load in element.computed_loads]
        self.emit(f"lane_0 = each_element({', '.join([*loaded, *element.free_variables])})")
        for operand, suffix in self._stored_results(element):
            at = self.offsets[operand.name]
            self.emit(f"{self.names.operand(operand.name)}[{at}] = lane_0{suffix}")

    def _stored_results(self, element: ElementFunction) -> list[tuple[Operand, str]]:
        """Each stored operand, and the subscript of its value in the result of ``each_element``."""
        if len(element.stores) == 1:
            return [(element.stores[0], "")]
        return [(operand, f"[{number}]") for number, operand in enumerate(element.stores)]

    def _element_function(self, body: Block) -> ElementFunction:
        """Print the device function for one point; the remainder loop reuses it.

        Raises CudaPrintError if the module has another one, for another loop over points.
        """
        computed = [(load, self._computed_function(load)) for load in self._computed_loads]
        dtypes = {self.value(load.out): load.operand.dtype for load in self._computed_loads}
        body = Block(body=live_statements([s for s in body.body if not self._is_computed(s)]))
        vector_accesses = [s for s in body.body if is_vector_access(s, self.kernel)]
        loads = dict.fromkeys(s.operand for s in vector_accesses if isinstance(s, Load))
        stores = [s for s in vector_accesses if isinstance(s, Store)]
        other_statements = Block(body=tuple(s for s in body.body if s not in vector_accesses))
        with (
            self.function_body() as suite,
            self.at_point(self.launch.point_axes[-1], other_statements),
        ):
            for value, dtype in dtypes.items():
                self.emit(f"{value} = {widen(f'{value}_lane', dtype)}")
            for s in body.body:
                if s not in vector_accesses:
                    self.statement(s)
                elif isinstance(s, Load):
                    lane = widen(self._lane(s.operand), self.operands[s.operand].dtype)
                    self.emit(f"{self.value(s.out)} = {lane}")
            results = [narrow(self.value(s.value), self.operands[s.operand].dtype) for s in stores]
            self.emit(f"return {', '.join(results)}")
        parameters = [*(self._lane(name) for name in loads), *(f"{value}_lane" for value in dtypes)]
        names = self.free_variables(body.body, vector_accesses, self.launch.point_axes[-1:])
        free_variables = [name for name in names if name not in dtypes]
        head = f"def each_element({', '.join([*parameters, *free_variables])}):"
        text = "\n".join(["@device_function", head, *suite])
        self.add_helper("each_element", text)
        if self.helpers["each_element"] != text:
            raise CudaPrintError(
                f"[cuda] {self.kernel.name} must have one loop over points to use vectors; got "
                "two. Fix: print it with vectorize=False."
            )
        loaded = [self.operands[name] for name in loads]
        stored = [self.operands[s.operand] for s in stores]
        accessed = (
            *vector_accesses,
            *(s for load in self._computed_loads for s in load.statements),
        )
        return ElementFunction(loaded, computed, stored, free_variables, Block(body=accessed))

    def _is_computed(self, statement: Statement) -> bool:
        """Whether a statement defines the value of a load at a computed offset."""
        outs = [load.out for load in self._computed_loads]
        return any(value in outs for value in results_of(statement))

    def _lane(self, operand: str) -> str:
        """The parameter of ``each_element`` for an element of an operand."""
        return f"{self.names.operand(operand)}_lane"

    # Loads at computed offsets

    def _test_whole_vectors(self) -> None:
        """Print the test whether sizes and addresses allow vector loads at computed offsets."""
        if not self._computed_loads:
            return
        width = self.launch.vector_width
        multiples = dict.fromkeys(
            argument for load in self._computed_loads for argument in load.required_multiples
        )
        operands = " | ".join(self.parameter(argument)[0] for argument in multiples)
        tests = [f"({operands}) & {width - 1} == 0"] if operands else []
        for name in dict.fromkeys(
            load.operand for load in self._computed_loads for load in load.loads
        ):
            size = width * storage_bytes(self.operands[name].dtype)
            tests.append(f"address_of({self.names.operand(name)}) & {size - 1} == 0")
        self.emit(f"whole_vectors = {' and '.join(tests)}")

    def _computed_lanes(self, load: ComputedLoad, free_variables: Sequence[str]) -> None:
        """Print a tuple of the loaded values of a vector, in storage dtype."""
        value, width = self.value(load.out), self.launch.vector_width
        with self.indented("if whole_vectors:"):
            self._raw_load_statements(load, width)
            self.emit(f"{value}_lanes = {value}")
        lanes = [self._computed_element(load, free_variables, lane) for lane in range(width)]
        with self.indented("else:"):
            self.emit(f"{value}_lanes = ({', '.join(lanes)})")

    def _computed_element(
        self, load: ComputedLoad, free_variables: Sequence[str], lane: int
    ) -> str:
        """A call of the device function for the value of one point."""
        arguments = ", ".join(self._lane_arguments(free_variables, lane))
        return f"{self.value(load.out)}_element({arguments})"

    def _computed_function(self, load: ComputedLoad) -> list[str]:
        """Print the device function that loads the value at one point; returns its parameters."""
        last, value = self.launch.point_axes[-1:], self.value(load.out)
        free_variables = self.free_variables(load.statements, [], last)
        with self.function_body() as suite, self.at_point(last[0], Block(body=load.statements)):
            self._raw_load_statements(load, 1)
            self.emit(f"return {value}")
        head = f"def {value}_element({', '.join(free_variables)}):"
        self.add_helper(f"{value}_element", "\n".join(["@device_function", head, *suite]))
        return free_variables

    def _raw_load_statements(self, load: ComputedLoad, width: int) -> None:
        """Print the load of ``width`` elements, in storage dtype."""
        self._raw_widths = {part.out.number: width for part in load.loads}
        for statement in load.statements:
            self.statement(statement)
        self._raw_widths = {}

    def _load(self, s: Load) -> None:
        width = self._raw_widths.get(s.out.number)
        if width is None:
            super()._load(s)
            return
        out, operand = self.value(s.out), self.operands[s.operand]
        at = self.element_index(self._address(operand, s.offset), s.component)
        vector = f"load_vector_readonly({self.names.operand(s.operand)}, {at}, {width})"
        loaded = vector if width > 1 else self.raw_load(operand, at)
        if s.where is None:
            self.emit(f"{out} = {loaded}")
            return
        zero = constant(0, STORAGE_BITS.get(operand.dtype, operand.dtype))
        with self.indented(f"if {self.value(s.where)}:"):
            self.emit(f"{out} = {loaded}")
        with self.indented("else:"):
            self.emit(f"{out} = ({', '.join([zero] * width)})")
