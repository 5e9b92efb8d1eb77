"""Move invariant computations out of the body of a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.fusion.choices import places_in_place
from gpuflow.compiler.passes.program import dce, inline, simplify
from gpuflow.control.loops.scan_fission import (
    Parts,
    copy_into,
    find_sums,
    products_first,
    sum_afterwards,
)
from gpuflow.control.programs import split_independent
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var


def simplify_scan(eqn: Eqn, definition: Any, build: Any) -> Sequence[Atom] | None:
    """Carries that are passed on become consts; fixed equations and products leave the loop."""
    del definition
    known = simplified_body(eqn)
    if known.constvars or eqn.params["length"] == 0:
        return None
    before = take_apart(eqn, known)
    parts, passed = _without_passed_carries(before)
    parts, hoisted = _hoist(parts, build)
    earlier = products_first(parts, build)
    parts = earlier or parts
    sums = find_sums(parts)
    if not passed and not hoisted and earlier is None and not sums:
        return None
    return _put_together(eqn, build, before, parts, sums)


def simplified_body(eqn: Eqn) -> Jaxpr:
    """The body of a scan, without calls in it."""
    body = eqn.params["jaxpr"]
    return body.jaxpr.memo("simplified", lambda: dce(simplify(inline(body.jaxpr))))


def take_apart(eqn: Eqn, body: Jaxpr) -> Parts:
    """The inputs and outputs of a scan, by role."""
    num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    split = num_consts + num_carry
    pairs = safe_zip(body.invars, eqn.inputs)
    return Parts(
        body.eqns, dict(pairs[:num_consts]), dict(pairs[num_consts:split]), dict(pairs[split:]),
        body.outvars[:num_carry], body.outvars[num_carry:], eqn.params["length"],
    )  # fmt: skip


def _without_passed_carries(parts: Parts) -> tuple[Parts, bool]:
    """Carries whose next value is their value become consts."""
    pairs = safe_zip(parts.carry.items(), parts.carry_out)
    passed = {var: atom for (var, atom), out in pairs if out is var}
    kept = [(item, out) for item, out in pairs if item[0] not in passed]
    changed = replace(
        parts,
        consts={**parts.consts, **passed},
        carry=dict(item for item, _ in kept),
        carry_out=tuple(out for _, out in kept),
    )
    return changed, bool(passed)


# --- fixed equations -----------------------------------------------------------------------


def _hoist(parts: Parts, build: Any) -> tuple[Parts, bool]:
    """Equations of consts alone move in front, if storing their results is worth it."""
    inputs = (*parts.consts, *parts.carry, *parts.xs)
    outs = (*parts.carry_out, *parts.ys)
    body = Jaxpr((), inputs, outs, parts.eqns)
    fixed, crossing = _hoistable(body, len(parts.consts), {})
    if crossing:
        places = places_in_place(body, len(parts.consts), len(parts.carry))
        fixed, crossing = _hoistable(body, len(parts.consts), places)
    if not crossing:
        return parts, False
    outer = dict(parts.consts)
    for eqn in fixed:
        copy_into(build, eqn, outer)
    consts = {**parts.consts, **{var: outer[var] for var in crossing}}
    return replace(parts, eqns=_without(parts.eqns, crossing), consts=consts), True


def _hoistable(
    body: Jaxpr, num_consts: int, places: Mapping[Eqn, Atom]
) -> tuple[list[Eqn], list[Var]]:
    """Equations of consts alone that are worth storing, in order, and the body's reads of them.

    Cheap values are computed inside: storing them would cost more. So are ``places``, which become
    updates at known indices: they are not computed at all.
    """
    varying = [k >= num_consts for k in range(len(body.invars))]
    fixed, _ = split_independent(body, varying)
    producers = {var: eqn for eqn in fixed for var in eqn.outputs}
    crossing: dict[Var, None] = {}
    needed: set[int] = set()

    def read(atom: Atom) -> None:
        """The body reads ``atom``: cross it, or stay inside and read its operands."""
        eqn = producers.get(atom) if isinstance(atom, Var) else None
        if eqn is None or not isinstance(atom, Var):
            return
        if is_cheap(eqn):
            for operand in eqn.inputs:
                read(operand)
        else:
            crossing[atom] = None
            need(eqn)

    def need(eqn: Eqn) -> None:
        if id(eqn) not in needed:
            needed.add(id(eqn))
            for operand in eqn.inputs:
                if type(operand) is not Literal and operand in producers:
                    need(producers[operand])

    is_fixed = {id(eqn) for eqn in fixed}
    for eqn in body.eqns:
        if id(eqn) not in is_fixed:
            for atom in eqn.inputs:
                if atom is not places.get(eqn):
                    read(atom)
    for atom in body.outvars:
        read(atom)
    return [eqn for eqn in fixed if id(eqn) in needed], list(crossing)


def is_cheap(eqn: Eqn) -> bool:
    """Whether an equation costs less to compute than its result to read."""
    return eqn.primitive.lower.price is not None


def _without(eqns: Sequence[Eqn], defined: Sequence[Var]) -> tuple[Eqn, ...]:
    """The equations without those of values that are inputs now."""
    taken = set(defined)
    kept = []
    for eqn in eqns:
        if taken.isdisjoint(eqn.outputs):
            kept.append(eqn)
        elif not taken.issuperset(eqn.outputs):
            # Some outputs are inputs now, others are still made here.
            outputs = tuple(DropVar(v.aval) if v in taken else v for v in eqn.outputs)
            kept.append(eqn.replace(outputs=outputs))
    return tuple(kept)


# --- the new scan --------------------------------------------------------------------------


def _put_together(
    eqn: Eqn, build: Any, before: Parts, parts: Parts, sums: Sequence[Any]
) -> list[Atom]:
    """The scan without moved equations, and the sums after it; the outputs of the old one."""
    gone = {total.carry for total in sums}
    kept = [
        (var, out) for var, out in safe_zip(parts.carry, parts.carry_out) if var not in gone
    ]
    outside = {**parts.consts, **parts.xs}
    extra = dict.fromkeys(
        factor for total in sums for factor in total.factors if factor not in outside
    )
    body = Jaxpr(
        (),
        (*parts.consts, *[var for var, _ in kept], *parts.xs),
        (*[out for _, out in kept], *parts.ys, *extra),
        parts.eqns,
        eqn.effects,
    )
    operands = [
        *parts.consts.values(), *[parts.carry[var] for var, _ in kept], *parts.xs.values(),
    ]  # fmt: skip
    params = {
        **eqn.params,
        "jaxpr": ClosedJaxpr(dce(body)),
        "num_consts": len(parts.consts),
        "num_carry": len(kept),
    }
    outs = list(build.apply(eqn.primitive, *operands, **params))
    num_ys = len(parts.ys)
    last = dict(safe_zip([var for var, _ in kept], outs[: len(kept)]))
    stacks = dict(safe_zip(extra, outs[len(kept) + num_ys :]))
    for total in sums:
        init = parts.carry[total.carry]
        last[total.carry] = sum_afterwards(parts, build, total, stacks, init)
    carries = [last.get(var, atom) for var, atom in before.carry.items()]
    return [*carries, *outs[len(kept) : len(kept) + num_ys]]
