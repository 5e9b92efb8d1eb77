"""Binding: a template and the sizes of one program give a plan.

Groups become kernels with their arguments, equal small maps become one step, and every buffer gets
its place: outputs of their own, temporaries in one arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from gpuflow.base.config import config
from gpuflow.compiler.buffers import with_memory
from gpuflow.compiler.donation import InPlace, choose_in_place, last_readers
from gpuflow.compiler.fuse import Group, describe_program
from gpuflow.compiler.lower import (
    KernelCall,
    Lowered,
    lower_with_accesses,
)
from gpuflow.compiler.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Operand,
    Plan,
    Programs,
    ProgramStep,
    Step,
    memory,
    workspace_bytes,
)
from gpuflow.compiler.recipe_maker import make_recipe
from gpuflow.compiler.recipes import BoundSizes, Recipe, Symbols, check_same
from gpuflow.compiler.segments import join_equal, with_launches
from gpuflow.compiler.space import Program, Space
from gpuflow.compiler.target import PLAIN_TARGET, Target
from gpuflow.compiler.templates import Template, alias_positions
from gpuflow.compiler.updates import Given
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Branch, HostCall, Layout, Loop, Update
from gpuflow.core.views import contiguous
from gpuflow.kir.in_place import overwritten_early

_MOST_RECIPES = 64  # of one group: a class of sizes each


def bind(
    template: Template, jaxpr: Jaxpr, programs: Programs, given: Given, into_given: bool = False,
    target: Target = PLAIN_TARGET, symbols: Symbols | None = None,
) -> Plan:  # fmt: skip
    """Give a template the sizes of ``jaxpr``.

    Args:
        template: of a program with this one's key.
        jaxpr: the program.
        programs: the compiled programs of loops and branches.
        given: inputs that may be overwritten; each with the one output that may take its memory,
            or None for any.
        into_given: outputs are written into arrays that a call passes.
        target: the platform.
        symbols: what the key leaves out; None if it is not known.
    """
    binder = _Binder(template, jaxpr, given, symbols)
    program = binder.program
    steps: list[Step] = []
    for number, group in enumerate(template.groups):
        if group.space is None:
            steps += _call_steps(program, jaxpr.eqns[group.members[0]], programs)
        else:
            if number in template.updates:
                steps += _copied_operands(program, group.members)
            call = binder.call(number, group)
            eqns = tuple([jaxpr.eqns[e] for e in group.members])
            steps.append(KernelStep(call.kernel, (call,), eqns))
    steps = join_equal(steps)
    outputs, copies = _outputs(program, into_given)
    steps = [prepared(step, target) for step in (*steps, *copies)]
    plan = Plan(
        jaxpr, given, tuple(group.members for group in template.groups), tuple(steps), outputs,
        in_place=binder.taken,
    )  # fmt: skip
    return with_memory(plan, into_given)


class _Binder:
    """Kernels of a program's groups: by their recipes, or lowered."""

    def __init__(
        self, template: Template, jaxpr: Jaxpr, given: Given, symbols: Symbols | None
    ) -> None:
        self.template, self.jaxpr, self.given = template, jaxpr, given
        self.symbols = symbols
        # Recipes do not know what a size of 0 does.
        quick = None
        if symbols is not None and 0 not in symbols.sizes:
            quick = template.describe(jaxpr)
        self.program = quick or self.whole
        self.has_recipes = quick is not None
        self.recipes: dict[int, tuple[Recipe, ...]] = {}
        if quick is not None and symbols is not None:
            # Other threads may add recipes; these know no sources but the ones that are there.
            self.recipes = {k: tuple(own) for k, own in tuple(template.recipes.items())}
            self.sizes = BoundSizes(jaxpr, symbols, quick.views)
            self.words = template.sources.words(self.sizes)
        updated = {self.program.place(jaxpr.eqns[e].outputs[0])[0] for e in template.before}
        self.free = {var: out for var, out in given.items() if var not in updated}
        self.taken = _updated_inputs(self.program)

    @cached_property
    def whole(self) -> Program:
        """All that lowering has to know."""
        return describe_program(self.jaxpr, self.given)

    @cached_property
    def last(self) -> dict[Var, int]:
        """The last group that reads each buffer."""
        return last_readers(self.whole, [group.members for group in self.template.groups])

    def call(self, number: int, group: Group) -> KernelCall:
        """The kernel of a group with its arguments."""
        for recipe in self.recipes.get(number, ()):
            if recipe.fits(self.words, self.sizes):
                variables = self.sizes.symbols.variables
                made = recipe.call(self.words, variables)
                if config.environment.check:
                    check_same(made, self._lowered(number, group)[2][0])
                self._take({variables[out]: variables[var] for out, var in recipe.in_place})
                return made
        space, in_place, lowered = self._lowered(number, group)
        self._take(in_place.buffer_of)
        if self.has_recipes and self.symbols is not None and self._is_like_template:
            self._remember(number, space, in_place, lowered, self.symbols)
        return lowered[0]

    def _remember(
        self, number: int, space: Space, in_place: InPlace, lowered: Lowered, symbols: Symbols
    ) -> None:
        """Add the recipe of a group."""
        sources = self.template.sources
        recipe = make_recipe(self.whole, space, in_place, lowered, symbols, sources)
        if recipe is not None and len(self.recipes.get(number, ())) < _MOST_RECIPES:
            self.template.recipes.setdefault(number, []).append(recipe)

    def _lowered(self, number: int, group: Group) -> tuple[Space, InPlace, Lowered]:
        """The group's space with its sizes, what it overwrites, and its kernel."""
        assert group.space is not None
        space = _with_sizes(self.whole, group.space)
        in_place = choose_in_place(self.whole, space, number, self.last, dict(self.free))
        lowered = lower_with_accesses(self.whole, space, in_place)
        early = overwritten_early(lowered[0].kernel)
        if early:
            in_place = in_place.without([lowered[1].accesses[e.operand].buffer for e in early])
            lowered = lower_with_accesses(self.whole, space, in_place)
        return space, in_place, lowered

    @cached_property
    def _is_like_template(self) -> bool:
        return alias_positions(self.whole) == self.template.aliases

    def _take(self, buffer_of: Mapping[Var, Var]) -> None:
        """Give the memory of inputs to outputs."""
        for out, var in buffer_of.items():
            del self.free[var]
            self.taken[out] = var


def prepared(step: Step, target: Target) -> Step:
    """The step with what its platform runs for it, and the memory that this needs."""
    if isinstance(step, KernelStep):
        return with_launches(step, target)
    count = target.workspace_bytes(step) if isinstance(step, CallStep) else 0
    return replace(step, workspace=memory(count)) if count else step


def _updated_inputs(program: Program) -> dict[Var, Var]:
    """Outputs that are donated inputs, updated."""
    inputs = set(program.jaxpr.invars)
    taken: dict[Var, Var] = {}
    for position in program.before:
        var = program.jaxpr.eqns[position].outputs[0]
        if var in program.outputs and program.place(var)[0] in inputs:
            taken[var] = program.place(var)[0]
    return taken


def _copied_operands(program: Program, members: Sequence[int]) -> list[CopyStep]:
    """Copies of what updates of a group may not overwrite, in buffers of their own."""
    copies = []
    for e in members:
        eqn = program.jaxpr.eqns[e]
        if isinstance(eqn.primitive.lower, Update) and e not in program.before:
            copies.append(CopyStep(_operand(program, eqn.inputs[0]), eqn.outputs[0]))
    return copies


def _with_sizes(program: Program, space: Space) -> Space:
    """A template's space with the sizes and variables of this program."""
    sizes = {}
    for key in space.sizes:
        iteration = program.iterations[key[0]]
        assert iteration is not None
        sizes[key] = iteration.sizes[key[1]]
    return replace(space, sizes=sizes, escaping=program.escaping(space.members, space.unstored))


def _operand(program: Program, atom: Atom) -> Operand:
    if type(atom) is Literal:
        return Operand(None, None, atom.aval, atom.value)
    buffer, view = program.place(atom)
    return Operand(buffer, view, atom.aval)


def _call_steps(program: Program, eqn: Eqn, programs: Programs) -> list[Step]:
    operands = [_operand(program, atom) for atom in eqn.inputs]
    if _is_row_major_copy(eqn):
        return [CopyStep(operands[0], eqn.outputs[0])]
    if not isinstance(eqn.primitive.lower, (Loop, Branch)):
        kind = "host" if isinstance(eqn.primitive.lower, HostCall) else "library"
        return [CallStep(eqn, tuple(operands), kind)]
    copies: list[Step] = []
    for k, operand in enumerate(operands):
        if operand.view is not None and not operand.view.is_contiguous:
            row_major = Var(operand.aval)
            copies.append(CopyStep(operand, row_major))
            operands[k] = Operand(row_major, contiguous(operand.aval.shape), operand.aval)
    workspace = memory(workspace_bytes(eqn, programs[eqn]))
    return [*copies, ProgramStep(eqn, tuple(operands), programs[eqn], workspace)]


def _is_row_major_copy(eqn: Eqn) -> bool:
    """Whether the output is the operand's elements in row-major order."""
    rule = eqn.primitive.lower
    if not isinstance(rule, Layout) or type(eqn.inputs[0]) is Literal:
        return False
    operand, out = eqn.inputs[0].aval, eqn.outputs[0].aval
    view = rule.view(contiguous(operand.shape), out, **eqn.params)
    return view is not None and view == contiguous(out.shape)


def _outputs(
    program: Program, into_given: bool
) -> tuple[tuple[int | Var | Literal, ...], list[CopyStep]]:
    """Where each output comes from; aliases and repeated outputs are copied."""
    jaxpr = program.jaxpr
    positions = {var: k for k, var in enumerate(jaxpr.invars)}
    updated = [jaxpr.eqns[e].outputs[0] for e in program.before]
    updates = {var: program.place(var)[0] for var in updated}
    outputs: list[int | Var | Literal] = []
    copies: list[CopyStep] = []
    taken: set[Var] = set()
    for atom in jaxpr.outvars:
        fixed = type(atom) is Literal or atom in positions
        if fixed and not into_given:
            outputs.append(atom if type(atom) is Literal else positions[atom])
            continue
        if atom in updates and updates[atom] not in taken:
            # The array that was updated is the output, under its own or the input's name.
            buffer = updates[atom]
            taken.add(buffer)
            outputs.append(atom if buffer in positions else buffer)
        elif fixed or atom in program.views or atom in taken:
            target = Var(atom.aval)
            copies.append(CopyStep(_operand(program, atom), target))
            outputs.append(target)
        else:
            assert isinstance(atom, Var)  # literals are fixed
            taken.add(atom)
            outputs.append(atom)
    return tuple(outputs), copies
