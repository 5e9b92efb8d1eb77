"""Print a whole program, with its loops and branches, as a kernel in which one block runs it.

    turn = np.int64(cuda.blockIdx.x)                  an iteration without carries
    while turn < 64:
        step_0(pointer_within(arena, 0, np.float32), pointer_within(operand_1, 256 * turn, ...), 7)
        barrier()
        count_0 = 0
        while count_0 < 32:                           a nested scan; its carries are double-buffered
            ...

Each block has an arena for the buffers of the program, in shared memory if there is room. A
barrier follows each step, so that the next one sees its writes. See
docs/design/0034-programs-of-one-block.md.

Tests: tests/targets/cuda/test_block_programs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    InnerProgram,
    KernelStep,
    Plan,
    ProgramStep,
    StepOperand,
    argument_positions,
    carry_count,
    output_alias_flags,
    workspace_bytes,
    workspace_layout,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.targets.cuda.codegen.block_printer import (
    BlockPrinter,
    BlockProgramText,
    ByteLocation,
    ConstantOperand,
    NotSingleBlockError,
    element_location,
)


def parallel_scan_text(step: ProgramStep, max_shared_bytes: int) -> BlockProgramText:
    """Print a scan without carries, whose iterations are distributed over blocks.

    Args:
        step: the scan.
        max_shared_bytes: most shared memory of a block, static memory included.

    Raises:
        NotSingleBlockError: if a step cannot be printed for a single block.
    """
    form: ScanForm = step.eqn.primitive.lower.form(step.eqn.params)
    (inner,) = step.programs
    printer = _ProgramPrinter()
    operands, outs = printer.step_locations(step)
    printer.emit("turn = np.int64(cuda.blockIdx.x)")
    with printer.indented(f"while turn < {form.length}:"):
        printer.scan_iteration(form, _Loop(step, operands, outs, 0), "turn")
        printer.emit("turn += np.int64(cuda.gridDim.x)")
    return printer.text(inner.plan.arena_bytes, max_shared_bytes)


def loop_text(step: ProgramStep, max_shared_bytes: int) -> BlockProgramText:
    """Print a loop that one block runs sequentially.

    Arguments and errors are those of ``parallel_scan_text``.
    """
    printer = _ProgramPrinter()
    operands, outs = printer.step_locations(step)
    (arena, _), spare = workspace_layout(step, 0)
    printer.loop(_Loop(step, operands, outs, arena), _arena_locations(spare))
    return printer.text(workspace_bytes(step.eqn, step.programs), max_shared_bytes)


@record
class _CarryBuffers:
    """A double-buffered carry of a loop.

    Attributes:
        read_pointer, write_pointer: variables that point to the buffer that the current iteration
            reads and to the one that it writes.
        even_source, odd_source: pointers to the buffers that even and odd iterations read.
        out: location of the loop's output.
        aval: shape and dtype of the carry.
    """

    read_pointer: str
    write_pointer: str
    even_source: str
    odd_source: str
    out: ByteLocation
    aval: ShapedArray


@record
class _Loop:
    """A loop that is being printed.

    Attributes:
        step: the scan or while_loop.
        operands, outs: locations of its operands and outputs.
        arena: byte offset of its programs' buffers in the block's arena.
        carries: locations from which an iteration reads the carries.
        double_buffered: the carries that an iteration writes to another buffer, in order.
    """

    step: ProgramStep
    operands: Sequence[ByteLocation]
    outs: Sequence[ByteLocation]
    arena: int
    carries: Sequence[ByteLocation] = ()
    double_buffered: Sequence[_CarryBuffers] = ()

    @property
    def new_carries(self) -> list[ByteLocation]:
        """Locations to which an iteration writes the double-buffered carries."""
        return [
            ByteLocation(carry.write_pointer, is_static=False) for carry in self.double_buffered
        ]


class _ProgramPrinter(BlockPrinter):
    """Prints the steps of plans; the printing functions call ``scan_iteration`` or ``loop``."""

    def step_locations(self, step: ProgramStep) -> tuple[list[ByteLocation], list[ByteLocation]]:
        """Add parameters for the operands and outputs of the outermost step; their locations."""
        operands = [
            self.constant(operand)
            if operand.buffer == NO_BUFFER
            else self.parameter(k).advanced(_offset(operand))
            for k, operand in enumerate(step.operands)
        ]
        first = len(step.operands)
        return operands, [self.parameter(first + k) for k in range(len(step.outputs))]

    def _constant_parameters(self, inner: InnerProgram) -> list[ByteLocation]:
        """Add parameters for the constants of an inner program; their locations."""
        return [self.parameter(ConstantOperand(value, aval_of(value))) for value in inner.values]

    def _print_plan(
        self, plan: Plan, argument_locations: Sequence[ByteLocation], arena: int
    ) -> None:
        """Print the steps of a program, with a barrier after each.

        Args:
            plan: plan of the program.
            argument_locations: locations of its inputs, followed by those of its outputs.
            arena: byte offset of its buffers in the block's arena.
        """
        argument_of = argument_positions(plan)

        def location(buffer: int) -> ByteLocation:
            if buffer in argument_of:
                return argument_locations[argument_of[buffer]]
            return ByteLocation("arena", str(arena + plan.offsets[buffer]))

        def operand_location(operand: StepOperand) -> ByteLocation:
            if operand.buffer == NO_BUFFER:
                return self.constant(operand)
            return location(operand.buffer).advanced(_offset(operand))

        for step in plan.steps:
            if isinstance(step, KernelStep):
                self._kernel_step(step, location)
            elif isinstance(step, CopyStep):
                source = step.source
                self.copy(
                    operand_location(source), location(step.target), source.aval, source.layout
                )
                self.emit("barrier()")
            elif isinstance(step, CallStep):
                at = [operand_location(operand) for operand in step.operands]
                self.call_library(step, at, [location(buffer) for buffer in step.outputs])
                self.emit("barrier()")
            else:
                operands = [operand_location(operand) for operand in step.operands]
                outs = [location(buffer) for buffer in step.outputs]
                start = arena + plan.offsets[step.workspace]
                (inner, _), spare = workspace_layout(step, start)
                if step.eqn.primitive.lower.branches is not None:
                    self._print_branch(step, operands, outs, inner)
                else:
                    self.loop(_Loop(step, operands, outs, inner), _arena_locations(spare))

    def _kernel_step(self, step: KernelStep, location_of: Callable[[int], ByteLocation]) -> None:
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            for call in calls:  # segments of one launch are independent: no barrier between
                self.call_kernel(call, location_of)
            self.emit("barrier()")

    def _print_branch(
        self, step: ProgramStep, operands: list[ByteLocation], outs: list[ByteLocation], arena: int
    ) -> None:
        if step.operands[0].aval.dtype != np.dtype(np.int32):
            raise NotSingleBlockError("the number of a branch is no int32")
        aliased = output_alias_flags(step.eqn, step.programs)
        separate = [out for out, is_aliased in safe_zip(outs, aliased) if not is_aliased]
        index, last = self.fresh("branch"), len(step.programs) - 1
        self.emit(f"{index} = min(max({self.pointer(operands[0], 'int32')}[0], 0), {last})")
        for k, inner in enumerate(step.programs):
            with self.indented(f"if {index} == {k}:"):
                argument_locations = [*operands[1:], *self._constant_parameters(inner), *separate]
                self._print_plan(inner.plan, argument_locations, arena)

    def loop(self, loop: _Loop, spare: Sequence[ByteLocation]) -> None:
        """Print a loop.

        Args:
            loop: the loop, without its carries.
            spare: second buffers of the double-buffered carries; the outputs are the first ones.
        """
        step, outs = loop.step, loop.outs
        form = step.eqn.primitive.lower.form(step.eqn.params)
        is_scan = form.length is not None
        aliased, spare_locations = output_alias_flags(step.eqn, step.programs), iter(spare)
        # Buffers are assigned so that the last iteration of a scan writes the outputs. The trip
        # count of a while_loop is unknown, so it may need a copy at the end.
        is_odd_scan = is_scan and form.length % 2 == 1
        carry_locations: list[ByteLocation] = []
        double_buffered: list[_CarryBuffers] = []
        for k in range(carry_count(step.eqn)):
            aval, out = step.eqn.outputs[k].aval, outs[k]
            if aliased[k]:
                carry_locations.append(out)
                continue
            other = next(spare_locations)
            even, odd = (other, out) if is_odd_scan else (out, other)
            self.copy(loop.operands[form.first_carry + k], even, aval)
            names = self.fresh("carry"), self.fresh("next")
            pointers = self.pointer(even, "uint8"), self.pointer(odd, "uint8")
            double_buffered.append(_CarryBuffers(*names, *pointers, out, aval))
            carry_locations.append(ByteLocation(names[0], is_static=False))
        loop = replace(loop, carries=carry_locations, double_buffered=double_buffered)
        self.emit("barrier()")
        counter = self.fresh("count")
        self.emit(f"{counter} = np.int64(0)")
        if is_scan:
            with self.indented(f"while {counter} < {form.length}:"):
                self._select_buffers(double_buffered, counter)
                index = f"({form.length - 1} - {counter})" if form.reverse else counter
                self.scan_iteration(form, loop, index)
                self.emit(f"{counter} += 1")
            return
        with self.indented("while True:"):
            self._select_buffers(double_buffered, counter)
            self._while_iteration(form, loop)
            self.emit(f"{counter} += 1")
        with self.indented(f"if {counter} & 1:"):
            for carry in double_buffered:
                read = ByteLocation(carry.read_pointer, is_static=False)
                self.copy(read, carry.out, carry.aval)
        self.emit("barrier()")

    def _select_buffers(self, double_buffered: Sequence[_CarryBuffers], counter: str) -> None:
        """Set the pointers of each carry for reading and writing in this iteration."""
        for carry in double_buffered:
            pointers = f"{carry.read_pointer}, {carry.write_pointer}"
            self.emit(f"{pointers} = {carry.even_source}, {carry.odd_source}")
            with self.indented(f"if {counter} & 1:"):
                self.emit(f"{pointers} = {carry.odd_source}, {carry.even_source}")

    def scan_iteration(self, form: ScanForm, loop: _Loop, index: str) -> None:
        """Print an iteration of a scan.

        Args:
            form, loop: the scan.
            index: integer expression of the index into stacked arrays.
        """
        step, operands, outs = loop.step, loop.operands, loop.outs
        (inner,) = step.programs
        split = form.num_consts + form.num_carry
        xs = safe_zip(operands[split:], [operand.aval for operand in step.operands[split:]])
        stacked = [var.aval for var in step.eqn.outputs[form.num_carry :]]
        ys = safe_zip(outs[form.num_carry :], stacked)
        inputs = [*operands[: form.num_consts], *loop.carries]
        inputs += [element_location(at, aval.shape, aval.dtype, index) for at, aval in xs]
        outputs = [element_location(at, aval.shape, aval.dtype, index) for at, aval in ys]
        constants = self._constant_parameters(inner)
        argument_locations = [*inputs, *constants, *loop.new_carries, *outputs]
        self._print_plan(inner.plan, argument_locations, loop.arena)

    def _while_iteration(self, form: WhileForm, loop: _Loop) -> None:
        """Print an iteration of a while_loop, with the break if its condition is false."""
        condition, body = loop.step.programs
        operands, carries = loop.operands, loop.carries
        first, split = form.num_condition_consts, form.num_condition_consts + form.num_body_consts
        condition_flag, unused_flag = [
            ByteLocation("flags", str(self.flag_bytes + k)) for k in range(2)
        ]
        self.flag_bytes += 2
        constants = self._constant_parameters(condition)
        argument_locations = [*operands[:first], *carries, *constants, condition_flag]
        self._print_plan(condition.plan, argument_locations, loop.arena)
        with self.indented(f"if {self.pointer(condition_flag, 'uint8')}[0] == 0:"):
            self.emit("break")
        # A body that may run one iteration too many gets the condition as an operand.
        body_flag = [condition_flag] if body.is_speculative else []
        inputs = [*operands[:split], *carries, *body_flag, *self._constant_parameters(body)]
        self._print_plan(body.plan, [*inputs, *loop.new_carries, unused_flag], loop.arena)
        self.emit("barrier()")


def _arena_locations(offsets: Sequence[int]) -> list[ByteLocation]:
    """Locations of byte offsets in the block's arena."""
    return [ByteLocation("arena", str(offset)) for offset in offsets]


def _offset(operand: StepOperand) -> int:
    """Byte offset of an operand's first element in its buffer."""
    return operand.layout.offset * storage_dtype(operand.aval.dtype).itemsize
