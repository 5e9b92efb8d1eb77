"""Size-erased program keys: programs with equal keys share groups and symbolic plans.

With a missing part of the key, programs share a plan that is wrong for one of them. With
GPUFLOW_CHECK=1, each bound plan is compared with one that is lowered for its own sizes.

Tests: tests/compiler/test_program_keys.py, tests/compiler/test_symbolic_plans.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from gpuflow.base.util import exact_key
from gpuflow.compiler.lowering.emit import is_constant_in_text
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

    Args:
        jaxpr: the program after all passes.
        donations, inner_aliases: see ``InPlaceAnalysis``.

    Returns:
        The key, None if a parameter is not hashable; and the omitted data.
    """
    symbols: dict[int, int] = {}
    buffer_ids: dict[Var, int] = {}
    type_keys: dict[ShapedArray, Hashable] = {}
    literals: list[Any] = []
    first_index: dict[int, int] = {}

    def type_key_of(var: Var) -> Hashable:
        type_key = type_keys.get(var.aval)
        if type_key is None:
            shape = var.aval.shape
            dims = [symbols.setdefault(n, len(symbols)) if n > 1 else str(n) for n in shape]
            type_key = type_keys[var.aval] = (var.aval.dtype, *dims)
        return type_key

    def atom_code(atom: Atom) -> Hashable:
        """The id of a variable, or a literal without its value unless that is in a text."""
        if type(atom) is Literal:
            value = atom.value
            # Copies of an equation share its literals.
            first = first_index.setdefault(id(atom), len(literals))
            literals.append(value)
            is_in_text = atom.aval.ndim == 0 and is_constant_in_text(value)
            return ("literal", atom.aval.dtype, str(value) if is_in_text else first)
        return buffer_ids.setdefault(atom, len(buffer_ids))

    key_entries: list[Hashable] = [tuple([(atom_code(v), type_key_of(v)) for v in jaxpr.invars])]
    for eqn in jaxpr.eqns:
        output_codes = tuple([(atom_code(v), type_key_of(v)) for v in eqn.outputs])
        input_codes = tuple([atom_code(a) for a in eqn.inputs])
        params = _params(eqn, inner_aliases)
        key_entries.append((eqn.primitive, input_codes, output_codes, params, _links(eqn)))
    key_entries.append(tuple(atom_code(atom) for atom in jaxpr.outvars))
    key_entries.append(
        tuple((atom_code(var), out and atom_code(out)) for var, out in donations.items())
    )
    key: Hashable | None = tuple(key_entries)
    try:
        hash(key)
    except TypeError:
        key = None
    return key, ErasedSizes(tuple(symbols), tuple(buffer_ids), tuple(literals))


def _params(eqn: Eqn, inner_aliases: InnerAliases) -> Hashable:
    """The params of an equation that are not sizes.

    Programs of loops and branches are omitted, because they have separate symbolic plans.
    """
    if eqn.primitive.lower.runs_programs:
        return eqn.effects, inner_aliases.get(eqn, ())
    if not eqn.params:
        return ()
    sizes = eqn.primitive.size_params
    return tuple([(k, exact_key(v)) for k, v in sorted(eqn.params.items()) if k not in sizes])


def _links(eqn: Eqn) -> tuple[tuple[int, int], ...] | None:
    """The dimensions that a layout op preserves; sizes may decide it, as for a whole slice."""
    lowering = eqn.primitive.lower
    if lowering.view is None:
        return None
    links = lowering.links(eqn.inputs[0].aval, eqn.outputs[0].aval, **eqn.params)
    return None if links is None else tuple(links)
