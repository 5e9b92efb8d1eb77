"""Compute masks of updates in the body of a scan, which then knows the indices.

Derivatives keep such a mask from the loop before, as a const.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.fusion.choices import body_in_place, places_in_place
from gpuflow.compiler.passes.program import Replacement
from gpuflow.control.loops.scan_simplify import is_cheap, simplified_body
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var

_MOST_EQUATIONS = 32  # of one const


def consts_made_inside(eqn: Eqn, definition: Any, build: Any) -> Sequence[Atom] | None:
    """A scan that computes in its body elementwise functions of scalars alone.

    The same applies if only updates at known indices read such a const: these are not computed.
    Elsewhere reading costs less.
    """
    body, count = simplified_body(eqn), eqn.params["num_consts"]
    if body.constvars:
        return None
    pairs = safe_zip(body.invars, eqn.inputs)
    sources = {var: _from_numbers(atom, var, definition) for var, atom in pairs[:count]}
    known = {var for var, eqns in sources.items() if eqns}
    if known:
        inner, rest = _with_made(body, {var: sources[var] for var in known}), count - len(known)
        known -= _read(body, places_in_place(inner, rest, eqn.params["num_carry"]))
    if not known:
        return None
    inner = _with_made(body, {var: sources[var] for var in known})
    params = {
        **eqn.params, "jaxpr": ClosedJaxpr(inner), "num_consts": count - len(known)
    }  # fmt: skip
    kept = [atom for var, atom in pairs if var not in known]
    return build.apply(eqn.primitive, *kept, **params)


def updated_elements(eqn: Eqn, definition: Any) -> int | None:
    """Approximate number of elements that an iteration computes if consts are inside; or None."""
    build = Replacement(eqn.source)
    if consts_made_inside(eqn, definition, build) is None:
        return None
    params = build.eqns[-1].params
    body = body_in_place(params["jaxpr"].jaxpr, params["num_consts"], params["num_carry"])
    return sum(_elements(inner) for inner in body.eqns)


def _elements(eqn: Eqn) -> int:
    computed = eqn.inputs[3:] if eqn.primitive.lower.is_update else eqn.outputs
    return sum(atom.aval.size for atom in computed)


def _with_made(body: Jaxpr, made: Mapping[Var, Sequence[Eqn]]) -> Jaxpr:
    """The body of a loop that makes some of its inputs."""
    return body.replace(
        invars=tuple(var for var in body.invars if var not in made),
        eqns=(*[eqn for eqns in made.values() for eqn in eqns], *body.eqns), argument_names=(),
    )  # fmt: skip


def _read(body: Jaxpr, places: Mapping[Eqn, Atom]) -> set[Atom]:
    """The operands of a body, without those that are only update indices."""
    read: set[Atom] = set(body.outvars)
    for eqn in reversed(body.eqns):
        if eqn.effects or not read.isdisjoint(eqn.outputs):
            read.update(atom for atom in eqn.inputs if atom is not places.get(eqn))
    return read


def _from_numbers(atom: Atom, var: Var, definition: Any) -> list[Eqn]:
    """The equations that make ``var`` as ``atom`` is made, in order; none: not of numbers alone."""
    found: list[Eqn] = []
    waiting = [atom]
    while waiting:
        eqn = definition(waiting.pop())
        if eqn is None or not _is_known(eqn) or len(found) == _MOST_EQUATIONS:
            return []
        found.append(eqn)
        waiting += [operand for operand in eqn.inputs if not _is_number(operand)]
    return _named(list(dict.fromkeys(reversed(found))), atom, var)


def _is_known(eqn: Eqn) -> bool:
    return is_cheap(eqn) or eqn.primitive.lower.is_elementwise


def _is_number(atom: Atom) -> bool:
    return type(atom) is Literal and not atom.aval.shape


def _named(eqns: Sequence[Eqn], atom: Atom, var: Var) -> list[Eqn]:
    """The equations with variables of their own, where ``atom`` is ``var``."""
    names: dict[Atom, Var] = {}
    made: list[Eqn] = []
    for eqn in eqns:
        inputs = tuple(names.get(operand, operand) for operand in eqn.inputs)
        outputs = tuple(var if out is atom else Var(out.aval) for out in eqn.outputs)
        names.update(safe_zip(eqn.outputs, outputs))
        made.append(eqn.replace(inputs=inputs, outputs=outputs))
    return made
