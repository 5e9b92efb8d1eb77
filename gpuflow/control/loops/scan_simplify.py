"""Loop-invariant code motion for scans: the ``simplify`` rule.

Constant carries become consts, and invariant equations are computed before the loop. Products are
moved before or after it by ``scan_fission``.

Tests: tests/control/test_scan_fission.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.fusion.select_updates import update_predicates
from gpuflow.compiler.passes.program import dce, inline, simplify
from gpuflow.control.loops.scan_fission import (
    DecomposedScan,
    copy_into,
    find_sums,
    products_first,
    sum_afterwards,
)
from gpuflow.control.programs import split_independent
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering.rewrite_rules import EqnBuilder


def simplify_scan(eqn: Eqn, build: EqnBuilder) -> Sequence[Atom] | None:
    """Convert constant carries to consts, and hoist invariant equations and products."""
    body = simplified_body(eqn)
    if body.constvars or eqn.params["length"] == 0:
        return None
    before = decompose_scan(eqn, body)
    loop, passed = _without_passed_carries(before)
    loop, hoisted = _hoist(loop, build)
    earlier = products_first(loop, build)
    loop = earlier or loop
    sums = find_sums(loop)
    if not passed and not hoisted and earlier is None and not sums:
        return None
    return _rebuilt_scan(eqn, build, before, loop, sums)


def simplified_body(eqn: Eqn) -> Jaxpr:
    """The body of a scan with calls inlined, simplified, without dead equations; memoized."""
    body = eqn.params["jaxpr"]
    return body.jaxpr.memo("simplified", lambda: dce(simplify(inline(body.jaxpr))))


def decompose_scan(eqn: Eqn, body: Jaxpr) -> DecomposedScan:
    """The inputs and outputs of a scan, by role."""
    num_consts, num_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    split = num_consts + num_carry
    pairs = safe_zip(body.invars, eqn.inputs)
    return DecomposedScan(
        body.eqns,
        dict(pairs[:num_consts]),
        dict(pairs[num_consts:split]),
        dict(pairs[split:]),
        body.outvars[:num_carry],
        body.outvars[num_carry:],
        eqn.params["length"],
    )


def _without_passed_carries(loop: DecomposedScan) -> tuple[DecomposedScan, bool]:
    """Convert carries that each iteration passes on unchanged to consts."""
    pairs = safe_zip(loop.carry.items(), loop.carry_out)
    passed = {var: atom for (var, atom), out in pairs if out is var}
    remaining = [(item, out) for item, out in pairs if item[0] not in passed]
    changed = replace(
        loop,
        consts={**loop.consts, **passed},
        carry=dict(item for item, _ in remaining),
        carry_out=tuple(out for _, out in remaining),
    )
    return changed, bool(passed)


# --- fixed equations -----------------------------------------------------------------------


def _hoist(loop: DecomposedScan, build: EqnBuilder) -> tuple[DecomposedScan, bool]:
    """Hoist invariant equations whose results are worth storing."""
    inputs = (*loop.consts, *loop.carry, *loop.xs)
    outs = (*loop.carry_out, *loop.ys)
    body = Jaxpr((), inputs, outs, loop.eqns)
    fixed, crossing = _hoistable(body, len(loop.consts), {})
    if crossing:
        masks = update_predicates(body, len(loop.consts), len(loop.carry))
        fixed, crossing = _hoistable(body, len(loop.consts), masks)
    if not crossing:
        return loop, False
    outer = dict(loop.consts)
    for eqn in fixed:
        copy_into(build, eqn, outer)
    consts = {**loop.consts, **{var: outer[var] for var in crossing}}
    return replace(loop, eqns=_without(loop.eqns, crossing), consts=consts), True


def _hoistable(
    body: Jaxpr, num_consts: int, masks: Mapping[Eqn, Atom]
) -> tuple[list[Eqn], list[Var]]:
    """Invariant equations that are worth hoisting, in order, and their results that the body reads.

    Cheap values stay in the body, since storing them would cost more. ``masks`` stay in it too:
    they become updates at static indices and are never computed.
    """
    varying = [k >= num_consts for k in range(len(body.invars))]
    fixed, _ = split_independent(body, varying)
    producers = {var: eqn for eqn in fixed for var in eqn.outputs}
    crossing: dict[Var, None] = {}
    needed: set[int] = set()

    def read(atom: Atom) -> None:
        """Note a read of the body: pass the value in, or compute it inside from its operands."""
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
                if atom is not masks.get(eqn):
                    read(atom)
    for atom in body.outvars:
        read(atom)
    return [eqn for eqn in fixed if id(eqn) in needed], list(crossing)


def is_cheap(eqn: Eqn) -> bool:
    """Whether computing an equation costs less than reading its result from memory."""
    return eqn.primitive.lower.price is not None


def _without(eqns: Sequence[Eqn], defined: Sequence[Var]) -> tuple[Eqn, ...]:
    """The equations without those that compute the values in ``defined``, which are inputs now."""
    inputs = set(defined)
    remaining = []
    for eqn in eqns:
        if inputs.isdisjoint(eqn.outputs):
            remaining.append(eqn)
        elif not inputs.issuperset(eqn.outputs):
            # Some outputs are inputs now, others are still computed here.
            outputs = tuple(DropVar(v.aval) if v in inputs else v for v in eqn.outputs)
            remaining.append(eqn.replace(outputs=outputs))
    return tuple(remaining)


# --- the new scan --------------------------------------------------------------------------


def _rebuilt_scan(
    eqn: Eqn, build: EqnBuilder, before: DecomposedScan, loop: DecomposedScan, sums: Sequence[Any]
) -> list[Atom]:
    """Bind the new scan and the sums after it; returns the outputs of the old scan."""
    removed = {total.carry for total in sums}
    remaining = [
        (var, out) for var, out in safe_zip(loop.carry, loop.carry_out) if var not in removed
    ]
    external = {**loop.consts, **loop.xs}
    factor_outs = dict.fromkeys(
        factor for total in sums for factor in total.factors if factor not in external
    )
    body = Jaxpr(
        (),
        (*loop.consts, *[var for var, _ in remaining], *loop.xs),
        (*[out for _, out in remaining], *loop.ys, *factor_outs),
        loop.eqns,
        eqn.effects,
    )
    operands = [
        *loop.consts.values(),
        *[loop.carry[var] for var, _ in remaining],
        *loop.xs.values(),
    ]
    params = {
        **eqn.params,
        "jaxpr": ClosedJaxpr(dce(body)),
        "num_consts": len(loop.consts),
        "num_carry": len(remaining),
    }
    outs = list(build.apply(eqn.primitive, *operands, **params))
    num_ys = len(loop.ys)
    last = dict(safe_zip([var for var, _ in remaining], outs[: len(remaining)]))
    stacks = dict(safe_zip(factor_outs, outs[len(remaining) + num_ys :]))
    for total in sums:
        init = loop.carry[total.carry]
        last[total.carry] = sum_afterwards(loop, build, total, stacks, init)
    carries = [last.get(var, atom) for var, atom in before.carry.items()]
    return [*carries, *outs[len(remaining) : len(remaining) + num_ys]]
