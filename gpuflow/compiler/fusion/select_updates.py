"""Turn ``where(i == k, v, x)`` on donated inputs into in-place updates.

    lax.fori_loop(0, n, lambda i, x: x.at[5].set(x[5] + i), x)

A select between an array and new elements at given indices iterates over the whole array. This is
free in a kernel that iterates over the array for another reason, but it dominates if few elements
of a carry change. A select becomes an update if these conditions hold:

- its array is a donated input;
- the result becomes an output by updates alone;
- all these updates happen in the memory of the input.

Tests: tests/compiler/test_updates.py, tests/compiler/test_lane_scatters.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from gpuflow.base.records import record
from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.passes.program import Definitions, Replacement
from gpuflow.compiler.passes.reads_first import reads_first
from gpuflow.compiler.passes.updates_in_place import (
    NO_INNER_ALIASES,
    Donations,
    InnerAliases,
    carry_donations,
    updated_pairs,
)
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder


def _not_wired(*arguments: Any) -> NoReturn:
    raise RuntimeError("[choices] gpuflow must be imported as a whole. Fix: import gpuflow.")


@record(frozen=False)
class _SelectRules:
    """Rules of ops about selects, which the compiler must not import; ``wiring.py`` sets them.

    Attributes:
        match_select: ``eqn -> (predicate, array)``: the predicate of the new elements, and the
            array that they replace; None if the equation is not such a select.
        emit_update: ``(eqn, definition, build) -> bool``: build the update of a matched equation,
            whose result is the last equation of ``build``; False if impossible.
    """

    match_select: Callable[[Eqn], tuple[Atom, Var] | None] = _not_wired
    emit_update: Callable[[Eqn, DefinitionLookup, EqnBuilder], bool] = _not_wired


rules = _SelectRules()


def selects_to_updates(jaxpr: Jaxpr, donations: Donations, inner_aliases: InnerAliases) -> Jaxpr:
    """Replace selects on donated inputs by in-place updates.

    Args:
        jaxpr: the program.
        donations, inner_aliases: the values that may be updated in place, see ``InPlaceAnalysis``.

    Returns:
        The program with updates; a select stays if its update would not be in place.
    """
    if not any(rules.match_select(eqn) is not None for eqn in jaxpr.eqns):
        return jaxpr
    definition = _definitions(jaxpr)
    for var, output in donations.items():
        for out in jaxpr.outvars if output is None else (output,):
            rewritten = _with_updates(jaxpr, definition, var, out, inner_aliases)
            if rewritten is not None and type(out) is Var:
                described = describe_program(rewritten, donations, inner_aliases)
                if described.storage(out)[0] is var:
                    jaxpr, definition = rewritten, _definitions(rewritten)
    return jaxpr


def _definitions(jaxpr: Jaxpr) -> Definitions:
    """The definitions of all variables of a program."""
    definition = Definitions(jaxpr)
    definition.eqn_of.update((output, eqn) for eqn in jaxpr.eqns for output in eqn.outputs)
    return definition


def body_with_updates(jaxpr: Jaxpr, first_carry: int, num_carry: int) -> Jaxpr:
    """The body of a loop with in-place updates of carries; loops in it need not be compiled.

    Args:
        jaxpr: the body.
        first_carry, num_carry: index of the first carry among the inputs, and the count of carries.
    """
    return selects_to_updates(
        jaxpr, carry_donations(jaxpr, first_carry, num_carry), NO_INNER_ALIASES
    )


def update_predicates(jaxpr: Jaxpr, first_carry: int, num_carry: int) -> dict[Eqn, Atom]:
    """The selects of a loop's body that are in-place updates, each with its predicate.

    Args:
        jaxpr, first_carry, num_carry: as of ``body_with_updates``.
    """
    unchanged = set(body_with_updates(jaxpr, first_carry, num_carry).eqns)
    selects = {eqn: rules.match_select(eqn) for eqn in jaxpr.eqns if eqn not in unchanged}
    return {eqn: select[0] for eqn, select in selects.items() if select is not None}


def _with_updates(
    jaxpr: Jaxpr, definition: Definitions, var: Var, out: Atom, inner_aliases: InnerAliases
) -> Jaxpr | None:
    """The program with the selects between an input ``var`` and an output ``out`` as updates.

    None if another equation is between them, or if there is no select.

    Args:
        jaxpr, definition: the program, and the definitions of its variables.
        var, out: an input and an output.
        inner_aliases: as of ``selects_to_updates``.
    """
    updates: dict[Var, list[Eqn]] = {}
    while out is not var:
        eqn = definition(out)
        if eqn is None or type(out) is not Var:
            return None
        aliases = updated_pairs(eqn, inner_aliases)
        operand_of = {eqn.outputs[k]: eqn.inputs[operand] for operand, k in aliases}
        select = rules.match_select(eqn)
        if select is not None:
            replacement = Replacement(eqn.source)
            if not rules.emit_update(eqn, definition, replacement):
                return None
            updates[out] = [
                *replacement.eqns[:-1],
                replacement.eqns[-1].replace(outputs=eqn.outputs),
            ]
            operand_of[out] = select[1]
        if out not in operand_of:
            return None
        out = operand_of[out]
    if not updates:
        return None
    eqns = [new for eqn in jaxpr.eqns for new in _replacements(eqn, updates)]
    return reads_first(jaxpr.replace(eqns=_without_dead_producers(jaxpr, eqns)))


def _replacements(eqn: Eqn, updates: dict[Var, list[Eqn]]) -> Sequence[Eqn]:
    return updates.get(eqn.outputs[0], (eqn,)) if eqn.outputs else (eqn,)


def _without_dead_producers(jaxpr: Jaxpr, eqns: Iterable[Eqn]) -> tuple[Eqn, ...]:
    """The equations without those that only replaced selects read; others stay identical."""
    read_before = {var for eqn in jaxpr.eqns for var in _variables_read(eqn)}
    live = {atom for atom in jaxpr.outvars if type(atom) is not Literal}
    live_eqns: list[Eqn] = []
    for eqn in reversed([*eqns]):
        is_dead = live.isdisjoint(eqn.outputs) and not read_before.isdisjoint(eqn.outputs)
        if is_dead and not eqn.effects:
            continue
        live.update(_variables_read(eqn))
        live_eqns.append(eqn)
    return tuple(reversed(live_eqns))


def _variables_read(eqn: Eqn) -> list[Var]:
    return [atom for atom in eqn.inputs if type(atom) is not Literal]
