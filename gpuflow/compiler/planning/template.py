"""Templates: common data of plans of one program for all sizes, and their keys."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from threading import Lock
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import Group, describe_program, fuse
from gpuflow.compiler.fusion.space import Program
from gpuflow.compiler.lowering.emit import is_written_in
from gpuflow.compiler.lowering.recipes import Recipe
from gpuflow.compiler.lowering.word_sources import Sources, Symbols
from gpuflow.compiler.passes.updates_in_place import (
    NO_INNER_ALIASES,
    Donations,
    InMemory,
    InnerAliases,
)
from gpuflow.compiler.planning.structure import Structure, depends_on_sizes
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Layout
from gpuflow.core.views import View, contiguous

_MOST_RECIPES = 64  # of one group: a class of sizes each
MOST_STRUCTURES = 16  # of one template: they are tried in order


@record
class Template:
    """The size-free part of a plan.

    Attributes:
        groups: of equation positions, in order.
        aliases: indices of equations with outputs that alias values in memory.
        updates: see ``Program``.
        undecided: groups that ``structure.decisions`` depends on.
        excess_precision: whether kernels may leave out roundings, see ``excess_precision.py``.
        in_temporaries: whether outputs may reuse temporaries, see ``donation.py``.
        sources: the sources of the recipes' arguments.
        recipes: of each group, one for each class of sizes so far.
        structures: those of the last programs, the newest first.
        views: of each alias of the last program: its operand's, its type, its parameters, its own.
        lock: held while something is added to these.
    """

    groups: tuple[Group, ...]
    aliases: tuple[int, ...]
    updates: dict[int, InMemory]
    undecided: tuple[Group, ...]
    excess_precision: bool = False
    in_temporaries: bool = False
    sources: Sources = field(default_factory=Sources)
    recipes: dict[int, tuple[Recipe, ...]] = field(default_factory=dict)
    structures: list[Structure] = field(default_factory=list)
    views: dict[int, tuple[View, ShapedArray, dict[str, Any], View | None]] = field(
        default_factory=dict
    )
    lock: Lock = field(default_factory=Lock)

    def describe(self, jaxpr: Jaxpr) -> Program:
        """Description of a program for binding, if every group has its recipe."""
        views: dict[Var, tuple[Var, View]] = {}
        for position in self.aliases:
            eqn = jaxpr.eqns[position]
            rule = eqn.primitive.lower
            done = self.updates.get(position)
            count = len(eqn.outputs) if rule.is_barrier else 1
            pairs = [(k, k) for k in range(count)] if done is None else done.pairs
            for operand, out in pairs:
                atom, var = eqn.inputs[operand], eqn.outputs[out]
                assert type(atom) is Var  # or it would be no alias
                buffer, view = views.get(atom) or (atom, contiguous(atom.aval.shape))
                if rule.view is not None:
                    view = self._view(position, rule, view, var.aval, eqn.params)
                    assert view is not None, f"[bind] the key does not make {eqn} a view"
                views[var] = buffer, view
        outputs = frozenset(atom for atom in jaxpr.outvars if type(atom) is not Literal)
        return Program(jaxpr, (), {}, {}, outputs, views, self.updates)

    def _view(
        self, position: int, rule: Layout, operand: View, out: ShapedArray, params: dict[str, Any]
    ) -> View | None:
        """The view of an alias, cached for the last program."""
        cached = self.views.get(position)
        if cached is not None and cached[0] is operand and cached[1] is out and cached[2] == params:
            return cached[3]
        view = rule.view(operand, out, **params)
        self.views[position] = operand, out, params, view
        return view

    def remember(self, number: int, recipe: Recipe) -> None:
        """Add the recipe of a group."""
        with self.lock:
            cached = self.recipes.get(number, ())
            if len(cached) < _MOST_RECIPES:
                self.recipes[number] = (*cached, recipe)

    def keep(self, structure: Structure) -> None:
        """Add a structure; if there are too many, drop the oldest."""
        with self.lock:
            self.structures[:] = (structure, *self.structures[: MOST_STRUCTURES - 1])


def make_template(
    jaxpr: Jaxpr, donations: Donations, inner_aliases: InnerAliases = NO_INNER_ALIASES,
    excess_precision: bool = False, in_temporaries: bool = False,
) -> Template:  # fmt: skip
    """Group the equations of a program."""
    program = describe_program(jaxpr, donations, inner_aliases)
    groups = tuple(fuse(program))
    undecided = tuple([group for group in groups if depends_on_sizes(group, jaxpr)])
    cached = alias_positions(program), dict(program.updates), undecided
    return Template(groups, *cached, excess_precision, in_temporaries)


def alias_positions(program: Program) -> tuple[int, ...]:
    """The equations with outputs that alias values in memory, in order."""
    positions = {program.producer[var] for var in program.views}
    return tuple(sorted(positions))


def template_key(
    jaxpr: Jaxpr, donations: Donations, inner_aliases: InnerAliases = NO_INNER_ALIASES
) -> Hashable | None:
    """The program with its sizes erased: equal keys have equal templates.

    Sizes become ordinals of first appearance (except 0 and 1), literals keep only the values that
    kernels contain as text. None if a parameter is not hashable.
    """
    return erase_sizes(jaxpr, donations, inner_aliases)[0]


def erase_sizes(
    jaxpr: Jaxpr, donations: Donations, inner_aliases: InnerAliases = NO_INNER_ALIASES
) -> tuple[Hashable | None, Symbols]:
    """The key of a program, see ``template_key``, and the sizes that it omits."""
    symbols: dict[int, int] = {}
    numbers: dict[Var, int] = {}
    types: dict[ShapedArray, Hashable] = {}
    literals: list[Any] = []
    slots: dict[int, int] = {}

    def typed(var: Var) -> Hashable:
        type_key = types.get(var.aval)
        if type_key is None:
            shape = var.aval.shape
            dims = [symbols.setdefault(n, len(symbols)) if n > 1 else str(n) for n in shape]
            type_key = types[var.aval] = (var.aval.dtype, *dims)
        return type_key

    def code(atom: Atom) -> Hashable:
        if type(atom) is Literal:
            value = atom.value
            first = slots.setdefault(id(atom), len(literals))  # of copies, which share operands
            literals.append(value)
            fixed = atom.aval.ndim == 0 and is_written_in(value)
            return ("literal", atom.aval.dtype, str(value) if fixed else first)
        return numbers.setdefault(atom, len(numbers))

    items: list[Hashable] = [tuple([(code(v), typed(v)) for v in jaxpr.invars])]
    for eqn in jaxpr.eqns:
        outs = tuple([(code(v), typed(v)) for v in eqn.outputs])
        ins = tuple([code(a) for a in eqn.inputs])
        items.append((eqn.primitive, ins, outs, _params(eqn, inner_aliases), _links(eqn)))
    items.append(tuple(code(atom) for atom in jaxpr.outvars))
    items.append(tuple((code(var), out and code(out)) for var, out in donations.items()))
    key: Hashable | None = tuple(items)
    try:
        hash(key)
    except TypeError:
        key = None
    return key, Symbols(tuple(symbols), tuple(numbers), tuple(literals))


def _params(eqn: Eqn, inner_aliases: InnerAliases) -> Hashable:
    """Params of an equation that are not sizes.

    The programs of loops and branches have separate templates.
    """
    if eqn.primitive.lower.runs_programs:
        return eqn.effects, inner_aliases.get(eqn, ())
    if not eqn.params:
        return ()
    sizes = eqn.primitive.size_params
    return tuple([(k, v) for k, v in sorted(eqn.params.items()) if k not in sizes])


def _links(eqn: Eqn) -> tuple[tuple[int, int], ...] | None:
    """The dimensions that a layout op preserves, as a slice of a whole dimension does."""
    rule = eqn.primitive.lower
    if rule.view is None:
        return None
    links = rule.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params)
    return None if links is None else tuple(links)
