"""Rematerialization in scans: the backward loop recomputes cheap residuals from the carries.

Example: the derivative of a Runge-Kutta step reads twenty scalars, which are factors of products.
All follow from the three scalars of the state by additions and products. Stacked residuals are
written and read once per iteration, through memory if there are many iterations. Recomputed ones
stay in registers, and only the state is stacked. The carries then bound the memory of every scan
with a cheap body. Expensive values (products of matrices, series, inner loops) are still stacked.
See docs/design/0002.

Tests: tests/control/test_scan_recompute.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.scan_simplify import is_cheap
from gpuflow.control.programs import split_independent
from gpuflow.core.effects import is_observable
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var

# Elementwise operations that take about as long as one store and load of a byte, if stacks exceed
# the caches.
_OPERATIONS_PER_BYTE = 4


def recomputed_residuals(
    known: Jaxpr, linear: Jaxpr, num_outs: int, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Jaxpr]:
    """Store fewer residuals of a split body if its linear map can recompute them cheaply.

    Args:
        known: the forward body, ``(*consts, *carry, *x) -> (*results, *residuals)``.
        linear: the linear map of an iteration, ``(*residuals, *tangents) -> tangents``.
        num_outs: the number of results.
        num_consts: number of leading inputs that are the same in each iteration.
        num_carry: number of carries after them. All other inputs are slices of xs, which the
            backward loop reads again at no cost.

    Returns:
        Both programs with other residuals, or unchanged.
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
    saved_bytes = _bytes(dropped) - _bytes(
        [var for var in carries if var in reads and var not in stored]
    )
    work = sum(var.aval.size for eqn in eqns for var in eqn.outputs)
    if not dropped or saved_bytes <= 0 or work > _OPERATIONS_PER_BYTE * saved_bytes:
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
    """The cheap equations that compute ``needed``, in order, and the variables that they read."""
    missing, selected, reads = set(needed), [], dict[Var, None]()
    for eqn in reversed(eqns):
        if missing.isdisjoint(eqn.outputs):
            continue
        selected.append(eqn)
        for atom in eqn.inputs:
            if type(atom) is not Literal and atom in cheap:
                missing.add(atom)
            elif type(atom) is not Literal:
                reads[atom] = None
    return selected[::-1], [*reads]


def _bytes(variables: Iterable[Var]) -> int:
    return sum(var.aval.nbytes for var in variables)
