"""Partial evaluation of scan and cond under a checkpoint policy: their ``recompute`` rules.

The forward computation returns saved values as additional outputs, stacked over the iterations of
a loop. The recomputation reads them.

Tests: tests/control/test_remat_partial_evaluation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import dce
from gpuflow.control.loops.lanes import extend
from gpuflow.core.aval import ShapedArray
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, DropVar, Eqn, Jaxpr, Var
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.zeros import zeros_of


@record
class Recomputation:
    """A program split into a forward computation and a recomputation.

    Attributes:
        program: the program, with calls inlined.
        first: the equations of the forward computation; some have additional outputs.
        stored: variables that may be stored, outputs of ``first``.
        again: the equations of the recomputation, which read ``stored``.
    """

    program: Jaxpr
    first: tuple[Eqn, ...]
    stored: tuple[Var, ...]
    again: tuple[Eqn, ...]


Split = Callable[[Jaxpr], Recomputation]


def used_outputs(eqn: Eqn) -> list[Var]:
    """The outputs that are read."""
    return [var for var in eqn.outputs if type(var) is not DropVar]


def recompute_scan(eqn: Eqn, split: Split) -> tuple[Eqn, list[Var], Eqn] | None:
    """The ``recompute`` rule of scan."""
    scheme = split(eqn.params["jaxpr"].jaxpr)
    if not scheme.stored:
        return None
    body = scheme.program
    length = eqn.params["length"]
    stacks = [Var(var.aval.update(shape=(length, *var.aval.shape))) for var in scheme.stored]
    first = _closed(body, body.invars, (*body.outvars, *scheme.stored), scheme.first)
    again = _closed(body, (*body.invars, *scheme.stored), body.outvars, scheme.again)
    return (
        eqn.replace(outputs=(*eqn.outputs, *stacks), params={**eqn.params, "jaxpr": first}),
        stacks,
        eqn.replace(inputs=(*eqn.inputs, *stacks), params={**eqn.params, "jaxpr": again}),
    )


def recompute_cond(eqn: Eqn, split: Split) -> tuple[Eqn, list[Var], Eqn] | None:
    """The ``recompute`` rule of cond: branches share slots for stored variables of equal types.

    Slots that the taken branch does not use are zeros.
    """
    schemes = [split(branch.jaxpr) for branch in eqn.params["branches"]]
    avals, slots = _shared_slots([scheme.stored for scheme in schemes])
    if not avals:
        return None
    firsts, agains = [], []
    for scheme, branch_slots in safe_zip(schemes, slots):
        filled = dict(safe_zip(branch_slots, scheme.stored))
        inputs = [filled.get(k) or Var(aval) for k, aval in enumerate(avals)]
        program = scheme.program
        agains.append(_closed(program, (*program.invars, *inputs), program.outvars, scheme.again))
        firsts.append(_with_zeros(scheme, filled, avals))
    first = {**eqn.params, "branches": tuple(firsts)}
    again = {**eqn.params, "branches": tuple(agains)}
    if eqn.params.get("lanes"):
        count = len(eqn.inputs) - 1
        again["lanes"] = extend(eqn.params["lanes"], [*range(count), *[-1] * len(avals)])
    out_avals = eqn.primitive.shape(*[atom.aval for atom in eqn.inputs], **first)
    stored = [Var(aval) for aval in out_avals[len(eqn.outputs) :]]
    return (
        eqn.replace(outputs=(*eqn.outputs, *stored), params=first),
        stored,
        eqn.replace(inputs=(*eqn.inputs, *stored), params=again),
    )


def _shared_slots(
    stored: Sequence[Sequence[Var]],
) -> tuple[list[ShapedArray], list[list[int]]]:
    """Types of the shared slots, and for each branch the slots of its variables."""
    avals: list[ShapedArray] = []
    slots: list[list[int]] = []
    for stored_vars in stored:
        used_slots: list[int] = []
        for var in stored_vars:
            expected = (var.aval.shape, var.aval.dtype)
            free = [
                k
                for k, aval in enumerate(avals)
                if k not in used_slots and (aval.shape, aval.dtype) == expected
            ]
            if not free:
                avals.append(var.aval)
            used_slots.append(free[0] if free else len(avals) - 1)
        slots.append(used_slots)
    return avals, slots


def _with_zeros(
    scheme: Recomputation, filled: dict[int, Var], avals: Sequence[ShapedArray]
) -> ClosedJaxpr:
    """The forward computation of a branch, with all shared slots as additional outputs."""
    program, count = scheme.program, len(scheme.program.outvars)
    inner = _closed(program, program.invars, (*program.outvars, *filled.values()), scheme.first)

    def run(*operands: Any) -> list[Any]:
        results = inner(*operands)
        values = dict(safe_zip(filled, results[count:]))
        shared = [values[k] if k in values else zeros_of(aval) for k, aval in enumerate(avals)]
        return [*results[:count], *shared]

    jaxpr, consts = trace_to_jaxpr(run, inner.in_avals)
    return ClosedJaxpr(jaxpr, tuple(consts))


def _closed(
    program: Jaxpr, invars: Sequence[Var], outvars: Sequence[Atom], eqns: Sequence[Eqn]
) -> ClosedJaxpr:
    changed = program.replace(
        invars=tuple(invars), outvars=tuple(outvars), eqns=tuple(eqns), argument_names=()
    )
    return ClosedJaxpr(dce(changed))
