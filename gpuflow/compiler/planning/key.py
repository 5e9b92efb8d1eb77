"""Size-erased program keys: programs with equal keys share groups and symbolic plans."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gpuflow.compiler.lowering.emit import is_written_in
from gpuflow.compiler.lowering.size_table import ErasedSizes
from gpuflow.compiler.passes.updates_in_place import NO_INNER_ALIASES, Donations, InnerAliases
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var


def erase_sizes(
    jaxpr: Jaxpr, donations: Donations, inner_aliases: InnerAliases = NO_INNER_ALIASES
) -> tuple[Hashable | None, ErasedSizes]:
    """The key of a program, and the sizes, variables and literals that it omits.

    Sizes except 0 and 1 are symbols, numbered by first appearance. Literals are in the key only if
    their value is part of a kernel's text. Anything else that fusion or lowering depends on must be
    in the key, or in the guard of a symbolic plan.

    Returns:
        The key, None if a parameter is not hashable; and the omitted data.
    """
    symbols: dict[int, int] = {}
    ids: dict[Var, int] = {}
    types: dict[ShapedArray, Hashable] = {}
    literals: list[Any] = []
    first_slots: dict[int, int] = {}

    def typed(var: Var) -> Hashable:
        type_key = types.get(var.aval)
        if type_key is None:
            shape = var.aval.shape
            dims = [symbols.setdefault(n, len(symbols)) if n > 1 else str(n) for n in shape]
            type_key = types[var.aval] = (var.aval.dtype, *dims)
        return type_key

    def atom_code(atom: Atom) -> Hashable:
        if type(atom) is Literal:
            value = atom.value
            # Copies of an equation share its literals.
            first = first_slots.setdefault(id(atom), len(literals))
            literals.append(value)
            fixed = atom.aval.ndim == 0 and is_written_in(value)
            return ("literal", atom.aval.dtype, str(value) if fixed else first)
        return ids.setdefault(atom, len(ids))

    items: list[Hashable] = [tuple([(atom_code(v), typed(v)) for v in jaxpr.invars])]
    for eqn in jaxpr.eqns:
        outs = tuple([(atom_code(v), typed(v)) for v in eqn.outputs])
        ins = tuple([atom_code(a) for a in eqn.inputs])
        items.append((eqn.primitive, ins, outs, _params(eqn, inner_aliases), _links(eqn)))
    items.append(tuple(atom_code(atom) for atom in jaxpr.outvars))
    items.append(tuple((atom_code(var), out and atom_code(out)) for var, out in donations.items()))
    key: Hashable | None = tuple(items)
    try:
        hash(key)
    except TypeError:
        key = None
    return key, ErasedSizes(tuple(symbols), tuple(ids), tuple(literals))


def _params(eqn: Eqn, inner_aliases: InnerAliases) -> Hashable:
    """The params of an equation that are not sizes.

    Programs of loops and branches are omitted, because they have separate symbolic plans.
    """
    if eqn.primitive.lower.runs_programs:
        return eqn.effects, inner_aliases.get(eqn, ())
    if not eqn.params:
        return ()
    sizes = eqn.primitive.size_params
    return tuple([(k, v) for k, v in sorted(eqn.params.items()) if k not in sizes])


def _links(eqn: Eqn) -> tuple[tuple[int, int], ...] | None:
    """The dimensions that a layout op preserves; sizes may decide it, as for a whole slice."""
    rule = eqn.primitive.lower
    if rule.view is None:
        return None
    links = rule.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params)
    return None if links is None else tuple(links)
