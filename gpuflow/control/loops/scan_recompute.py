"""Residuals of scans that the backward loop recomputes from the carries of the iteration.

The derivative of an iteration of a Runge-Kutta method reads twenty scalars, factors of products;
all follow from the three scalars of the state by additions and products. Stacked, they are written
and read once for each iteration, and with many iterations they go through memory; recomputed they
remain in registers, and only the state is stacked. The bound on memory is then that of the carries,
for every scan with a cheap body; expensive values (products of matrices, series, inner loops) are
stacked as before. See docs/design/0002.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.scan_simplify import is_cheap
from gpuflow.control.programs import split_independent
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

# Elementwise operations that take about as long as storing a byte and loading it again, where the
# stacks are larger than caches.
_OPERATIONS_PER_BYTE = 4


def recomputed_residuals(
    known: Jaxpr, linear: Jaxpr, num_outs: int, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Jaxpr]:
    """A split body that stores less, if its linear map can cheaply recompute the residuals.

    Args:
        known: evaluates an iteration; its results, then residuals.
        linear: the linear map of an iteration; it takes the residuals, then tangents.
        num_outs: the number of results.
        num_consts: number of leading inputs that are the same in each iteration.
        num_carry: number of carries after them; all other inputs are slices, which are read again
            at no cost.

    Returns:
        Both with other residuals, or unchanged.
    """
    return linear.memo(
        ("computed again", known, num_outs, num_consts, num_carry),
        lambda: _recomputed_residuals(known, linear, num_outs, num_consts, num_carry),
    )


def _recomputed_residuals(
    known: Jaxpr, linear: Jaxpr, num_outs: int, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Jaxpr]:
    residuals = known.outvars[num_outs:]
    stored = {atom for atom in residuals if type(atom) is Var}
    cheap = _cheap(known, stored, num_consts)
    dropped = stored & cheap
    eqns, reads = _needed(known.eqns, cheap, dropped)
    remaining = [*dict.fromkeys(atom for atom in residuals if atom in stored and atom not in cheap)]
    remaining += [var for var in reads if var not in stored]
    carries = known.invars[num_consts : num_consts + num_carry]
    saved = _bytes(dropped) - _bytes([var for var in carries if var in reads and var not in stored])
    work = sum(var.aval.size for eqn in eqns for var in eqn.outputs)
    if not dropped or saved <= 0 or work > _OPERATIONS_PER_BYTE * saved:
        return known, linear
    env = dict(safe_zip(linear.invars[: len(residuals)], residuals))

    def renamed(atom: Atom) -> Atom:
        return atom if type(atom) is Literal else env.get(atom, atom)

    linear_eqns = [eqn.replace(inputs=tuple(map(renamed, eqn.inputs))) for eqn in linear.eqns]
    return (
        known.replace(outvars=(*known.outvars[:num_outs], *remaining)),
        linear.replace(
            invars=(*remaining, *linear.invars[len(residuals) :]),
            outvars=tuple(map(renamed, linear.outvars)),
            eqns=(*eqns, *linear_eqns),
            argument_names=(),
        ),
    )


def _cheap(known: Jaxpr, stored: set[Var], num_consts: int) -> set[Var]:
    """The variables that cheap ops compute from inputs and stored residuals."""
    varying = [k >= num_consts for k in range(len(known.invars))]
    fixed = split_independent(known, varying)[1]
    cheap: set[Var] = set()
    available: set[Atom] = {*known.invars, *fixed}
    for eqn in known.eqns:
        from_available = all(
            type(atom) is Literal or atom in available or atom in cheap for atom in eqn.inputs
        )
        if available.issuperset(eqn.outputs):
            continue
        if from_available and _is_cheap(eqn):
            cheap.update(eqn.outputs)
        else:
            available.update(var for var in eqn.outputs if var in stored)
    return cheap


def _is_cheap(eqn: Eqn) -> bool:
    return (is_cheap(eqn) or eqn.primitive.lower.selects) and not is_observable(eqn.effects)


def _needed(eqns: Sequence[Eqn], cheap: set[Var], needed: set[Var]) -> tuple[list[Eqn], list[Var]]:
    """The equations of the requested values, in order, and the variables that they read."""
    missing, found, reads = set(needed), [], dict[Var, None]()
    for eqn in reversed(eqns):
        if missing.isdisjoint(eqn.outputs):
            continue
        found.append(eqn)
        for atom in eqn.inputs:
            if type(atom) is not Literal and atom in cheap:
                missing.add(atom)
            elif type(atom) is not Literal:
                reads[atom] = None
    return found[::-1], [*reads]


def _bytes(variables: Iterable[Var]) -> int:
    return sum(var.aval.nbytes for var in variables)
