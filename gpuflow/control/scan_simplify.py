"""What no iteration of a scan changes is taken out of its body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.program import inline
from gpuflow.control.programs import split_independent, with_inputs
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import Elementwise, Indexed, Layout


def simplify_scan(eqn: Eqn, definition: Any, build: Any) -> Sequence[Atom] | None:
    """Carries that every iteration passes on become consts; fixed equations move in front."""
    del definition
    params = dict(eqn.params)
    jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    body = jaxpr.jaxpr.memo("inlined", lambda: ClosedJaxpr(inline(jaxpr.jaxpr)))
    if body.jaxpr.constvars:
        return None
    split = num_consts + num_carry
    ins, outs = body.jaxpr.invars, body.jaxpr.outvars
    passed = [k for k in range(num_carry) if outs[k] is ins[num_consts + k]]
    kept = [k for k in range(num_carry) if k not in passed]
    const_vars = [*ins[:num_consts], *[ins[num_consts + k] for k in passed]]
    const_atoms = [*eqn.inputs[:num_consts], *[eqn.inputs[num_consts + k] for k in passed]]
    rest = [*[ins[num_consts + k] for k in kept], *ins[split:]]
    fixed, crossing = _hoistable(body.jaxpr, rest)
    if not passed and not crossing:
        return None
    outer = dict(safe_zip(const_vars, const_atoms))
    for inner_eqn in fixed:
        _copy_into(build, inner_eqn, outer)
    new_body = with_inputs(
        ClosedJaxpr(_without(body.jaxpr, crossing)),
        [*const_vars, *crossing, *rest],
        [*[outs[k] for k in kept], *outs[num_carry:]],
    )
    params |= {
        "jaxpr": new_body,
        "num_consts": len(const_vars) + len(crossing),
        "num_carry": len(kept),
    }
    operands = [
        *const_atoms, *[outer[var] for var in crossing],
        *[eqn.inputs[num_consts + k] for k in kept], *eqn.inputs[split:],
    ]  # fmt: skip
    made = iter(build.apply(eqn.primitive, *operands, **params))
    carries = [
        eqn.inputs[num_consts + k] if k in passed else next(made) for k in range(num_carry)
    ]
    return [*carries, *made]


def _hoistable(
    body: Jaxpr, rest: Sequence[Var]
) -> tuple[list[Eqn], list[Var]]:
    """Equations of consts alone that are worth storing, in order, and what the body reads of them.

    What is cheap to compute stays inside: storing it would cost more.
    """
    moving = set(rest)
    varying = [var in moving for var in body.invars]
    fixed, _ = split_independent(body, varying)
    producers = {var: eqn for eqn in fixed for var in eqn.outputs}
    crossing: dict[Var, None] = {}
    needed: set[int] = set()

    def read(atom: Atom) -> None:
        """The body reads ``atom``: cross it, or stay inside and read its operands."""
        eqn = None if type(atom) is Literal else producers.get(atom)
        if eqn is None:
            return
        if _is_cheap(eqn):
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
                read(atom)
    for atom in body.outvars:
        read(atom)
    return [eqn for eqn in fixed if id(eqn) in needed], list(crossing)


def _is_cheap(eqn: Eqn) -> bool:
    rule = eqn.primitive.lower
    if isinstance(rule, Layout):
        return True
    return isinstance(rule, (Elementwise, Indexed)) and rule.cheap


def _copy_into(build: Any, eqn: Eqn, outer: dict[Var, Atom]) -> None:
    inputs = [a if type(a) is Literal else outer[a] for a in eqn.inputs]
    made = build.apply(eqn.primitive, *inputs, **eqn.params)
    made = made if eqn.primitive.multiple_results else (made,)
    outer.update(zip(eqn.outputs, made, strict=True))


def _without(body: Jaxpr, crossing: Sequence[Var]) -> Jaxpr:
    """The body without the equations that define its new inputs."""
    taken = set(crossing)
    kept = []
    for eqn in body.eqns:
        if taken.isdisjoint(eqn.outputs):
            kept.append(eqn)
        elif not taken.issuperset(eqn.outputs):
            # Some outputs cross, others stay unread: those keep names of their own.
            outputs = tuple(DropVar(v.aval) if v in taken else v for v in eqn.outputs)
            kept.append(eqn.replace(outputs=outputs))
    return body.replace(eqns=tuple(kept))
