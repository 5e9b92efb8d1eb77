"""Specialization: lower a program with given sizes to a symbolic plan, and record its guard.

Groups become kernels with size expressions as arguments. Some decisions depend on the value of a
size, such as whether an operand is copied. They must go through ``SizeQueries``, which records the
answer in the guard.

Tests: tests/compiler/test_new_sizes.py, tests/compiler/test_symbolic_plans.py,
tests/compiler/test_updates.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from gpuflow.base.caches import register_table
from gpuflow.base.util import selector
from gpuflow.compiler.fusion.fuse import Group
from gpuflow.compiler.fusion.space import FusionProgram, IterationSpace
from gpuflow.compiler.lowering.donation import buffer_uses, choose_in_place
from gpuflow.compiler.lowering.lower import NO_BUFFER, LoweredGroup, lower_group
from gpuflow.compiler.lowering.size_exprs import SizeExpr, SizeExprs, SizeQueries
from gpuflow.compiler.lowering.size_table import ErasedSizes, SizeTable
from gpuflow.compiler.passes.updates_in_place import Donations, InnerAliases, updated_pairs
from gpuflow.compiler.planning.segments import merge_equal_kernels
from gpuflow.compiler.planning.symbolic_plan import SymbolicPlan, added_buffer
from gpuflow.compiler.planning.symbolic_steps import (
    SymbolicCallStep,
    SymbolicCopyStep,
    SymbolicKernelCall,
    SymbolicKernelStep,
    SymbolicOperand,
    SymbolicStep,
)
from gpuflow.compiler.schedules.schedule import is_plain
from gpuflow.compiler.target import Target
from gpuflow.core.jaxpr import Atom, Eqn, Literal, Var
from gpuflow.core.views import contiguous
from gpuflow.kir.in_place import overwrite_hazards
from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text

# Interned kernels, by text: data that is cached with a kernel (``kir.nodes.memoized``) is shared.
_kernels: WeakValueDictionary[str, Kernel] = WeakValueDictionary()
register_table("kernels in use", _kernels)


def specialize(
    program: FusionProgram,
    erased: ErasedSizes,
    donations: Donations,
    inner_aliases: InnerAliases,
    groups: Sequence[Group],
    table: SizeTable,
    target: Target,
    into_destinations: bool,
) -> SymbolicPlan:
    """The symbolic plan of a program, for its sizes and all others with the same kernels.

    Args:
        program: the program, described for fusion.
        erased: its sizes.
        donations, inner_aliases: see ``InPlaceAnalysis``.
        groups: its groups; their spaces may have the sizes of another program of the key.
        table: receives the size expressions; all plans of the key share it.
        target: the platform.
        into_destinations: whether outputs are written into arrays that a call passes.
    """
    return _Specializer(program, erased, donations, inner_aliases, groups, table, target).plan(
        into_destinations
    )


class _Specializer:
    """The work of ``specialize`` for one program, group by group; ``plan`` may be called once.

    Attributes:
        buffer_uses: the last reader of each buffer.
        buffer_id_of: the buffer id of each variable.
        owner_count: count of groups and outputs, see ``added_buffer``.
        unused_donations: donated inputs that no output reuses yet, see ``choose_in_place``.
        temporary_of: outputs that reuse memory of a temporary: buffer id of the output -> of the
            temporary. Later steps must refer to such an output by the temporary.
    """

    def __init__(
        self,
        program: FusionProgram,
        erased: ErasedSizes,
        donations: Donations,
        inner_aliases: InnerAliases,
        groups: Sequence[Group],
        table: SizeTable,
        target: Target,
    ) -> None:
        self.program, self.jaxpr, self.groups = program, program.jaxpr, groups
        self.donations, self.inner_aliases = donations, inner_aliases
        self.table, self.target = table, target
        self.exprs, self.queries = SizeExprs(program, erased), SizeQueries()
        self.buffer_uses = buffer_uses(program, [group.members for group in groups])
        self.buffer_id_of = {var: k for k, var in enumerate(erased.variables)}
        self.owner_count = len(groups) + len(self.jaxpr.outvars)
        updated = {program.storage(var).buffer for var in program.updated()}
        self.unused_donations = {var: out for var, out in donations.items() if var not in updated}
        self.temporary_of: dict[int, int] = {}

    def plan(self, into_destinations: bool) -> SymbolicPlan:
        """The symbolic plan."""
        steps: list[SymbolicStep] = []
        in_place, inputs = self._in_place_inputs(), len(self.jaxpr.invars)
        for index, group in enumerate(self.groups):
            if group.space is None:
                steps += self._call_steps(index, group.members[0])
                continue
            lowered = self._lower(index, group.space)
            steps += self._copied_operands(group.members)
            for out, buffer in lowered.in_place:
                is_input = self.buffer_id_of[buffer] < inputs
                reused_by = in_place if is_input else self.temporary_of
                reused_by[self.buffer_id_of[out]] = self.buffer_id_of[buffer]
            steps.append(self._kernel_step(index, group.members, lowered))
        outputs, copies = self._output_buffers(into_destinations)
        written = dict.fromkeys([out for out in outputs if out is not None and out >= inputs])
        new_outputs = tuple([out for out in written if out not in in_place])
        owned, destinations = ((), new_outputs) if into_destinations else (new_outputs, ())
        return SymbolicPlan(
            self.queries.guard(self.table),
            self.target,
            (*merge_equal_kernels(steps), *copies),
            tuple([group.members for group in self.groups]),
            outputs,
            in_place,
            owned,
            destinations,
            self.owner_count,
        )

    def _lower(self, index: int, space: IterationSpace) -> LoweredGroup:
        """The kernel of a group, with as many outputs in place as its body allows."""
        space = _with_sizes(self.program, space)
        in_place = choose_in_place(
            self.exprs,
            space,
            index,
            self.buffer_uses,
            self.unused_donations.copy(),
            may_reuse_temporaries=not self.target.on_gpu,
        )
        lowered = lower_group(self.exprs, space, in_place, self.queries)
        early = overwrite_hazards(lowered.kernel)
        if early:
            accesses = lowered.operands.access_of
            in_place = in_place.without([accesses[e.operand].buffer for e in early])
            lowered = lower_group(self.exprs, space, in_place, self.queries)
        for _, buffer in lowered.in_place:
            self.unused_donations.pop(buffer, None)
        return lowered

    def _kernel_step(
        self, index: int, members: tuple[int, ...], lowered: LoweredGroup
    ) -> SymbolicKernelStep:
        ordinal = self.table.ordinal
        kernel = _kernels.setdefault(kernel_text(lowered.kernel), lowered.kernel)
        call = SymbolicKernelCall(
            index,
            kernel,
            selector([ordinal(slot.source) for slot in lowered.slots]),
            tuple(
                [NO_BUFFER if var is None else self.buffer_id_of[var] for var in lowered.buffers]
            ),
            ordinal(lowered.extent.source),
            ordinal(lowered.points.source),
        )
        writes = self._buffer_ids(lowered.writes)
        return SymbolicKernelStep(
            (call,),
            kernel,
            members,
            self._buffer_ids(lowered.reads),
            tuple([self.temporary_of.get(out, out) for out in writes]),
            self._buffer_ids(lowered.overwrites),
            is_plain(kernel, self.target.schedules),
        )

    def _buffer_ids(self, variables: Sequence[Var]) -> tuple[int, ...]:
        return tuple([self.buffer_id_of[var] for var in variables])

    def _added_buffer(self, owner: int, k: int) -> int:
        return added_buffer(len(self.buffer_id_of), self.owner_count, owner, k)

    def _operand(self, position: int | None, index: int) -> SymbolicOperand:
        """Operand ``index`` of an equation, or output ``index`` of the program (None)."""
        if position is None:
            atom = self.jaxpr.outvars[index]
        else:
            atom = self.jaxpr.eqns[position].inputs[index]
        if type(atom) is Literal:
            return SymbolicOperand(position, index, NO_BUFFER, False)
        buffer = self._buffer_of(atom)
        buffer = self.temporary_of.get(buffer, buffer)
        return SymbolicOperand(position, index, buffer, atom in self.program.views)

    def _buffer_of(self, var: Var) -> int:
        """The buffer of a variable; an in-place update has that of its operand."""
        return self.buffer_id_of[self.program.storage(var).buffer]

    def _call_steps(self, group: int, position: int) -> Iterator[SymbolicStep]:
        """The step of a library or host call, a loop or branch, after the copies that it needs."""
        eqn = self.jaxpr.eqns[position]
        lowering = eqn.primitive.lower
        if lowering.is_unwritten:
            return
        operands = [self._operand(position, k) for k in range(len(eqn.inputs))]
        outputs = [self.buffer_id_of[var] for var in eqn.outputs]
        if self._is_row_major_copy(eqn):
            yield SymbolicCopyStep(operands[0], outputs[0])
            return
        yield from self._copied_operands([position])
        for k, out in updated_pairs(eqn, self.inner_aliases):
            outputs[out] = self._buffer_of(eqn.outputs[out])
            operands[k] = SymbolicOperand(position, k, outputs[out], False)
        must_be_row_major = lowering.runs_programs or lowering.row_major
        for k, operand in enumerate(operands if must_be_row_major else ()):
            if operand.is_view and not self._is_row_major(eqn.inputs[k]):
                row_major = self._added_buffer(group, 1 + k)
                yield SymbolicCopyStep(operand, row_major)
                operands[k] = SymbolicOperand(position, k, row_major, False)
        if not lowering.runs_programs:
            kind = "host" if lowering.is_host_call else "library"
            yield SymbolicCallStep(group, position, tuple(operands), tuple(outputs), kind)
            return
        workspace = self._added_buffer(group, 0)
        writes = (*outputs, workspace)
        yield SymbolicCallStep(group, position, tuple(operands), writes, "program")

    def _are_row_major_strides(self, strides: Sequence[SizeExpr], shape: Sequence[int]) -> bool:
        """Whether strides are row-major; along dimensions of size 1 any stride is.

        Whether a size is 1 is part of the key, so it needs no query.
        """
        expected = self.exprs.strides(shape)
        return all(
            size == 1 or self.queries.are_equal(stride, row_major)
            for size, stride, row_major in zip(shape, strides, expected, strict=True)
        )

    def _is_row_major(self, atom: Atom) -> bool:
        """Whether the elements of an array are in row-major order, without gaps."""
        assert type(atom) is Var  # a literal is not a view
        layout = self.exprs.layout(atom)
        is_broadcast = True in layout.broadcast
        return not is_broadcast and self._are_row_major_strides(layout.strides, atom.aval.shape)

    def _is_whole_buffer(self, var: Var) -> bool:
        """Whether an alias has all elements of its buffer, in order."""
        layout, sizes = self.exprs.layout(var), []
        for aval in (var.aval, layout.buffer.aval):
            sizes.append(self.exprs.product([self.exprs.size(size) for size in aval.shape]))
        return (
            self.queries.are_equal(*sizes)
            and self.queries.are_equal(layout.offset, self.exprs.zero)
            and self._is_row_major(var)
        )

    def _is_row_major_copy(self, eqn: Eqn) -> bool:
        """Whether a layout op only copies its operand in row-major order, as a reshape does."""
        lowering = eqn.primitive.lower
        if lowering.view is None or lowering.steps is not None or type(eqn.inputs[0]) is Literal:
            return False
        operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
        view = lowering.view(contiguous(operand.shape), out, **eqn.params)
        if view is None or True in view.broadcast:
            return False
        strides = self.exprs.view_strides(eqn, self.exprs.strides(operand.shape), view)
        return self._are_row_major_strides(strides, out.shape)

    def _copied_operands(self, members: Sequence[int]) -> Iterator[SymbolicCopyStep]:
        """Copies of operands that updates of a group must not overwrite."""
        for e in members:
            eqn, in_place = self.jaxpr.eqns[e], self.program.updates.get(e)
            for operand, out in updated_pairs(eqn, self.inner_aliases):
                if in_place is None or (operand, out) not in in_place.pairs:
                    target = self.buffer_id_of[eqn.outputs[out]]
                    yield SymbolicCopyStep(self._operand(e, operand), target)

    def _in_place_inputs(self) -> dict[int, int]:
        """Output buffers in donated inputs, which are updated in place or returned unmodified.

        A map from the buffer of the output to that of the input, as ``Plan.in_place``.
        """
        unmodified = [self.buffer_id_of[var] for var, out in self.donations.items() if out is var]
        in_place = dict(zip(unmodified, unmodified, strict=True))
        for var in self.program.updated():
            buffer = self._buffer_of(var)
            if var in self.program.outputs and buffer < len(self.jaxpr.invars):
                in_place[self.buffer_id_of[var]] = buffer
        return in_place

    def _output_buffers(
        self, into_destinations: bool
    ) -> tuple[tuple[int | None, ...], list[SymbolicCopyStep]]:
        """The buffer of each output, and copies of aliases and repeated outputs.

        An alias of a whole array that is not an input needs no copy: the output is that array, in
        another shape.
        """
        jaxpr, program = self.jaxpr, self.program
        inputs = len(jaxpr.invars)
        updated = set(program.updated())
        outputs: list[int | None] = []
        copies: list[SymbolicCopyStep] = []
        used_buffers: set[int] = set()
        for k, atom in enumerate(jaxpr.outvars):
            buffer_id = None if type(atom) is Literal else self.buffer_id_of[atom]
            is_alias = atom in program.views
            if type(atom) is Var and is_alias:
                base = program.views[atom].buffer
                is_input = self.buffer_id_of[base] < inputs
                if not is_input and base not in updated and self._is_whole_buffer(atom):
                    buffer_id, is_alias = self.buffer_id_of[base], False
            if buffer_id is not None:
                buffer_id = self.temporary_of.get(buffer_id, buffer_id)
            is_input_or_literal = buffer_id is None or buffer_id < inputs
            is_unchanged = type(atom) is Var and self.donations.get(atom) is atom
            if is_input_or_literal and (is_unchanged or not into_destinations):
                outputs.append(buffer_id)
                continue
            updated_buffer = self._buffer_of(atom) if atom in updated else None
            if updated_buffer is not None and updated_buffer not in used_buffers:
                # The array that was updated is the output, under its own or the input's name.
                used_buffers.add(updated_buffer)
                outputs.append(buffer_id if updated_buffer < inputs else updated_buffer)
            elif is_input_or_literal or is_alias or buffer_id in used_buffers:
                target = self._added_buffer(len(self.groups) + k, 0)
                copies.append(SymbolicCopyStep(self._operand(None, k), target))
                outputs.append(target)
            else:
                assert buffer_id is not None  # literals are fixed
                used_buffers.add(buffer_id)
                outputs.append(buffer_id)
        return tuple(outputs), copies


def _with_sizes(program: FusionProgram, space: IterationSpace) -> IterationSpace:
    """A space of another program of the key, with the sizes and variables of this program.

    Positions of equations are equal in all programs of the key; sizes and variables are not.
    """
    sizes = {}
    for key in space.sizes:
        iteration = program.iterations[key[0]]
        assert iteration is not None
        sizes[key] = iteration.sizes[key[1]]
    return replace(space, sizes=sizes, escaping=program.escaping(space.members, space.unstored))
