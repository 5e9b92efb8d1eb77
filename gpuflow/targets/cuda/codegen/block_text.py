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
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.lowering.lower import NO_BUFFER
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    Inner,
    KernelStep,
    Operand,
    Plan,
    ProgramStep,
    aliasing_outputs,
    argument_positions,
    carry_count,
    workspace_bytes,
    workspace_layout,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.targets.cuda.codegen.block_printer import (
    BlockPrinter,
    BlockText,
    Constant,
    Location,
    NotOfOneBlockError,
    element_location,
    plus,
)


def parallel_scan_text(step: ProgramStep, most_shared: int) -> BlockText:
    """Print a scan without carries, whose iterations are distributed over blocks.

    Args:
        step: the scan.
        most_shared: shared memory of a block in bytes, static memory included.

    Raises:
        NotOfOneBlockError: if a step cannot be printed for a lone block.
    """
    form: ScanForm = step.eqn.primitive.lower.form(step.eqn.params)
    (inner,) = step.programs
    writer = _Writer()
    operands, outs = writer.step_locations(step)
    writer.emit("turn = np.int64(cuda.blockIdx.x)")
    with writer.indented(f"while turn < {form.length}:"):
        writer.scan_iteration(form, step, operands, outs, [], [], "turn", 0)
        writer.emit("turn += np.int64(cuda.gridDim.x)")
    return writer.text(inner.plan.arena_bytes, most_shared)


def loop_text(step: ProgramStep, most_shared: int) -> BlockText:
    """Print a loop that one block runs sequentially.

    Arguments and errors are those of ``parallel_scan_text``.
    """
    writer = _Writer()
    operands, outs = writer.step_locations(step)
    (arena, _), spare = workspace_layout(step, 0)
    writer.loop(step, operands, outs, arena, [("arena", str(at)) for at in spare])
    return writer.text(workspace_bytes(step.eqn, step.programs), most_shared)


@record
class _Carry:
    """A double-buffered carry of a loop.

    Attributes:
        now, later: variables that point to the buffer to read and the one to write.
        even, odd: pointers to the buffers that even and odd iterations read.
        out: location of the loop's output.
        aval: shape and dtype of the carry.
    """

    now: str
    later: str
    even: str
    odd: str
    out: Location
    aval: ShapedArray


class _Writer(BlockPrinter):
    """Prints the steps of plans; the printing functions call ``scan_iteration`` or ``loop``."""

    def step_locations(self, step: ProgramStep) -> tuple[list[Location], list[Location]]:
        """Add parameters for the operands and outputs of the outermost step; their locations."""
        operands = [
            self.constant(o) if o.buffer == NO_BUFFER else plus(self.parameter(k), _offset(o))
            for k, o in enumerate(step.operands)
        ]
        first = len(step.operands)
        return operands, [self.parameter(first + k) for k in range(len(step.outputs))]

    def _values(self, inner: Inner) -> list[Location]:
        """Add parameters for the constants of an inner program; their locations."""
        return [self.parameter(Constant(value, aval_of(value))) for value in inner.values]

    def _plan(self, plan: Plan, table: Sequence[Location], arena: int) -> None:
        """Print the steps of a program, with a barrier after each.

        Args:
            plan: plan of the program.
            table: locations of its inputs, followed by those of its outputs.
            arena: offset of its buffers in the block's arena.
        """
        registers = argument_positions(plan)

        def location(buffer: int) -> Location:
            if buffer in registers:
                return table[registers[buffer]]
            return "arena", str(arena + plan.offsets[buffer])

        def operand_location(operand: Operand) -> Location:
            if operand.buffer == NO_BUFFER:
                return self.constant(operand)
            return plus(location(operand.buffer), _offset(operand))

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
                    self._branch(step, operands, outs, inner)
                else:
                    self.loop(step, operands, outs, inner, [("arena", str(at)) for at in spare])

    def _kernel_step(self, step: KernelStep, location_of: Callable[[int], Location]) -> None:
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            for call in calls:  # segments of one launch are independent: no barrier between
                self.call_kernel(call, location_of)
            self.emit("barrier()")

    def _branch(
        self, step: ProgramStep, operands: list[Location], outs: list[Location], arena: int
    ) -> None:
        if step.operands[0].aval.dtype != np.dtype(np.int32):
            raise NotOfOneBlockError("the number of a branch is no int32")
        aliased = aliasing_outputs(step.eqn, step.programs)
        separate = [out for out, is_aliased in safe_zip(outs, aliased) if not is_aliased]
        index, last = self.fresh("branch"), len(step.programs) - 1
        self.emit(f"{index} = min(max({self.pointer(operands[0], 'int32')}[0], 0), {last})")
        for k, inner in enumerate(step.programs):
            with self.indented(f"if {index} == {k}:"):
                table = [*operands[1:], *self._values(inner), *separate]
                self._plan(inner.plan, table, arena)

    def loop(
        self,
        step: ProgramStep,
        operands: list[Location],
        outs: list[Location],
        arena: int,
        spare: Sequence[Location],
    ) -> None:
        """Print a loop.

        Args:
            step: the loop.
            operands, outs: locations of its operands and outputs.
            arena: offset of its programs' buffers in the block's arena.
            spare: second buffers of the double-buffered carries; the outputs are the first ones.
        """
        form = step.eqn.primitive.lower.form(step.eqn.params)
        is_scan, first = form.length is not None, form.first_carry
        aliased, free = aliasing_outputs(step.eqn, step.programs), iter(spare)
        # Buffers are assigned so that the last iteration of a scan writes the outputs. The trip
        # count of a while_loop is unknown, so it may need a copy at the end.
        swapped = is_scan and form.length % 2 == 1
        now: list[Location] = []
        buffered: list[_Carry] = []
        for k in range(carry_count(step.eqn)):
            aval, out = step.eqn.outputs[k].aval, outs[k]
            if aliased[k]:
                now.append(out)
                continue
            even, odd = (next(free), out) if swapped else (out, next(free))
            self.copy(operands[first + k], even, aval)
            names = self.fresh("carry"), self.fresh("next")
            pointers = self.pointer(even, "uint8"), self.pointer(odd, "uint8")
            buffered.append(_Carry(*names, *pointers, out, aval))
            now.append((names[0], "0"))
        self.emit("barrier()")
        counter = self.fresh("count")
        self.emit(f"{counter} = np.int64(0)")
        if is_scan:
            with self.indented(f"while {counter} < {form.length}:"):
                self._select_buffers(buffered, counter)
                index = f"({form.length - 1} - {counter})" if form.reverse else counter
                self.scan_iteration(form, step, operands, outs, now, buffered, index, arena)
                self.emit(f"{counter} += 1")
            return
        with self.indented("while True:"):
            self._select_buffers(buffered, counter)
            self._while_iteration(form, step, operands, now, buffered, arena)
            self.emit(f"{counter} += 1")
        with self.indented(f"if {counter} & 1:"):
            for carry in buffered:
                self.copy((carry.now, "0"), carry.out, carry.aval)
        self.emit("barrier()")

    def _select_buffers(self, buffered: Sequence[_Carry], counter: str) -> None:
        """Set the pointers of each carry for reading and writing in this iteration."""
        for carry in buffered:
            self.emit(f"{carry.now}, {carry.later} = {carry.even}, {carry.odd}")
            with self.indented(f"if {counter} & 1:"):
                self.emit(f"{carry.now}, {carry.later} = {carry.odd}, {carry.even}")

    def scan_iteration(
        self,
        form: ScanForm,
        step: ProgramStep,
        operands: list[Location],
        outs: list[Location],
        now: list[Location],
        buffered: Sequence[_Carry],
        index: str,
        arena: int,
    ) -> None:
        """Print an iteration of a scan.

        Args:
            form, step: the scan.
            operands, outs, arena: as for ``loop``.
            now: locations from which the iteration reads the carries.
            buffered: the double-buffered carries.
            index: integer expression of the index into stacked arrays.
        """
        (inner,) = step.programs
        split = form.num_consts + form.num_carry
        xs = safe_zip(operands[split:], [operand.aval for operand in step.operands[split:]])
        stacked = [var.aval for var in step.eqn.outputs[form.num_carry :]]
        ys = safe_zip(outs[form.num_carry :], stacked)
        table = [*operands[: form.num_consts], *now]
        table += [element_location(at, aval.shape, aval.dtype, index) for at, aval in xs]
        table += [*self._values(inner), *[(carry.later, "0") for carry in buffered]]
        table += [element_location(at, aval.shape, aval.dtype, index) for at, aval in ys]
        self._plan(inner.plan, table, arena)

    def _while_iteration(
        self,
        form: WhileForm,
        step: ProgramStep,
        operands: list[Location],
        now: list[Location],
        buffered: Sequence[_Carry],
        arena: int,
    ) -> None:
        condition, body = step.programs
        first, split = form.num_condition_consts, form.num_condition_consts + form.num_body_consts
        proceeds, unused = [("flags", str(self.flags + k)) for k in range(2)]
        self.flags += 2
        table = [*operands[:first], *now, *self._values(condition), proceeds]
        self._plan(condition.plan, table, arena)
        with self.indented(f"if {self.pointer(proceeds, 'uint8')}[0] == 0:"):
            self.emit("break")
        # A body that may run one iteration too many gets the condition as an operand.
        flag = [proceeds] if body.ahead else []
        later = [(carry.later, "0") for carry in buffered]
        table = [*operands[:split], *now, *flag, *self._values(body), *later, unused]
        self._plan(body.plan, table, arena)
        self.emit("barrier()")


def _offset(operand: Operand) -> int:
    """Byte offset of an operand's first element in its buffer."""
    return operand.layout.offset * storage_dtype(operand.aval.dtype).itemsize
