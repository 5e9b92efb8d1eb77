"""Binding: a template and the sizes of one program give a plan.

Groups become kernels with their arguments, by their recipes or lowered. The structure that follows
from the kernels (``structures``) is completed by data that depends on sizes: arguments, launches,
views of operands and the offset of every buffer.
"""

from __future__ import annotations

from dataclasses import replace

from gpuflow.base.cached import cached_property
from gpuflow.base.config import config
from gpuflow.compiler.fusion.fuse import Group, describe_program
from gpuflow.compiler.fusion.space import Program, Space
from gpuflow.compiler.lowering.donation import Readers, choose_in_place, readers_of
from gpuflow.compiler.lowering.excess_precision import unrounded_values
from gpuflow.compiler.lowering.lower import KernelCall, Lowered, Use, lower_group
from gpuflow.compiler.lowering.recipes import Calls, Recipe, check_same, make_recipe, merge_recipes
from gpuflow.compiler.lowering.symbols import Facts, Numbers
from gpuflow.compiler.lowering.word_sources import BoundSizes, Symbols
from gpuflow.compiler.passes.updates_in_place import Donations, InnerAliases
from gpuflow.compiler.planning.fill import filled
from gpuflow.compiler.planning.plan import CallStep, Plan, Programs, inner_aliases_of
from gpuflow.compiler.planning.structure import Kind, Structure, decisions, make_structure
from gpuflow.compiler.planning.template import Template, alias_positions
from gpuflow.compiler.target import Target
from gpuflow.core.jaxpr import Jaxpr, Var
from gpuflow.kir.in_place import overwritten_early


def bind(
    template: Template, jaxpr: Jaxpr, programs: Programs, donations: Donations,
    into_destinations: bool, target: Target, symbols: Symbols,
) -> Plan:  # fmt: skip
    """Give a template the sizes of ``jaxpr``.

    Args:
        template: of a program with this one's key.
        jaxpr: the program.
        programs: the compiled programs of loops and branches.
        donations: inputs that may be overwritten; each with the one output that may take its
            memory, or None for any.
        into_destinations: outputs are written into arrays that a call passes.
        target: the platform.
        symbols: the sizes that the key omits.
    """
    binder = _Binder(template, jaxpr, donations, inner_aliases_of(programs), symbols)
    program = binder.program
    decided = decisions(template.undecided, jaxpr, program.views)
    kind = Kind(target, into_destinations, decided)
    cached = binder.cached_structure(kind)
    structure, calls = cached or binder.new_structure(kind)
    plan = filled(structure, program, donations, symbols, calls, programs)
    if cached is None:
        template.keep(structure)
    elif binder.check:
        structure, calls = binder.new_structure(kind)
        other = filled(structure, program, donations, symbols, calls, programs)
        same = _without_choices(plan) == _without_choices(other)
        assert same, "[bind] a structure that was kept gives another plan"
    return plan


def _without_choices(plan: Plan) -> Plan:
    """The plan without the choices of providers, which follow from the steps."""
    steps = tuple([
        step._replace(choice=None) if isinstance(step, CallStep) else step for step in plan.steps
    ])
    return replace(plan, steps=steps)


class _Binder:
    """Kernels of a program's groups: by their recipes, or lowered."""

    def __init__(
        self, template: Template, jaxpr: Jaxpr, donations: Donations,
        inner_aliases: InnerAliases, symbols: Symbols,
    ) -> None:  # fmt: skip
        self.template, self.jaxpr = template, jaxpr
        self.donations, self.inner_aliases = donations, inner_aliases
        self.symbols, self.check = symbols, config.environment.check
        self.program = template.describe(jaxpr)
        self.taken: dict[int, int] = {}
        # Other threads may add recipes with new sources, so the current ones are copied first.
        self.recipes, self.structures = template.recipes.copy(), tuple(template.structures)
        self.values = template.sources.values(BoundSizes(jaxpr, symbols, self.program.views))

    @cached_property
    def whole(self) -> Program:
        """The description of the program for lowering."""
        excess = self.template.excess_precision
        unrounded = unrounded_values(self.jaxpr) if excess else frozenset()
        whole = describe_program(
            self.jaxpr, self.donations, self.inner_aliases, unrounded
        )
        aliases = self.template.aliases
        assert alias_positions(whole) == aliases, "[bind] the key does not determine the views"
        return whole

    @cached_property
    def numbers(self) -> Numbers:
        """The size expressions of lowering."""
        return Numbers(self.whole, self.symbols)

    @cached_property
    def number_of(self) -> dict[Var, int]:
        """The id of each variable's buffer."""
        return {var: k for k, var in enumerate(self.symbols.variables)}

    @cached_property
    def readers(self) -> Readers:
        """The groups that read values in memory."""
        return readers_of(self.whole, [group.members for group in self.template.groups])

    def cached_structure(self, kind: Kind) -> tuple[Structure, Calls] | None:
        """The cached structure of an earlier program, and the arguments of its kernels."""
        for structure in self.structures:
            recipes = structure.recipes
            if structure.kind == kind and recipes.guard.holds(self.values):
                return structure, recipes.calls(self.values)
        return None

    def new_structure(self, kind: Kind) -> tuple[Structure, Calls]:
        """A structure for this program."""
        groups = self.template.groups
        recipes: list[Recipe | None] = [None] * len(groups)
        uses: list[Use | None] = [None] * len(groups)
        calls: Calls = {}
        for index, group in enumerate(groups):
            if group.space is not None:
                recipes[index], uses[index], calls[index] = self._kernel(index, group)
        merged = merge_recipes(recipes)
        structure = make_structure(
            self.program, self.donations, self.inner_aliases, groups, uses, self.number_of, kind,
            merged,
        )  # fmt: skip
        return structure, calls

    def _kernel(self, index: int, group: Group) -> tuple[Recipe, Use, KernelCall]:
        """The recipe of a group, its kernel and the arguments."""
        for recipe in self.recipes.get(index, ()):
            if recipe.guard.holds(self.values):
                use, call = recipe.use, recipe.call(self.values)
                if self.check:
                    check_same((use, call), self._lowered(index, group).numbered(self.number_of))
                break
        else:
            lowered = self._lowered(index, group)
            use, call = lowered.numbered(self.number_of)
            recipe = make_recipe(lowered, use, call, self.template.sources)
            self.template.remember(index, recipe)
        self.taken.update(use.in_place)
        return recipe, use, call

    def _lowered(self, index: int, group: Group) -> Lowered:
        """The group's kernel."""
        assert group.space is not None
        space = _with_sizes(self.whole, group.space)
        in_place = choose_in_place(
            self.numbers, space, index, self.readers, self._free(), self.template.in_temporaries
        )  # fmt: skip
        facts = Facts()
        lowered = lower_group(self.numbers, space, in_place, facts)
        early = overwritten_early(lowered.kernel)
        if early:
            accesses = lowered.operands.accesses
            in_place = in_place.without([accesses[e.operand].buffer for e in early])
            lowered = lower_group(self.numbers, space, in_place, facts)
        return lowered

    def _free(self) -> dict[Var, Var | None]:
        """The donated inputs that are not yet reused, and are not updated."""
        taken = {self.program.storage(var)[0] for var in self.program.updated()}
        taken.update(self.symbols.variables[buffer] for buffer in self.taken.values())
        return {var: out for var, out in self.donations.items() if var not in taken}


def _with_sizes(program: Program, space: Space) -> Space:
    """A template's space with the sizes and variables of this program."""
    sizes = {}
    for key in space.sizes:
        iteration = program.iterations[key[0]]
        assert iteration is not None
        sizes[key] = iteration.sizes[key[1]]
    return replace(space, sizes=sizes, escaping=program.escaping(space.members, space.unstored))
