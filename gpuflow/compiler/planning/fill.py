"""Filling a structure with the sizes of one program gives its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.lowering.recipes import Calls
from gpuflow.compiler.lowering.word_sources import Symbols
from gpuflow.compiler.passes.updates_in_place import Donations
from gpuflow.compiler.planning.buffers import Arrangement, arrange
from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Operand,
    Plan,
    Programs,
    ProgramStep,
    Step,
    memory,
    scratch_of,
    workspace_bytes,
)
from gpuflow.compiler.planning.segments import by_kernel
from gpuflow.compiler.planning.step_shapes import CallShape, KernelShape, Shape, Slot
from gpuflow.compiler.planning.structure import Structure, added_number
from gpuflow.compiler.schedules.schedule import scheduled
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Literal

_MOST_ARRANGEMENTS = 64  # of one structure: they differ in which reductions are split


def filled(
    structure: Structure, program: Program, donations: Donations, symbols: Symbols,
    calls: Calls, programs: Programs,
) -> Plan:  # fmt: skip
    """The plan of a program.

    Args:
        structure: of the program.
        program: its views are needed.
        donations: for the plan, see there.
        symbols: the ids of its variables.
        calls: the kernels of its groups.
        programs: the compiled programs of loops and branches.
    """
    filler = _Filler(structure, program, symbols, calls, programs)
    steps = tuple([filler.step(shape) for shape in structure.steps])
    offsets, total = filler.offsets(steps)
    outputs: list[int | Literal] = []
    for out, atom in zip(structure.outputs, program.jaxpr.outvars, strict=True):
        if out is None:
            assert type(atom) is Literal  # as in every program of the structure
            outputs.append(atom)
        else:
            outputs.append(out)
    return Plan(
        program.jaxpr, donations, structure.groups, steps, tuple(outputs), structure.in_place,
        symbols.variables, filler.added, offsets, total, structure.owned, structure.destinations,
    )  # fmt: skip


class _Filler:
    """Builder of the steps, in order; ``allocate`` gives scratch memory to the current one."""

    def __init__(
        self, structure: Structure, program: Program, symbols: Symbols,
        calls: Calls, programs: Programs,
    ) -> None:  # fmt: skip
        self.structure, self.program, self.calls = structure, program, calls
        self.variables, self.programs = symbols.variables, programs
        self.target = structure.kind.target
        self.added: dict[int, ShapedArray] = {}
        self.eqns = program.jaxpr.eqns
        self.scratch: list[int] = []  # of the current step
        self.all_scratch: list[int] = []
        self.group, self.count = 0, 0  # the current one, and its count of buffers

    def step(self, shape: Shape) -> Step:
        """The step of a shape."""
        if isinstance(shape, KernelShape):
            return self._kernel_step(shape)
        if isinstance(shape, CallShape):
            return self._call_step(shape)
        source = self._operand(shape.source)
        if shape.target >= len(self.variables):
            self.added[shape.target] = source.aval
        return CopyStep(source, shape.target)

    def _kernel_step(self, shape: KernelShape) -> KernelStep:
        groups, jaxpr = shape.groups, self.program.jaxpr
        calls = tuple([self.calls[group] for group in groups])
        if shape.is_plain:
            return KernelStep(shape, jaxpr, calls, (calls,), ())
        self.scratch = []
        if len(calls) == 1:
            launches = self._launches(groups[0], calls[0])
            is_one = len(launches) == 1
            joint_launches = (launches,) if is_one else tuple([(one,) for one in launches])
        else:
            pairs = zip(groups, calls, strict=True)
            joint_launches = by_kernel([one for pair in pairs for one in self._launches(*pair)])
        return KernelStep(shape, jaxpr, calls, joint_launches, tuple(self.scratch))

    def _launches(self, group: int, call: KernelCall) -> tuple[KernelCall, ...]:
        self.group, self.count = group, 0
        return scheduled(call, self.allocate, self.target.schedules)

    def allocate(self, count: int) -> int:
        """A scratch buffer of so many bytes, for the launches of the current group."""
        variables, owners = len(self.variables), self.structure.owners
        buffer = added_number(variables, owners, self.group, self.count)
        self.added[buffer] = memory(count)
        self.scratch.append(buffer)
        self.all_scratch.append(buffer)
        self.count += 1
        return buffer

    def _call_step(self, shape: CallShape) -> CallStep | ProgramStep:
        eqn = self.eqns[shape.position]
        operands = tuple([self._operand(slot) for slot in shape.operands])
        if shape.kind == "program":
            *outputs, workspace = shape.writes
            inner = self.programs[eqn]
            self.added[workspace] = memory(workspace_bytes(eqn, inner))
            return ProgramStep(eqn, operands, tuple(outputs), inner, workspace)
        step = CallStep(eqn, operands, shape.writes, shape.kind)
        choice = self.target.choice_of(step)
        if choice is None:
            return step
        workspace, count = None, choice.workspace_bytes
        if count:
            self.group, self.count = shape.group, 0
            workspace = self.allocate(count)
        return step._replace(workspace=workspace, choice=choice)

    def _operand(self, slot: Slot) -> Operand:
        position, index, buffer, is_view = slot
        atoms = self.program.jaxpr.outvars if position is None else self.eqns[position].inputs
        atom = atoms[index]
        if type(atom) is not Literal:
            return Operand(buffer, atom.aval, self.program.views[atom][1] if is_view else None)
        # An update of a literal has a copy of it as operand.
        value = atom.value if buffer == NO_BUFFER else None
        return Operand(buffer, atom.aval, None, value)

    def offsets(self, steps: Sequence[Step]) -> tuple[Mapping[int, int], int]:
        """The offsets of the temporaries, and the size of the arena."""
        cached = self.structure.arrangements
        scratch = tuple(self.all_scratch)
        arrangement = cached.get(scratch)
        if arrangement is None:
            if len(cached) >= _MOST_ARRANGEMENTS:
                cached.clear()
            arrangement = cached[scratch] = self._arranged(steps)
        variables, added, count = self.variables, self.added, len(self.variables)
        avals = [variables[b].aval if b < count else added[b] for b in arrangement.buffers]
        return arrangement.offsets([aval.shape for aval in avals])

    def _arranged(self, steps: Sequence[Step]) -> Arrangement:
        inputs = len(self.program.jaxpr.invars)
        outputs = set(self.structure.outputs)
        needed = []
        for shape, step in zip(self.structure.steps, steps, strict=True):
            buffers = (*shape.reads, *shape.writes, *scratch_of(step))
            needed.append([b for b in buffers if b >= inputs and b not in outputs])

        def aval_of(buffer: int) -> ShapedArray:
            is_variable = buffer < len(self.variables)
            return self.variables[buffer].aval if is_variable else self.added[buffer]

        return arrange(needed, aval_of)
