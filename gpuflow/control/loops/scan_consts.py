"""Rematerialize masks of updates in the body of a scan, so that their indices are visible there.

Derivatives pass such a mask, which the forward loop has computed, as a const.

Tests: tests/control/test_scan_recompute.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuflow.base.util import safe_zip
from gpuflow.compiler.fusion.select_updates import body_with_updates, update_predicates
from gpuflow.compiler.passes.program import Replacement
from gpuflow.control.loops.scan_simplify import is_cheap, simplified_body
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering.rewrite_rules import DefinitionLookup, EqnBuilder

_MAX_EQUATIONS = 32  # that recompute one const


def recompute_consts(
    eqn: Eqn, definition: DefinitionLookup, build: EqnBuilder
) -> Sequence[Atom] | None:
    """Recompute consts that are elementwise functions of scalars in the body of a scan.

    This pays only if in-place updates at static indices read the const, so that the mask is never
    computed. Otherwise reading it costs less.
    """
    body, count = simplified_body(eqn), eqn.params["num_consts"]
    if body.constvars:
        return None
    pairs = safe_zip(body.invars, eqn.inputs)
    sources = {var: _from_scalars(atom, var, definition) for var, atom in pairs[:count]}
    recomputed = {var for var, eqns in sources.items() if eqns}
    if recomputed:
        inner, num_consts = (
            _with_recomputed(body, {var: sources[var] for var in recomputed}),
            count - len(recomputed),
        )
        recomputed -= _read_atoms(
            body, update_predicates(inner, num_consts, eqn.params["num_carry"])
        )
    if not recomputed:
        return None
    inner = _with_recomputed(body, {var: sources[var] for var in recomputed})
    params = {**eqn.params, "jaxpr": ClosedJaxpr(inner), "num_consts": count - len(recomputed)}
    remaining = [atom for var, atom in pairs if var not in recomputed]
    return build.apply(eqn.primitive, *remaining, **params)


def updated_elements(eqn: Eqn, definition: DefinitionLookup) -> int | None:
    """Approximate number of elements that an iteration computes after ``recompute_consts``."""
    build = Replacement(eqn.source)
    if recompute_consts(eqn, definition, build) is None:
        return None
    params = build.eqns[-1].params
    body = body_with_updates(params["jaxpr"].jaxpr, params["num_consts"], params["num_carry"])
    return sum(_elements(inner) for inner in body.eqns)


def _elements(eqn: Eqn) -> int:
    computed = eqn.inputs[3:] if eqn.primitive.lower.is_update else eqn.outputs
    return sum(atom.aval.size for atom in computed)


def _with_recomputed(body: Jaxpr, recomputed: Mapping[Var, Sequence[Eqn]]) -> Jaxpr:
    """The body with the inputs in ``recomputed`` computed by equations."""
    return body.replace(
        invars=tuple(var for var in body.invars if var not in recomputed),
        eqns=(*[eqn for eqns in recomputed.values() for eqn in eqns], *body.eqns),
        argument_names=(),
    )


def _read_atoms(body: Jaxpr, masks: Mapping[Eqn, Atom]) -> set[Atom]:
    """The atoms that a body reads other than as masks of updates."""
    read: set[Atom] = set(body.outvars)
    for eqn in reversed(body.eqns):
        if eqn.effects or not read.isdisjoint(eqn.outputs):
            read.update(atom for atom in eqn.inputs if atom is not masks.get(eqn))
    return read


def _from_scalars(atom: Atom, var: Var, definition: DefinitionLookup) -> list[Eqn]:
    """Equations that compute ``atom`` from scalars alone, with ``var`` as result; or none."""
    eqns: list[Eqn] = []
    pending = [atom]
    while pending:
        eqn = definition(pending.pop())
        if eqn is None or not _is_computable(eqn) or len(eqns) == _MAX_EQUATIONS:
            return []
        eqns.append(eqn)
        pending += [operand for operand in eqn.inputs if not _is_scalar(operand)]
    return _renamed(list(dict.fromkeys(reversed(eqns))), atom, var)


def _is_computable(eqn: Eqn) -> bool:
    return is_cheap(eqn) or eqn.primitive.lower.is_elementwise


def _is_scalar(atom: Atom) -> bool:
    return type(atom) is Literal and not atom.aval.shape


def _renamed(eqns: Sequence[Eqn], atom: Atom, var: Var) -> list[Eqn]:
    """The equations with fresh variables, and ``var`` for ``atom``."""
    names: dict[Atom, Var] = {}
    renamed: list[Eqn] = []
    for eqn in eqns:
        inputs = tuple(names.get(operand, operand) for operand in eqn.inputs)
        outputs = tuple(var if out is atom else Var(out.aval) for out in eqn.outputs)
        names.update(safe_zip(eqn.outputs, outputs))
        renamed.append(eqn.replace(inputs=inputs, outputs=outputs))
    return renamed
