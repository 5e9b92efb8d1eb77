"""Loops and branches whose inner values checkpoint may store: they are computed twice, in parts.

The first computation has the stored values as further outputs, stacked over the iterations of a
loop; the second one reads them instead of computing them.
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
class Kept:
    """A program, and how it is computed twice.

    Attributes:
        program: it, with opened functions instead of calls.
        first: equations that compute everything; some have further outputs.
        stored: variables that may be stored, outputs of ``first``.
        again: equations that compute the rest where ``stored`` is known.
    """

    program: Jaxpr
    first: tuple[Eqn, ...]
    stored: tuple[Var, ...]
    again: tuple[Eqn, ...]


Split = Callable[[Jaxpr], Kept]


def kept_outputs(eqn: Eqn) -> list[Var]:
    """The outputs that somebody reads."""
    return [var for var in eqn.outputs if type(var) is not DropVar]


def keep_scan(eqn: Eqn, split: Split) -> tuple[Eqn, list[Var], Eqn] | None:
    """The ``keep`` rule of scan."""
    kept = split(eqn.params["jaxpr"].jaxpr)
    if not kept.stored:
        return None
    body = kept.program
    length = eqn.params["length"]
    stacks = [Var(var.aval.update(shape=(length, *var.aval.shape))) for var in kept.stored]
    first = _closed(body, body.invars, (*body.outvars, *kept.stored), kept.first)
    again = _closed(body, (*body.invars, *kept.stored), body.outvars, kept.again)
    return (
        eqn.replace(
            outputs=(*eqn.outputs, *stacks), params={**eqn.params, "jaxpr": first}
        ),
        stacks,
        eqn.replace(inputs=(*eqn.inputs, *stacks), params={**eqn.params, "jaxpr": again}),
    )


def keep_cond(eqn: Eqn, split: Split) -> tuple[Eqn, list[Var], Eqn] | None:
    """The ``keep`` rule of cond: branches share stored variables, one for each type.

    Those that the branch which runs does not have are zeros.
    """
    parts = [split(branch.jaxpr) for branch in eqn.params["branches"]]
    avals, places = _shared([part.stored for part in parts])
    if not avals:
        return None
    firsts, agains = [], []
    for part, numbers in safe_zip(parts, places):
        filled = dict(safe_zip(numbers, part.stored))
        inputs = [filled.get(k) or Var(aval) for k, aval in enumerate(avals)]
        program = part.program
        agains.append(
            _closed(program, (*program.invars, *inputs), program.outvars, part.again)
        )
        firsts.append(_with_zeros(part, filled, avals))
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


def _shared(
    stored: Sequence[Sequence[Var]],
) -> tuple[list[ShapedArray], list[list[int]]]:
    """Types of shared variables, and for each branch which of them its own are."""
    avals: list[ShapedArray] = []
    places: list[list[int]] = []
    for stored_vars in stored:
        taken: list[int] = []
        for var in stored_vars:
            wanted = (var.aval.shape, var.aval.dtype)
            free = [
                k for k, aval in enumerate(avals)
                if k not in taken and (aval.shape, aval.dtype) == wanted
            ]  # fmt: skip
            if not free:
                avals.append(var.aval)
            taken.append(free[0] if free else len(avals) - 1)
        places.append(taken)
    return avals, places


def _with_zeros(part: Kept, filled: dict[int, Var], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The first computation of a branch, with all shared variables as further outputs."""
    program, count = part.program, len(part.program.outvars)
    inner = _closed(program, program.invars, (*program.outvars, *filled.values()), part.first)

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
