"""Masks of updates at known places are made in the body of a scan, which then knows the places.

Derivatives keep such a mask from the loop before, as a const.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.scan_simplify import is_cheap, simplified_body
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Elementwise

_MOST_EQUATIONS = 8  # of one const


def consts_made_inside(eqn: Eqn, definition: Any, build: Any) -> Sequence[Atom] | None:
    """A scan that makes in its body what cheap equations make of numbers alone.

    So it is where all that reads such a const changes a carry, and only that: ``compiler/fusion/
    choices.py`` may find that it changes few elements. Elsewhere reading costs less.
    """
    body, count = simplified_body(eqn), eqn.params["num_consts"]
    if body.constvars:
        return None
    pairs = safe_zip(body.invars, eqn.inputs)
    sources = {var: _from_numbers(atom, definition) for var, atom in pairs[:count]}
    known = {var for var, eqns in sources.items() if eqns}
    changes = _changes(eqn, body, known) if known else set()
    readers = [(var, inner) for inner in body.eqns for var in known.intersection(inner.inputs)]
    inside = known - {var for var, inner in readers if inner not in changes}
    inside -= set(body.outvars)
    if not inside:
        return None
    made = [
        new for var, atom in pairs if var in inside for new in _named(sources[var], atom, var)
    ]
    kept = [pair for pair in pairs if pair[0] not in inside]
    inner = body.replace(
        invars=tuple(var for var, _ in kept), eqns=(*made, *body.eqns), argument_names=()
    )
    params = {
        **eqn.params, "jaxpr": ClosedJaxpr(inner), "num_consts": count - len(inside)
    }  # fmt: skip
    return build.apply(eqn.primitive, *[atom for _, atom in kept], **params)


def _changes(eqn: Eqn, body: Jaxpr, known: set[Var]) -> set[Eqn]:
    """Equations that make a carry's next value of the carry, each with a known const."""
    producers = {var: inner for inner in body.eqns for var in inner.outputs}
    first, count = eqn.params["num_consts"], eqn.params["num_carry"]
    found: set[Eqn] = set()
    for var, out in zip(body.invars[first : first + count], body.outvars, strict=False):
        chain: list[Eqn] = []
        atom: Atom | None = out
        while atom is not None and atom is not var:
            inner = producers.get(atom) if type(atom) is Var else None
            atom = None if inner is None else _changed(inner, known)
            if inner is not None:
                chain.append(inner)
        if atom is var:
            found.update(chain)
    return found


def _changed(eqn: Eqn, known: set[Var]) -> Atom | None:
    """The array of which an elementwise op with a known const may change some elements."""
    if known.isdisjoint(eqn.inputs) or not isinstance(eqn.primitive.lower, Elementwise):
        return None
    aval = eqn.outputs[0].aval
    same = (a for a in eqn.inputs if a not in known and a.aval.shape == aval.shape)
    return next(same, None)


def _from_numbers(atom: Atom, definition: Any) -> list[Eqn]:
    """The cheap equations that make an array of numbers alone, in order; none: it is not so."""
    found: list[Eqn] = []
    waiting = [atom]
    while waiting:
        eqn = definition(waiting.pop())
        if eqn is None or not is_cheap(eqn) or len(found) == _MOST_EQUATIONS:
            return []
        found.append(eqn)
        waiting += [operand for operand in eqn.inputs if not _is_number(operand)]
    return list(dict.fromkeys(reversed(found)))


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
