"""Residuals of scans that the backward loop recomputes from the carries of the iteration.

The derivative of an iteration of a Runge-Kutta method reads twenty numbers, factors of products;
all follow from the three numbers of the state by additions and products. Stacked, they are written
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


def computed_again(
    known: Jaxpr, linear: Jaxpr, num_outs: int, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Jaxpr]:
    """A split body that stores less, where its linear map can compute the rest again.

    Args:
        known: evaluates an iteration; its results, then residuals.
        linear: the linear map of an iteration; it takes the residuals, then tangents.
        num_outs: how many results there are.
        num_consts: number of leading inputs that are the same in each iteration.
        num_carry: how many inputs after them are carries; the rest are slices, which are read
            again at no cost.

    Returns:
        Both with other residuals, or unchanged.
    """
    return linear.memo(
        ("computed again", known, num_outs, num_consts, num_carry),
        lambda: _computed_again(known, linear, num_outs, num_consts, num_carry),
    )


def _computed_again(
    known: Jaxpr, linear: Jaxpr, num_outs: int, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Jaxpr]:
    residuals = known.outvars[num_outs:]
    stored = {atom for atom in residuals if type(atom) is Var}
    cheap = _cheap(known, stored, num_consts)
    dropped = stored & cheap
    eqns, reads = _needed(known.eqns, cheap, dropped)
    kept = [*dict.fromkeys(atom for atom in residuals if atom in stored and atom not in cheap)]
    kept += [var for var in reads if var not in stored]
    carries = known.invars[num_consts : num_consts + num_carry]
    saved = _bytes(dropped) - _bytes([var for var in carries if var in reads and var not in stored])
    work = sum(var.aval.size for eqn in eqns for var in eqn.outputs)
    if not dropped or saved <= 0 or work > _OPERATIONS_PER_BYTE * saved:
        return known, linear
    env = dict(safe_zip(linear.invars[: len(residuals)], residuals))

    def renamed(atom: Atom) -> Atom:
        return atom if type(atom) is Literal else env.get(atom, atom)

    rest = [eqn.replace(inputs=tuple(map(renamed, eqn.inputs))) for eqn in linear.eqns]
    return (
        known.replace(outvars=(*known.outvars[:num_outs], *kept)),
        linear.replace(
            invars=(*kept, *linear.invars[len(residuals) :]),
            outvars=tuple(map(renamed, linear.outvars)),
            eqns=(*eqns, *rest),
            argument_names=(),
        ),
    )


def _cheap(known: Jaxpr, stored: set[Var], num_consts: int) -> set[Var]:
    """The variables that follow from inputs, and from residuals that are stored, by cheap ops."""
    varying = [k >= num_consts for k in range(len(known.invars))]
    fixed = split_independent(known, varying)[1]
    cheap: set[Var] = set()
    there: set[Atom] = {*known.invars, *fixed}
    for eqn in known.eqns:
        from_there = all(
            type(atom) is Literal or atom in there or atom in cheap for atom in eqn.inputs
        )
        if there.issuperset(eqn.outputs):
            continue
        if from_there and _is_cheap(eqn):
            cheap.update(eqn.outputs)
        else:
            there.update(var for var in eqn.outputs if var in stored)
    return cheap


def _is_cheap(eqn: Eqn) -> bool:
    return (is_cheap(eqn) or eqn.primitive.lower.selects) and not is_observable(eqn.effects)


def _needed(eqns: Sequence[Eqn], cheap: set[Var], wanted: set[Var]) -> tuple[list[Eqn], list[Var]]:
    """The equations of the requested values, in order, and the variables that they read."""
    left, found, reads = set(wanted), [], dict[Var, None]()
    for eqn in reversed(eqns):
        if left.isdisjoint(eqn.outputs):
            continue
        found.append(eqn)
        for atom in eqn.inputs:
            if type(atom) is not Literal and atom in cheap:
                left.add(atom)
            elif type(atom) is not Literal:
                reads[atom] = None
    return found[::-1], [*reads]


def _bytes(variables: Iterable[Var]) -> int:
    return sum(var.aval.nbytes for var in variables)
