"""``while_p``: a loop of dynamic trip count over carries, and its rules.

The operands are ``(*condition consts, *body consts, *init)``. The condition is a program
``(*condition consts, *carry) -> (bool scalar,)``, the body ``(*body consts, *carry) -> (*carry,)``.
``lane_while_p`` has a condition for each lane (see lanes.py): each lane stops independently.
``fori`` has the public functions.

Tests: tests/control/test_control_flow.py, tests/control/test_partial_eval.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.util import safe_zip
from gpuflow.control.loops.lanes import (
    Lane,
    Lanes,
    communicate,
    extend,
    lane_counts,
    lane_shape,
    over_lanes,
)
from gpuflow.control.loops.pruning import prune_while
from gpuflow.control.loops.while_checks import check_while
from gpuflow.control.program_rules import check_types
from gpuflow.control.programs import close, execute_alone, with_inputs
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Var
from gpuflow.core.key_use import Flow, States, follow_program, slice_states, spend
from gpuflow.core.lowering import Inline, LaneForm, Loop, WhileForm
from gpuflow.core.primitive import Primitive, make_primitive, register
from gpuflow.core.rules import AxisData, Zero
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.elementwise.comparison import bitwise_and
from gpuflow.ops.elementwise.select import select_n
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.reductions.reduce import reduce_or
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.partial_eval import partial_jaxpr


def bind_while(
    condition: ClosedJaxpr,
    body: ClosedJaxpr,
    condition_consts: Sequence[Any],
    body_consts: Sequence[Any],
    init: Sequence[Any],
    lanes: Lanes = (),
) -> list[Any]:
    """Bind the two programs; their own constants become leading consts."""
    condition, condition_closed = close(condition)
    body, body_closed = close(body)
    num_closed, end = len(condition_closed), len(condition_consts)
    operands = [*condition_closed, *condition_consts, *body_closed, *body_consts, *init]
    params: dict[str, Any] = {
        "condition": condition,
        "body": body,
        "num_condition_consts": num_closed + end,
        "num_body_consts": len(body_closed) + len(body_consts),
    }
    if not lanes:
        return while_p.bind(*operands, **params)
    full = tuple(
        Lane(
            lane.axis,
            (
                *[False] * num_closed,
                *lane.mapped[:end],
                *[False] * len(body_closed),
                *lane.mapped[end:],
            ),
        )
        for lane in lanes
    )
    return lane_while_p.bind(*operands, **params, lanes=full)


_CONDITION = ShapedArray((), np.bool_)


def _shape(
    *avals: ShapedArray,
    condition: ClosedJaxpr,
    body: ClosedJaxpr,
    num_condition_consts: int,
    num_body_consts: int,
    lanes: Lanes = (),
) -> list[ShapedArray]:
    inner = body.in_avals[num_body_consts:]
    check_types("while_loop", "carries", body.out_avals, inner)
    check_types("while_loop", "inputs", condition.in_avals[num_condition_consts:], inner)
    check_types("while_loop", "results of the condition", condition.out_avals, [_CONDITION])
    lanes_shape = lane_shape(lanes)
    counts = lane_counts(lanes, len(avals))[num_condition_consts:]
    carries = avals[num_condition_consts:]
    for aval, expected, count in safe_zip(carries, body.in_avals, counts):
        if (aval.shape[count:], aval.dtype) != (expected.shape, expected.dtype):
            raise TypeError(
                f"[while_loop] operands must match the traced body; got {aval} for {expected}. "
                "Fix: the rule that bound this loop; programs cannot cause it."
            )
    return [aval.update(shape=(*lanes_shape, *aval.shape)) for aval in body.out_avals]


def _split(values: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    first, second = params["num_condition_consts"], params["num_body_consts"]
    split = first + second
    return list(values[:first]), list(values[first:split]), list(values[split:])


class _LoopDerivative(NamedTuple):
    """The jvp of a while loop, itself a while loop.

    Attributes:
        condition: the loop's condition, with unused inputs for tangents of carries.
        body: ``(*consts, *nonzero const tangents, *carries, *nonzero carry tangents) -> (*carries,
            *nonzero carry tangents)``.
        const_nonzeros: for each const of the body whether it has a tangent.
        carry_nonzeros: for each carry whether it has a tangent in some iteration.
    """

    condition: ClosedJaxpr
    body: ClosedJaxpr
    const_nonzeros: list[bool]
    carry_nonzeros: list[bool]


def _derivative(nonzeros: Sequence[bool], params: dict[str, Any]) -> _LoopDerivative:
    """The jvp of the loop for tangents of some operands.

    A fixed point: a carry that gets a tangent in an iteration has one from the beginning.
    """
    _, const_flags, carry_flags = _split(nonzeros, params)
    body = params["body"]
    while True:
        flags = (*const_flags, *carry_flags)
        derivative, out_nonzeros = jvp_jaxpr(body, flags, tuple(carry_flags))
        if list(out_nonzeros) == carry_flags:
            break
        carry_flags = list(out_nonzeros)
    count = len(const_flags)
    const_tangent_count = sum(const_flags)

    def reorder() -> ClosedJaxpr:
        primals = derivative.jaxpr.invars[: len(flags)]
        tangents = derivative.jaxpr.invars[len(flags) :]
        invars = [
            *primals[:count],
            *tangents[:const_tangent_count],
            *primals[count:],
            *tangents[const_tangent_count:],
        ]
        return with_inputs(derivative, invars)

    ordered = derivative.jaxpr.memo(("while jvp", flags, count), reorder)

    def widen() -> ClosedJaxpr:
        carried = [a.tangent() for a, flag in safe_zip(body.out_avals, carry_flags) if flag]
        condition = params["condition"]
        return with_inputs(condition, [*condition.jaxpr.invars, *[Var(a) for a in carried]])

    key = ("while jvp", tuple(carry_flags))
    condition = params["condition"].jaxpr.memo(key, widen)
    return _LoopDerivative(condition, ordered, const_flags, carry_flags)


def _bind_derivative(
    primals: Sequence[Any], tangents: Sequence[Any], lanes: Lanes, params: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    nonzeros = [type(tangent) is not Zero for tangent in tangents]
    condition, body, const_flags, carry_flags = _derivative(nonzeros, params)
    first, second, init = _split(primals, params)
    _, const_tangents, carry_tangents = _split(tangents, params)
    nonzero_const_tangents = [t for t, flag in safe_zip(const_tangents, const_flags) if flag]
    nonzero_carry_tangents = [
        instantiate(t) for t, flag in safe_zip(carry_tangents, carry_flags) if flag
    ]
    ends = len(first), len(first) + len(second)
    sources = [
        *range(ends[1]),
        *[ends[0] + k for k, flag in enumerate(const_flags) if flag],
        *[-1] * (len(init) + len(nonzero_carry_tangents)),
    ]
    results = bind_while(
        condition,
        body,
        first,
        [*second, *nonzero_const_tangents],
        [*init, *nonzero_carry_tangents],
        extend(lanes, sources),
    )
    outs = results[: len(init)]
    out_tangents = iter(results[len(init) :])
    return outs, [
        next(out_tangents) if flag else Zero(aval_of(out).tangent())
        for out, flag in safe_zip(outs, carry_flags)
    ]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, lanes: Lanes = (), **params: Any
) -> tuple[list[Any], list[Any]]:
    return _bind_derivative(primals, tangents, lanes, params)


def _linearize(
    nonzeros: tuple[bool, ...], *primals: Any, lanes: Lanes = (), **params: Any
) -> tuple[Any, ...]:
    """The linearize rule: the linear map runs the jvp of the whole loop.

    It stores no residuals of iterations, because their number is unknown.
    """
    outs = _bind(primals, lanes, params)
    out_nonzeros = _derivative(nonzeros, params).carry_nonzeros

    def tangent_function(residuals: Sequence[Any], *nonzero_tangents: Any) -> list[Any]:
        remaining = iter(nonzero_tangents)
        tangents = [
            next(remaining) if flag else Zero(aval_of(primal).tangent())
            for primal, flag in safe_zip(residuals, nonzeros)
        ]
        _, out_tangents = _bind_derivative(residuals, tangents, lanes, params)
        return [t for t, flag in safe_zip(out_tangents, out_nonzeros) if flag]

    return outs, out_nonzeros, list(primals), tangent_function


def _partial_eval(
    unknowns: tuple[bool, ...], *operands: Any, lanes: Lanes = (), **params: Any
) -> tuple[Any, ...]:
    """The partial_eval rule: a loop over known carries, and the whole loop again for the others."""
    first, second, carry = _split(unknowns, params)
    while True:
        body, _, outs, _ = partial_jaxpr(params["body"], (*second, *carry), tuple(carry))
        if list(outs) == carry:
            break
        carry = list(outs)
    condition, _, (is_unknown,), _ = partial_jaxpr(params["condition"], (*first, *carry))
    if is_unknown:
        carry = [True] * len(carry)
    known: list[Any] = []
    if not all(carry):
        known_positions = [k for k, flag in enumerate((*first, *second, *carry)) if not flag]
        ends = len(first), len(first) + len(second)
        groups = [
            [operands[k] for k in known_positions if start <= k < end]
            for start, end in ((0, ends[0]), ends, (ends[1], len(operands)))
        ]
        count = len(carry) - sum(carry)
        programs = [_first_outputs(condition, 1), _first_outputs(body, count)]
        known = bind_while(*programs, *groups, extend(lanes, known_positions))

    def unknown_function(values: Sequence[Any], *unknown_operands: Any) -> list[Any]:
        known_values, unknown_values = iter(values), iter(unknown_operands)
        full = [next(unknown_values if flag else known_values) for flag in unknowns]
        results = _bind(full, lanes, params)
        return [out for out, flag in safe_zip(results, carry) if flag]

    residuals = [x for x, flag in safe_zip(operands, unknowns) if not flag]
    return known, tuple(carry), residuals, unknown_function


def _first_outputs(jaxpr: ClosedJaxpr, count: int) -> ClosedJaxpr:
    inner = jaxpr.jaxpr
    key = ("first outputs", count)
    return inner.memo(key, lambda: with_inputs(jaxpr, inner.invars, inner.outvars[:count]))


def _bind(operands: Sequence[Any], lanes: Lanes, params: dict[str, Any]) -> list[Any]:
    groups = _split(operands, params)
    return bind_while(params["condition"], params["body"], *groups, lanes)


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    del cotangents, operands, params
    raise ValueError(
        "[while_loop] reverse-mode differentiation needs a loop of known length; got a while_loop, "
        "or a fori_loop with traced bounds. Fix: use lax.scan, a fori_loop with Python ints as "
        "bounds, or lax.while_loop(..., max_steps=N); or use jvp or jacfwd."
    )


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    lanes: Lanes = (),
    **params: Any,
) -> tuple[list[Any], list[int | None]]:
    """The batch rule: a mapped condition adds a lane, otherwise the body is batched."""
    condition, body = params["condition"], params["body"]
    batched = [dim is not None for dim in dims]
    first, second, carry = _split(batched, params)
    while True:
        mapped, out_batched = batch_jaxpr(body, axis, (*second, *carry), tuple(carry))
        if list(out_batched) == carry:
            break
        carry = list(out_batched)
    mapped_condition, (by_lane,) = batch_jaxpr(condition, axis, (*first, *carry))
    if by_lane:
        batched_operands = [
            batch_to_dim(x, dim, 0, axis.size) if flag else x
            for x, dim, flag in safe_zip(operands, dims, [*first, *second, *[True] * len(carry)])
        ]
        lane = Lane(axis, (*first, *second, *[True] * len(carry)))
        if communicate((condition, body)):
            outs = _over_lanes({**params, "lanes": (lane, *lanes)})(*batched_operands)
        else:
            outs = _bind(batched_operands, (lane, *lanes), params)
        return outs, [0] * len(outs)
    counts = lane_counts(lanes, len(operands))
    batched_operands = [
        batch_to_dim(x, dim, count, axis.size) if flag else x
        for x, dim, count, flag in safe_zip(operands, dims, counts, [*first, *second, *carry])
    ]
    groups = _split(batched_operands, params)
    outs = bind_while(mapped_condition, mapped, *groups, lanes)
    return outs, [len(lanes) if flag else None for flag in carry]


def _over_lanes(params: dict[str, Any]) -> ClosedJaxpr:
    """The loop over all lanes, until all have stopped; stopped lanes retain their carry."""
    lanes: Lanes = params["lanes"]
    first, second = params["num_condition_consts"], params["num_body_consts"]
    count = len(params["body"].out_avals)
    carries = [-1] * count
    condition = over_lanes(params["condition"], lanes, [*range(first), *carries])
    body = over_lanes(params["body"], lanes, [*range(first, first + second), *carries])
    lane_dims = tuple(range(len(lanes)))

    def program(*operands: Any) -> list[Any]:
        for_condition, for_body, init = _split(operands, params)
        (going,) = condition(*for_condition, *init)

        def goes_on(state: Any, *carry: Any) -> list[Any]:
            del carry
            return [reduce_or(state, lane_dims)]

        def step(*values: Any) -> list[Any]:
            consts, more, state, carry = (
                values[:first],
                values[first : first + second],
                values[first + second],
                values[first + second + 1 :],
            )
            next_carry = []
            for old, new in safe_zip(carry, body(*more, *carry)):
                which = broadcast_in_dim(state, aval_of(new).shape, lane_dims)
                next_carry.append(select_n(which, old, new))
            (still,) = condition(*consts, *next_carry)
            return [bitwise_and(state, still), *next_carry]

        avals = [aval_of(going), *[aval_of(x) for x in init]]
        test, _ = trace_to_jaxpr(goes_on, avals)
        consts = [*for_condition, *for_body]
        loop, closed = trace_to_jaxpr(step, [*[aval_of(x) for x in consts], *avals])
        loop_body = ClosedJaxpr(loop, tuple(closed))
        return bind_while(ClosedJaxpr(test), loop_body, [], consts, [going, *init])[1:]

    def make() -> ClosedJaxpr:
        avals = []
        for k, aval in enumerate(_inputs(params)):
            sizes = [lane.axis.size for lane in lanes if lane.mapped[k]]
            avals.append(aval.update(shape=(*sizes, *aval.shape)))
        jaxpr, consts = trace_to_jaxpr(program, avals)
        return ClosedJaxpr(jaxpr, tuple(consts))

    key = ("over lanes", params["condition"].jaxpr, first, second, lanes)
    return params["body"].jaxpr.memo(key, make)


def _inputs(params: dict[str, Any]) -> list[ShapedArray]:
    """The types of the operands, without lane dimensions."""
    consts = params["condition"].in_avals[: params["num_condition_consts"]]
    return [*consts, *params["body"].in_avals]


def _keys(flow: Flow) -> States | None:
    """Key-reuse rule: follow two iterations, so that reuse of a const or carry is detected."""
    first, second = flow.params["num_condition_consts"], flow.params["num_body_consts"]
    states: States = flow.states
    if "lanes" in flow.params:
        states = slice_states(states, _inputs(flow.params))
    carry = states[first + second :]
    for _ in range(2):
        follow_program(flow.params["condition"], [*states[:first], *carry])
        carry = follow_program(flow.params["body"], [*states[first : first + second], *carry])
    if "lanes" not in flow.params:
        return carry
    spend(flow, states)
    return None


def _form(params: dict[str, Any]) -> WhileForm:
    return WhileForm(
        params["condition"],
        params["body"],
        params["num_condition_consts"],
        params["num_body_consts"],
    )


def _define(
    name: str, lower: Any, execute: Callable[..., Any], prune: Callable[..., Any] | None = None
) -> Primitive:
    return register(
        make_primitive(
            name,
            shape=_shape,
            execute=execute,
            jvp=_jvp,
            linearize=_linearize,
            partial_eval=_partial_eval,
            transpose=_transpose,
            batch=_batch,
            lower=lower,
            prune=prune,
            multiple_results=True,
            effects=lambda params: params["condition"].effects | params["body"].effects,
            subjaxprs=lambda params: [params["condition"], params["body"]],
            keys=_keys,
            checked=partial(check_while, bind_while),
        )
    )


def _lane_form(params: dict[str, Any]) -> LaneForm:
    lanes: Lanes = params["lanes"]
    return LaneForm(_form(params), lane_shape(lanes), tuple(lane.mapped for lane in lanes))


while_p = _define("while", Loop(_form), execute_alone(lambda: while_p), prune_while)
lane_while_p = _define(
    "lane_while",
    Inline(lambda _, params: _over_lanes(params), _lane_form),
    execute_alone(lambda: lane_while_p),
)
