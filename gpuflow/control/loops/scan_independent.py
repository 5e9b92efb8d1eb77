"""Reduction extraction: a scan whose carries are sums becomes a parallel loop without carries.

    total += f(x[t])      becomes      reduce_sum of f(x[t]) for all t, after the loop

This applies only to sums of derivatives (``add_any``): users' sums keep their order.

Tests: tests/control/test_linear_transpose.py, tests/control/test_control_flow.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import Replacement, dce
from gpuflow.control.loops.scan_fission import DecomposedScan, added_term, copy_program, uses_in
from gpuflow.control.loops.scan_simplify import decompose_scan, simplified_body, simplify_scan
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from gpuflow.core.staging import trace_closed
from gpuflow.ops.elementwise.nary import add_any_p
from gpuflow.ops.layout.axes import reduce_sum

MAX_TERMS = 16  # elements of a summand; each iteration stores them


def independent_iterations(eqn: Eqn) -> tuple[list[Eqn], list[Atom]] | None:
    """Rewrite a scan as equations whose loop has no carries.

    Args:
        eqn: a scan.

    Returns:
        The equations and their outputs; None if a carry is not a sum.
    """
    if not _may_leave(decompose_scan(eqn, simplified_body(eqn))):
        return None
    build = Replacement(eqn.source)
    outs = simplify_scan(eqn, build)
    if outs is None:
        return _sums_after(eqn)
    new_eqns: list[Eqn] = []
    names: dict[Atom, Atom] = {}
    for inner in build.eqns:
        inner = inner.replace(inputs=tuple(_renamed(atom, names) for atom in inner.inputs))
        eqns = [inner]
        if inner.primitive is eqn.primitive and inner.params["num_carry"]:
            extracted = _sums_after(inner)
            if extracted is None:
                return None
            eqns, totals = extracted
            names.update(safe_zip(inner.outputs, totals))
        new_eqns += eqns
    return new_eqns, [_renamed(atom, names) for atom in outs]


def _may_leave(loop: DecomposedScan) -> bool:
    """Whether each carry is only passed on or added to: a cheap test before the rewrite."""
    uses = uses_in(loop.eqns, (*loop.carry_out, *loop.ys))
    return all(
        out is carry or added_term(carry, out, uses) is not None
        for carry, out in safe_zip(loop.carry, loop.carry_out)
    )


def _renamed(atom: Atom, names: dict[Atom, Atom]) -> Atom:
    return names.get(atom, atom) if type(atom) is Var else atom


def _sums_after(eqn: Eqn) -> tuple[list[Eqn], list[Atom]] | None:
    """A scan that stacks the summands, and their sums after it; None if a carry is not a sum."""
    body = simplified_body(eqn)
    if body.constvars or not eqn.params["num_carry"]:
        return None
    loop = decompose_scan(eqn, body)
    terms = _terms(loop)
    if terms is None:
        return None
    build = Replacement(eqn.source)
    program = Jaxpr((), (*loop.consts, *loop.xs), (*loop.ys, *terms), loop.eqns, eqn.effects)
    params = {**eqn.params, "jaxpr": ClosedJaxpr(dce(program)), "num_carry": 0}
    operands = [*loop.consts.values(), *loop.xs.values()]
    outs = list(build.apply(eqn.primitive, *operands, **params))
    count = len(loop.ys)
    totals = []
    for stack, init in safe_zip(outs[count:], loop.carry.values()):
        summed = trace_closed(_total, [init.aval, stack.aval])
        totals += copy_program(build, summed, [init, stack])
    return build.eqns, [*totals, *outs[:count]]


def _total(init: Any, stack: Any) -> list[Any]:
    return [add_any_p.bind(init, reduce_sum(stack, (0,)))]


def _terms(loop: DecomposedScan) -> list[Var] | None:
    """The term that each carry adds, in order; None if one is not a sum."""
    uses = uses_in(loop.eqns, (*loop.carry_out, *loop.ys))
    terms = []
    for carry, out in safe_zip(loop.carry, loop.carry_out):
        term = added_term(carry, out, uses)
        if type(term) is not Var or carry.aval.size > MAX_TERMS:
            return None
        terms.append(term)
    return terms
