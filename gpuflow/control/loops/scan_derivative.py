"""Reverse mode of scan: linearization and partial evaluation of the body, and transposition.

The forward scan stacks the residuals of each iteration for the scan of the linear map. It does not
stack loop-invariant residuals, which are computed once, or slices of xs, which are read again.

Tests: tests/control/test_partial_eval.py, tests/control/test_scan_recompute.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.scan_recompute import recomputed_residuals
from gpuflow.control.programs import close, split_independent, with_inputs
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Jaxpr, Literal
from gpuflow.core.rules import UndefinedPrimal, Zero, is_undefined
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.zeros import add_tangents, instantiate, zeros_of
from gpuflow.transforms.linearize import linearize_jaxpr
from gpuflow.transforms.partial_eval import partial_jaxpr
from gpuflow.transforms.transpose import backward_pass

BindScan = Callable[..., list[Any]]


def linearize_scan(
    bind: BindScan,
    nonzeros: Sequence[bool],
    *primals: Any,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[Any, ...]:
    """The linearize rule: one scan evaluates and stacks residuals, another maps tangents."""
    split = num_consts + num_carry
    flags = list(nonzeros)
    num_outs = len(jaxpr.out_avals)
    # Fixed point over the carries that have tangents.
    while True:
        requested = (*flags[num_consts:split], *[False] * (num_outs - num_carry))
        known, linear, out_nonzeros, _ = linearize_jaxpr(jaxpr, tuple(flags), requested)
        if list(out_nonzeros[:num_carry]) == flags[num_consts:split]:
            break
        flags[num_consts:split] = out_nonzeros[:num_carry]
    known, closed = close(known)
    consts, init, xs = [*closed, *primals[:num_consts]], primals[num_consts:split], primals[split:]
    evaluation, linear = recomputed_residuals(known.jaxpr, linear, num_outs, len(consts), num_carry)
    residuals = _Residuals(evaluation, num_outs, len(consts), num_carry)
    results = bind(residuals.evaluation, consts, init, xs, **params)
    fixed, stacks = residuals.values(consts, xs, results[num_outs:])
    body = _linear_body(linear, residuals.is_stacked, flags, num_consts, num_carry)

    def tangent_function(values: Sequence[Any], *tangents: Any) -> list[Any]:
        remaining = iter(tangents)
        full = []
        for primal, is_nonzero, flag in safe_zip(primals, nonzeros, flags):
            if is_nonzero:
                full.append(next(remaining))
            else:
                full.append(zeros_of(aval_of(primal).tangent()) if flag else None)
        groups = full[:num_consts], full[num_consts:split], full[split:]
        const_tangents, carry_tangents, x_tangents = (
            [tangent for tangent in group if tangent is not None] for group in groups
        )
        count = len(fixed)
        consts, xs = [*values[:count], *const_tangents], [*values[count:], *x_tangents]
        return bind(body, consts, carry_tangents, xs, **params)

    return results[:num_outs], out_nonzeros, [*fixed, *stacks], tangent_function


def partial_scan(
    bind: BindScan,
    unknowns: Sequence[bool],
    *operands: Any,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[Any, ...]:
    """The partial_eval rule: one scan over known values, another one over unknown values."""
    split = num_consts + num_carry
    flags = list(unknowns)
    # Fixed point over the carries that are unknown.
    while True:
        requested = (*flags[num_consts:split], *[False] * (len(jaxpr.out_avals) - num_carry))
        known, unknown, out_unknowns, _ = partial_jaxpr(jaxpr, tuple(flags), requested)
        if list(out_unknowns[:num_carry]) == flags[num_consts:split]:
            break
        flags[num_consts:split] = out_unknowns[:num_carry]
    known, closed = close(known)
    roles = slice(0, num_consts), slice(num_consts, split), slice(split, None)
    known_consts, init, xs = [
        [x for x, flag in safe_zip(operands[role], flags[role]) if not flag] for role in roles
    ]
    consts = [*closed, *known_consts]
    num_outs = len(out_unknowns) - sum(out_unknowns)
    residuals = _Residuals(known.jaxpr, num_outs, len(consts), len(init))
    results = bind(residuals.evaluation, consts, init, xs, **params)
    fixed, stacks = residuals.values(consts, xs, results[num_outs:])
    body = _linear_body(unknown, residuals.is_stacked, flags, num_consts, num_carry)
    # Carries that become unknown in the loop have known initial values, which are residuals.
    started = [k for k, flag in enumerate(unknowns) if flags[k] and not flag]

    def unknown_function(values: Sequence[Any], *unknown_operands: Any) -> list[Any]:
        remaining = iter(unknown_operands)
        full = [next(remaining) if flag else None for flag in unknowns]
        for k, value in safe_zip(started, values[len(values) - len(started) :]):
            full[k] = value
        consts, init, xs = [
            [x for x, flag in safe_zip(full[role], flags[role]) if flag] for role in roles
        ]
        first, last = values[: len(fixed)], values[len(fixed) : len(fixed) + len(stacks)]
        return bind(body, [*first, *consts], init, [*last, *xs], **params)

    stored = [*fixed, *stacks, *[operands[k] for k in started]]
    return results[:num_outs], out_unknowns, stored, unknown_function


class _Residuals:
    """The residuals of a split body, by source: invariant, slices of xs, or ys of the forward scan.

    Attributes:
        evaluation: the forward body, whose last ys are the residuals that must be stacked.
        is_stacked: for each residual, whether it has one value for each iteration.
    """

    def __init__(self, known: Jaxpr, num_outs: int, num_consts: int, num_carry: int) -> None:
        self.atoms = known.outvars[num_outs:]
        self.consts = known.invars[:num_consts]
        self.xs = known.invars[num_consts + num_carry :]
        varying = [k >= num_consts for k in range(len(known.invars))]
        self.fixed_eqns, fixed_vars = split_independent(known, varying)
        self.fixed: set[Atom] = {*self.consts, *fixed_vars}
        self.is_stacked = [not self._is_fixed(atom) for atom in self.atoms]
        stacked_atoms = [
            atom
            for atom, stacked in safe_zip(self.atoms, self.is_stacked)
            if stacked and atom not in self.xs
        ]
        key = ("scan evaluation", num_outs, num_consts, num_carry)
        self.evaluation = known.memo(
            key,
            lambda: with_inputs(
                ClosedJaxpr(known), known.invars, [*known.outvars[:num_outs], *stacked_atoms]
            ),
        )

    def _is_fixed(self, atom: Atom) -> bool:
        return type(atom) is Literal or atom in self.fixed

    def values(
        self, consts: Sequence[Any], xs: Sequence[Any], stacked_values: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Invariant residuals, and stacked residuals, each in order."""
        pairs = safe_zip(self.atoms, self.is_stacked)
        fixed_atoms = tuple(atom for atom, stacked in pairs if not stacked)
        program = Jaxpr((), self.consts, fixed_atoms, self.fixed_eqns)
        fixed = ClosedJaxpr(program)(*consts)
        remaining = iter(stacked_values)
        stacks = []
        for atom, stacked in pairs:
            if stacked:
                stacks.append(xs[self.xs.index(atom)] if atom in self.xs else next(remaining))
        return fixed, stacks


def _linear_body(
    linear: Jaxpr,
    is_stacked: Sequence[bool],
    flags: Sequence[bool],
    num_consts: int,
    num_carry: int,
) -> ClosedJaxpr:
    """The linear map with its inputs in scan's order: consts, carries, xs."""

    def make() -> ClosedJaxpr:
        residuals, tangents = linear.invars[: len(is_stacked)], linear.invars[len(is_stacked) :]
        const_count = sum(flags[:num_consts])
        carried = const_count + sum(flags[num_consts : num_consts + num_carry])
        fixed = [var for var, flag in safe_zip(residuals, is_stacked) if not flag]
        stacks = [var for var, flag in safe_zip(residuals, is_stacked) if flag]
        invars = [*fixed, *tangents[:carried], *stacks, *tangents[carried:]]
        return with_inputs(ClosedJaxpr(linear), invars)

    return linear.memo(("scan order", tuple(is_stacked), num_consts, num_carry), make)


# --- transposition -------------------------------------------------------------------------


def transpose_scan(
    bind: BindScan,
    cotangents: Sequence[Any],
    *operands: Any,
    jaxpr: ClosedJaxpr,
    num_consts: int,
    num_carry: int,
    reverse: bool,
    **params: Any,
) -> list[Any]:
    """The transpose rule: a scan in the other direction over cotangents.

    Cotangents of consts accumulate in additional carries.
    """
    split = num_consts + num_carry
    undefined = [is_undefined(operand) for operand in operands]
    linear = _linear_carries(jaxpr.jaxpr, undefined, num_consts, num_carry)
    if not all(linear):
        body, values, linear_cotangents = _without_known_carries(
            bind, jaxpr, operands, cotangents, linear, num_consts, num_carry, reverse, params
        )
        count = sum(linear)
        reordered = transpose_scan(
            bind,
            linear_cotangents,
            *values,
            jaxpr=body,
            num_consts=num_consts,
            num_carry=count,
            reverse=reverse,
            **params,
        )
        return _with_known_carries(reordered, linear, num_consts, count)
    flags = tuple(type(cotangent) is not Zero for cotangent in cotangents[num_carry:])
    body = _backward_body(jaxpr, tuple(undefined), flags, num_consts, num_carry)
    known = [None if flag else x for x, flag in safe_zip(operands, undefined)]
    accumulators = [
        zeros_of(operand.aval.tangent())
        for operand in operands[:num_consts]
        if is_undefined(operand)
    ]
    carries = [instantiate(cotangent) for cotangent in cotangents[:num_carry]]
    y_cotangents = [ct for ct in cotangents[num_carry:] if type(ct) is not Zero]
    results = iter(
        bind(
            body,
            [x for x, flag in safe_zip(known[:num_consts], undefined[:num_consts]) if not flag],
            [*accumulators, *carries],
            [
                *[x for x, flag in safe_zip(known[split:], undefined[split:]) if not flag],
                *y_cotangents,
            ],
            reverse=not reverse,
            **params,
        )
    )
    out: list[Any] = []
    for k, flag in enumerate(undefined):
        # Every carry has a cotangent; that of a known initial value is dropped.
        ct = next(results) if flag or num_consts <= k < split else None
        out.append(ct if flag else None)
    return out


def _linear_carries(
    jaxpr: Jaxpr, undefined: Sequence[bool], num_consts: int, num_carry: int
) -> list[bool]:
    """For each carry, whether it depends on an undefined operand, so is linear: a fixed point."""
    varying = list(undefined)
    while True:
        fixed = {var for var, flag in safe_zip(jaxpr.invars, varying) if not flag}
        fixed |= split_independent(jaxpr, varying)[1]
        before = list(varying)
        for k, atom in enumerate(jaxpr.outvars[:num_carry]):
            if type(atom) is not Literal and atom not in fixed:
                varying[num_consts + k] = True
        if varying == before:
            return varying[num_consts : num_consts + num_carry]


def _without_known_carries(
    bind: BindScan,
    jaxpr: ClosedJaxpr,
    operands: Sequence[Any],
    cotangents: Sequence[Any],
    linear: Sequence[bool],
    num_consts: int,
    num_carry: int,
    reverse: bool,
    params: dict[str, Any],
) -> tuple[ClosedJaxpr, list[Any], list[Any]]:
    """Compute the known carries (counters) in a separate scan; their values become xs.

    The backward loop runs in the other direction, so it cannot compute them itself.

    Returns:
        A body whose carries are all linear, its operands, and the cotangents of its outputs.
    """
    inner, split = jaxpr.jaxpr, num_consts + num_carry
    invars = list(inner.invars)
    varying = [
        is_undefined(x) or (num_consts <= k < split and linear[k - num_consts])
        for k, x in enumerate(operands)
    ]
    eqns, _ = split_independent(inner, varying)
    known_inputs = [k for k, flag in enumerate(varying) if not flag]
    counter_ids = [k for k, flag in enumerate(linear) if not flag]
    counters = [invars[num_consts + k] for k in counter_ids]
    ahead = Jaxpr(
        (),
        tuple(invars[k] for k in known_inputs),
        (*[inner.outvars[k] for k in counter_ids], *counters),
        eqns,
    )
    groups = ([k for k in known_inputs if k < num_consts], [num_consts + k for k in counter_ids])
    xs = [k for k in known_inputs if k >= split]
    results = bind(
        ClosedJaxpr(ahead),
        *[[operands[k] for k in group] for group in (*groups, xs)],
        reverse=reverse,
        **params,
    )
    linear_inputs = [num_consts + k for k, flag in enumerate(linear) if flag]
    order = [*range(num_consts), *linear_inputs]
    body = with_inputs(
        jaxpr,
        [*[invars[k] for k in order], *counters, *invars[split:]],
        [
            *[atom for atom, flag in safe_zip(inner.outvars[:num_carry], linear) if flag],
            *inner.outvars[num_carry:],
        ],
    )
    values = [*[operands[k] for k in order], *results[len(counter_ids) :], *operands[split:]]
    linear_cotangents = [ct for ct, flag in safe_zip(cotangents[:num_carry], linear) if flag]
    return body, values, [*linear_cotangents, *cotangents[num_carry:]]


def _with_known_carries(
    results: Sequence[Any], linear: Sequence[bool], num_consts: int, num_carry: int
) -> list[Any]:
    """Cotangents for the original operands: None for known carries, none for the added xs."""
    remaining = iter(results[num_consts : num_consts + num_carry])
    carries = [next(remaining) if flag else None for flag in linear]
    counters = len(linear) - num_carry
    return [*results[:num_consts], *carries, *results[num_consts + num_carry + counters :]]


def _backward_body(
    jaxpr: ClosedJaxpr,
    undefined: tuple[bool, ...],
    y_nonzeros: tuple[bool, ...],
    num_consts: int,
    num_carry: int,
) -> ClosedJaxpr:
    """``(*known consts, *accumulators, *carry cts, *known xs, *y cts) -> (*carries, *x cts)``."""
    key = ("scan transpose", undefined, y_nonzeros, num_consts, num_carry)
    return jaxpr.jaxpr.memo(
        key, lambda: _make_backward(jaxpr, undefined, y_nonzeros, num_consts, num_carry)
    )


def _make_backward(
    jaxpr: ClosedJaxpr,
    undefined: tuple[bool, ...],
    y_nonzeros: tuple[bool, ...],
    num_consts: int,
    num_carry: int,
) -> ClosedJaxpr:
    split = num_consts + num_carry
    ins, outs = jaxpr.in_avals, jaxpr.out_avals
    summed = [aval for aval, flag in safe_zip(ins[:num_consts], undefined[:num_consts]) if flag]
    known = [aval for aval, flag in safe_zip(ins[:num_consts], undefined[:num_consts]) if not flag]
    known_xs = [aval for aval, flag in safe_zip(ins[split:], undefined[split:]) if not flag]
    cts = [aval for aval, flag in safe_zip(outs[num_carry:], y_nonzeros) if flag]
    carried = ins[num_consts:split]
    avals = [
        *known,
        *[aval.tangent() for aval in (*summed, *carried)],
        *known_xs,
        *[aval.tangent() for aval in cts],
    ]

    def backward(*values: Any) -> list[Any]:
        remaining = iter(values)
        known_values = [next(remaining) for _ in known]
        accumulators = [next(remaining) for _ in summed]
        carry_cts = [next(remaining) for _ in carried]
        x_values = [next(remaining) for _ in known_xs]
        y_cts = [
            next(remaining) if flag else Zero(aval.tangent())
            for aval, flag in safe_zip(outs[num_carry:], y_nonzeros)
        ]
        values_of = iter([*known_values, *x_values])
        operands = [
            UndefinedPrimal(aval) if flag or num_consts <= k < split else next(values_of)
            for k, (aval, flag) in enumerate(safe_zip(ins, undefined))
        ]
        results = backward_pass(jaxpr.jaxpr, jaxpr.consts, operands, [*carry_cts, *y_cts])
        const_cts = [results[k] for k in range(num_consts) if undefined[k]]
        return [
            *[
                instantiate(add_tangents(total, ct))
                for total, ct in safe_zip(accumulators, const_cts)
            ],
            *[instantiate(ct) for ct in results[num_consts:split]],
            *[instantiate(results[k]) for k in range(split, len(ins)) if undefined[k]],
        ]

    result, consts = trace_to_jaxpr(backward, avals)
    return ClosedJaxpr(result, tuple(consts))
