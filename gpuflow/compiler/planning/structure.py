"""Structures: common data of plans of one template if their groups have the same kernels.

The steps and their order, the reads and writes of each, and the layout of operands of library calls
follow from the template and the kernels of its groups. They are computed once and stored with the
template; ``bind`` fills in the data that depends on sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import Group
from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.lower import NO_BUFFER, Use
from gpuflow.compiler.lowering.recipes import MergedRecipes
from gpuflow.compiler.passes.updates_in_place import Donations, InnerAliases, updated_pairs
from gpuflow.compiler.planning.buffers import Arrangement
from gpuflow.compiler.planning.segments import join_equal
from gpuflow.compiler.planning.step_shapes import CallShape, CopyShape, KernelShape, Shape, Slot
from gpuflow.compiler.schedules.schedule import is_plain
from gpuflow.compiler.target import Target
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.views import View, contiguous

Views = Mapping[Var, tuple[Var, View]]


class Kind(NamedTuple):
    """Common data of plans of one structure, except for the kernels.

    Attributes:
        target: the platform.
        into_destinations: outputs are written into arrays that a call passes.
        decided: see ``decisions``.
    """

    target: Target
    into_destinations: bool
    decided: tuple[bool, ...]


@record
class Structure:
    """A plan without sizes.

    Attributes:
        kind: the key of the structure, except for the kernels.
        recipes: the recipes of its kernels.
        steps: in order.
        groups: the equations of each group.
        outputs: buffers; None for a literal.
        in_place: outputs that take the memory of inputs.
        owned, destinations: outputs with separate memory, see ``Plan``.
        owners: count of groups and outputs that may add buffers, see ``added_number``.
        arrangements: by the ids of scratch buffers of all steps.
    """

    kind: Kind
    recipes: MergedRecipes
    steps: tuple[Shape, ...]
    groups: tuple[tuple[int, ...], ...]
    outputs: tuple[int | None, ...]
    in_place: Mapping[int, int]
    owned: tuple[int, ...]
    destinations: tuple[int, ...]
    owners: int
    arrangements: dict[tuple[int, ...], Arrangement] = field(default_factory=dict)


def added_number(variables: int, owners: int, owner: int, k: int) -> int:
    """The id of the ``k``-th buffer that a group or an output adds.

    It does not depend on other groups. Owners are the groups, followed by the outputs.
    """
    return variables + owner + owners * k


def decisions(groups: Sequence[Group], jaxpr: Jaxpr, views: Views) -> tuple[bool, ...]:
    """Size-dependent decisions about steps that are not kernels.

    Args:
        groups: those that ``depends_on_sizes`` names.
        jaxpr: the program.
        views: its aliases.
    """
    decided: list[bool] = []
    for group in groups:
        eqn = jaxpr.eqns[group.members[0]]
        if eqn.primitive.lower.view is not None:
            decided.append(_is_row_major_copy(eqn))
        else:
            decided += [_is_row_major(atom, views) for atom in eqn.inputs]
    decided += [_is_whole(atom, views) for atom in jaxpr.outvars if atom in views]
    return tuple(decided)


def depends_on_sizes(group: Group, jaxpr: Jaxpr) -> bool:
    """Whether ``decisions`` depends on a group."""
    rule = jaxpr.eqns[group.members[0]].primitive.lower
    return group.space is None and (rule.view is not None or _takes_rows(rule))


def _takes_rows(rule: object) -> bool:
    """Whether operands must be row-major."""
    return rule.runs_programs or (rule.row_major)


def _is_row_major(atom: Atom, views: Views) -> bool:
    return type(atom) is Literal or atom not in views or views[atom][1].is_contiguous


def _is_whole(atom: Atom, views: Views) -> bool:
    """Whether an alias is all elements of its source, in order."""
    if type(atom) is Literal or atom not in views:
        return False
    base, view = views[atom]
    return view.is_contiguous and view.offset == 0 and atom.aval.size == base.aval.size


def _is_row_major_copy(eqn: Eqn) -> bool:
    """Whether the output is the operand's elements in row-major order."""
    rule = eqn.primitive.lower
    if rule.view is None or type(eqn.inputs[0]) is Literal:
        return False
    operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    view = rule.view(contiguous(operand.shape), out, **eqn.params)
    return view is not None and view == contiguous(out.shape)


def make_structure(
    program: Program, donations: Donations, inner_aliases: InnerAliases, groups: Sequence[Group],
    uses: Sequence[Use | None], number_of: Mapping[Var, int], kind: Kind, recipes: MergedRecipes,
) -> Structure:  # fmt: skip
    """The structure of a program.

    Args:
        program: its indices of variables and its updates are needed.
        donations, inner_aliases: of the program.
        groups: of the template.
        uses: for each group its kernel, if it has one.
        number_of: the buffers.
        kind: see there.
        recipes: the recipes of the kernels.
    """
    maker = _Maker(program, donations, inner_aliases, groups, number_of)
    return maker.structure(uses, kind, recipes)


class _Maker:
    def __init__(
        self, program: Program, donations: Donations, inner_aliases: InnerAliases,
        groups: Sequence[Group], number_of: Mapping[Var, int],
    ) -> None:  # fmt: skip
        self.program, self.groups, self.number_of = program, groups, number_of
        self.donations, self.inner_aliases = donations, inner_aliases
        self.jaxpr = program.jaxpr
        self.owners = len(groups) + len(self.jaxpr.outvars)
        self.in_temporaries: dict[int, int] = {}  # outputs, and the temporaries that become them

    def structure(
        self, uses: Sequence[Use | None], kind: Kind, recipes: MergedRecipes
    ) -> Structure:
        steps: list[Shape] = []
        in_place, inputs = self._updated_inputs(), len(self.jaxpr.invars)
        for index, (group, use) in enumerate(zip(self.groups, uses, strict=True)):
            if use is None:
                steps += self._call(index, group.members[0])
                continue
            steps += self._copied_operands(group.members)
            for out, buffer in use.in_place:
                (in_place if buffer < inputs else self.in_temporaries)[out] = buffer
            writes = tuple([self.in_temporaries.get(out, out) for out in use.writes])
            steps.append(
                KernelShape(
                    (index,), use.kernel, group.members, use.reads, writes, use.overwrites,
                    is_plain(use.kernel, kind.target.schedules),
                )
            )  # fmt: skip
        outputs, copies = self._outputs(kind.into_destinations)
        written = dict.fromkeys([out for out in outputs if out is not None and out >= inputs])
        new = tuple([out for out in written if out not in in_place])
        owned, destinations = ((), new) if kind.into_destinations else (new, ())
        return Structure(
            kind, recipes, (*join_equal(steps), *copies),
            tuple([group.members for group in self.groups]), outputs,
            in_place, owned, destinations, self.owners,
        )  # fmt: skip

    def _added(self, owner: int, k: int) -> int:
        return added_number(len(self.number_of), self.owners, owner, k)

    def _slot(self, position: int | None, index: int) -> Slot:
        if position is None:
            atom = self.jaxpr.outvars[index]
        else:
            atom = self.jaxpr.eqns[position].inputs[index]
        if type(atom) is Literal:
            return Slot(position, index, NO_BUFFER, False)
        buffer = self.number_of[self.program.storage(atom)[0]]
        buffer = self.in_temporaries.get(buffer, buffer)
        return Slot(position, index, buffer, atom in self.program.views)

    def _call(self, group: int, position: int) -> Iterator[Shape]:
        eqn = self.jaxpr.eqns[position]
        if eqn.primitive.lower.is_unwritten:
            return
        slots = [self._slot(position, k) for k in range(len(eqn.inputs))]
        outputs = [self.number_of[var] for var in eqn.outputs]
        rule = eqn.primitive.lower
        if _is_row_major_copy(eqn):
            yield CopyShape(slots[0], outputs[0])
            return
        yield from self._copied_operands([position])
        for k, out in updated_pairs(eqn, self.inner_aliases):
            outputs[out] = self._updated_buffer(eqn.outputs[out])
            slots[k] = Slot(position, k, outputs[out], False)
        for k, slot in enumerate(slots if _takes_rows(rule) else ()):
            if slot.is_view and not _is_row_major(eqn.inputs[k], self.program.views):
                row_major = self._added(group, 1 + k)
                yield CopyShape(slot, row_major)
                slots[k] = Slot(position, k, row_major, False)
        if not rule.runs_programs:
            kind = "host" if rule.is_host_call else "library"
            yield CallShape(group, position, tuple(slots), tuple(outputs), kind)
            return
        workspace = self._added(group, 0)
        yield CallShape(group, position, tuple(slots), (*outputs, workspace), "program")

    def _copied_operands(self, members: Sequence[int]) -> Iterator[CopyShape]:
        """Copies of operands that updates of a group may not overwrite, in separate buffers."""
        for e in members:
            eqn, done = self.jaxpr.eqns[e], self.program.updates.get(e)
            for operand, out in updated_pairs(eqn, self.inner_aliases):
                if done is None or (operand, out) not in done.pairs:
                    yield CopyShape(self._slot(e, operand), self.number_of[eqn.outputs[out]])

    def _updated_buffer(self, var: Var) -> int:
        """The buffer of an updated array: its operand's, or that of a copy."""
        return self.number_of[self.program.storage(var)[0]]

    def _updated_inputs(self) -> dict[int, int]:
        """Outputs that are donated inputs: updated, or returned unmodified."""
        same = [self.number_of[var] for var, out in self.donations.items() if out is var]
        taken = dict(zip(same, same, strict=True))
        for var in self.program.updated():
            buffer = self._updated_buffer(var)
            if var in self.program.outputs and buffer < len(self.jaxpr.invars):
                taken[self.number_of[var]] = buffer
        return taken

    def _outputs(
        self, into_destinations: bool
    ) -> tuple[tuple[int | None, ...], list[CopyShape]]:
        """The buffer of each output, and copies for aliases and repeated outputs.

        An alias of a whole array that is not an input is that array, in another shape.
        """
        jaxpr, program, number_of = self.jaxpr, self.program, self.number_of
        inputs = len(jaxpr.invars)
        updated = set(program.updated())
        outputs: list[int | None] = []
        copies: list[CopyShape] = []
        taken: set[int] = set()
        for k, atom in enumerate(jaxpr.outvars):
            number = None if type(atom) is Literal else number_of[atom]
            is_alias = atom in program.views
            if is_alias and _is_whole(atom, program.views):
                base = program.views[atom][0]
                if number_of[base] >= inputs and base not in updated:
                    number, is_alias = number_of[base], False
            if number is not None:
                number = self.in_temporaries.get(number, number)
            fixed = number is None or number < inputs
            is_unchanged = type(atom) is Var and self.donations.get(atom) is atom
            if fixed and (is_unchanged or not into_destinations):
                outputs.append(number)
                continue
            buffer = self._updated_buffer(atom) if atom in updated else None
            if buffer is not None and buffer not in taken:
                # The array that was updated is the output, under its own or the input's name.
                taken.add(buffer)
                outputs.append(number if buffer < inputs else buffer)
            elif fixed or is_alias or number in taken:
                target = self._added(len(self.groups) + k, 0)
                copies.append(CopyShape(self._slot(None, k), target))
                outputs.append(target)
            else:
                assert number is not None  # literals are fixed
                taken.add(number)
                outputs.append(number)
        return tuple(outputs), copies
