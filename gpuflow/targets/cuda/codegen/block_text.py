"""The text of a kernel in which a block runs a program by itself: its loops and branches, too.

    turn = np.int64(cuda.blockIdx.x)                  a turn of a loop that carries nothing
    while turn < 64:
        step_0(pointer_within(arena, 0, np.float32), pointer_within(operand_1, 256 * turn, ...), 7)
        barrier()
        count_0 = 0
        while count_0 < 32:                           a scan in it; carries have two places in turn
            ...

Buffers of the program are in an arena of the block, in shared memory if there is room. Each step
sees the writes of the previous one: a barrier follows each. See
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
    carried_places,
    carry_count,
    kept_outputs,
    operand_places,
    workspace_bytes,
)
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.lowering import ScanForm, WhileForm
from gpuflow.targets.cuda.codegen.block_lines import (
    BlockLines,
    BlockText,
    Constant,
    NotOfOneBlockError,
    Place,
    element_of,
    plus,
)


def turns_text(step: ProgramStep, most_shared: int) -> BlockText:
    """The text for a scan without carries, with iterations distributed over blocks.

    Args:
        step: the scan.
        most_shared: bytes of an arena that may be in shared memory.

    Raises:
        NotOfOneBlockError: there is a step that no block does by itself.
    """
    form: ScanForm = step.eqn.primitive.lower.form(step.eqn.params)
    (inner,) = step.programs
    writer = _Writer()
    operands, outs = writer.outside(step)
    writer.emit("turn = np.int64(cuda.blockIdx.x)")
    with writer.indented(f"while turn < {form.length}:"):
        writer.turn(form, step, operands, outs, [], [], "turn", 0)
        writer.emit("turn += np.int64(cuda.gridDim.x)")
    return writer.text(inner.plan.arena_bytes, most_shared)


def loop_text(step: ProgramStep, most_shared: int) -> BlockText:
    """The text for a loop that one block runs from its first iteration to its last.

    Arguments and errors are those of ``turns_text``.
    """
    writer = _Writer()
    operands, outs = writer.outside(step)
    (arena, _), spare = carried_places(step, 0)
    writer.loop(step, operands, outs, arena, [("arena", str(at)) for at in spare])
    return writer.text(workspace_bytes(step.eqn, step.programs), most_shared)


@record
class _Carry:
    """A carry with two places: which of them a turn reads, and which it writes, variables say."""

    now: str
    later: str
    even: str
    odd: str
    out: Place
    aval: ShapedArray


class _Writer(BlockLines):
    """Prints the steps of programs; ``turn`` and ``loop`` are where a kernel begins."""

    def outside(self, step: ProgramStep) -> tuple[list[Place], list[Place]]:
        """The places of the operands and outputs of the step that a launch runs."""
        operands = [
            self.constant(o) if o.buffer == NO_BUFFER else plus(self.parameter(k), _offset(o))
            for k, o in enumerate(step.operands)
        ]
        first = len(step.operands)
        return operands, [self.parameter(first + k) for k in range(len(step.outputs))]

    def _values(self, inner: Inner) -> list[Place]:
        """The constants of a program."""
        return [self.parameter(Constant(value, aval_of(value))) for value in inner.values]

    def _plan(self, plan: Plan, table: Sequence[Place], arena: int) -> None:
        """Print the steps of a program, and a barrier behind each.

        Args:
            plan: of the program.
            table: the places of its inputs, and then of its outputs' memory.
            arena: where its memory is, in that of the block.
        """
        registers = operand_places(plan)

        def place(buffer: int) -> Place:
            if buffer in registers:
                return table[registers[buffer]]
            return "arena", str(arena + plan.offsets[buffer])

        def operand_place(operand: Operand) -> Place:
            if operand.buffer == NO_BUFFER:
                return self.constant(operand)
            return plus(place(operand.buffer), _offset(operand))

        for step in plan.steps:
            if isinstance(step, KernelStep):
                self._kernel_step(step, place)
            elif isinstance(step, CopyStep):
                source = step.source
                self.copy(operand_place(source), place(step.target), source.aval, source.lies)
                self.emit("barrier()")
            elif isinstance(step, CallStep):
                at = [operand_place(operand) for operand in step.operands]
                self.call_library(step, at, [place(buffer) for buffer in step.outputs])
                self.emit("barrier()")
            else:
                operands = [operand_place(operand) for operand in step.operands]
                outs = [place(buffer) for buffer in step.outputs]
                start = arena + plan.offsets[step.workspace]
                (inner, _), spare = carried_places(step, start)
                if step.eqn.primitive.lower.branches is not None:
                    self._branch(step, operands, outs, inner)
                else:
                    self.loop(step, operands, outs, inner, [("arena", str(at)) for at in spare])

    def _kernel_step(self, step: KernelStep, place: Callable[[int], Place]) -> None:
        if step.kernel.kind == "map" and all(call.points == 0 for call in step.calls):
            return
        for calls in step.launches:
            for call in calls:  # of a segmented kernel: they do not see each other
                self.call_kernel(call, place)
            self.emit("barrier()")

    def _branch(
        self, step: ProgramStep, operands: list[Place], outs: list[Place], arena: int
    ) -> None:
        if step.operands[0].aval.dtype != np.dtype(np.int32):
            raise NotOfOneBlockError("the number of a branch is no int32")
        kept = kept_outputs(step.eqn, step.programs)
        moving = [out for out, keeps in safe_zip(outs, kept) if not keeps]
        number, last = self.fresh("branch"), len(step.programs) - 1
        self.emit(f"{number} = min(max({self.pointer(operands[0], 'int32')}[0], 0), {last})")
        for k, inner in enumerate(step.programs):
            with self.indented(f"if {number} == {k}:"):
                table = [*operands[1:], *self._values(inner), *moving]
                self._plan(inner.plan, table, arena)

    def loop(
        self, step: ProgramStep, operands: list[Place], outs: list[Place], arena: int,
        spare: Sequence[Place],
    ) -> None:  # fmt: skip
        """Print a loop.

        Args:
            step: the loop.
            operands, outs: where they are.
            arena: where the memory of its programs is.
            spare: the second place of each carry that has two.
        """
        form = step.eqn.primitive.lower.form(step.eqn.params)
        is_scan, first = form.length is not None, form.first_carry
        kept, free = kept_outputs(step.eqn, step.programs), iter(spare)
        # The last turn of a scan writes into the outputs; of a while_loop nobody knows which it is.
        swapped = is_scan and form.length % 2 == 1
        now: list[Place] = []
        moving: list[_Carry] = []
        for k in range(carry_count(step.eqn)):
            aval, out = step.eqn.outputs[k].aval, outs[k]
            if kept[k]:
                now.append(out)
                continue
            even, odd = (next(free), out) if swapped else (out, next(free))
            self.copy(operands[first + k], even, aval)
            names = self.fresh("carry"), self.fresh("next")
            pointers = self.pointer(even, "uint8"), self.pointer(odd, "uint8")
            moving.append(_Carry(*names, *pointers, out, aval))
            now.append((names[0], "0"))
        self.emit("barrier()")
        turn = self.fresh("count")
        self.emit(f"{turn} = np.int64(0)")
        if is_scan:
            with self.indented(f"while {turn} < {form.length}:"):
                self._choose(moving, turn)
                number = f"({form.length - 1} - {turn})" if form.reverse else turn
                self.turn(form, step, operands, outs, now, moving, number, arena)
                self.emit(f"{turn} += 1")
            return
        with self.indented("while True:"):
            self._choose(moving, turn)
            self._turn_of_while(form, step, operands, now, moving, arena)
            self.emit(f"{turn} += 1")
        with self.indented(f"if {turn} & 1:"):
            for carry in moving:
                self.copy((carry.now, "0"), carry.out, carry.aval)
        self.emit("barrier()")

    def _choose(self, moving: Sequence[_Carry], turn: str) -> None:
        """Set the pointers of each carry for reading and writing in this iteration."""
        for carry in moving:
            self.emit(f"{carry.now}, {carry.later} = {carry.even}, {carry.odd}")
            with self.indented(f"if {turn} & 1:"):
                self.emit(f"{carry.now}, {carry.later} = {carry.odd}, {carry.even}")

    def turn(
        self, form: ScanForm, step: ProgramStep, operands: list[Place], outs: list[Place],
        now: list[Place], moving: Sequence[_Carry], number: str, arena: int,
    ) -> None:  # fmt: skip
        """Print a turn of a scan.

        Args:
            form, step: the scan.
            operands, outs, arena: as of ``loop``.
            now, moving: its carries.
            number: which element of stacked arrays it has.
        """
        (inner,) = step.programs
        split = form.num_consts + form.num_carry
        xs = safe_zip(operands[split:], [operand.aval for operand in step.operands[split:]])
        stacked = [var.aval for var in step.eqn.outputs[form.num_carry :]]
        ys = safe_zip(outs[form.num_carry :], stacked)
        table = [*operands[: form.num_consts], *now]
        table += [element_of(place, aval.shape, aval.dtype, number) for place, aval in xs]
        table += [*self._values(inner), *[(carry.later, "0") for carry in moving]]
        table += [element_of(place, aval.shape, aval.dtype, number) for place, aval in ys]
        self._plan(inner.plan, table, arena)

    def _turn_of_while(
        self, form: WhileForm, step: ProgramStep, operands: list[Place], now: list[Place],
        moving: Sequence[_Carry], arena: int,
    ) -> None:  # fmt: skip
        condition, body = step.programs
        first, split = form.num_condition_consts, form.num_condition_consts + form.num_body_consts
        going, unused = [("flags", str(self.flags + k)) for k in range(2)]
        self.flags += 2
        table = [*operands[:first], *now, *self._values(condition), going]
        self._plan(condition.plan, table, arena)
        with self.indented(f"if {self.pointer(going, 'uint8')}[0] == 0:"):
            self.emit("break")
        # A body that may run once more than the loop goes on asks whether it is such a turn.
        asked = [going] if body.ahead else []
        later = [(carry.later, "0") for carry in moving]
        table = [*operands[:split], *now, *asked, *self._values(body), *later, unused]
        self._plan(body.plan, table, arena)
        self.emit("barrier()")


def _offset(operand: Operand) -> int:
    """Bytes from the start of an operand's buffer."""
    return operand.lies.offset * storage_dtype(operand.aval.dtype).itemsize
