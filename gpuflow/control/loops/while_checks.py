"""The checkify rule of while_loop: checks in the body, and in the condition.

The condition runs before the first iteration and after each one, so its checks do too.

Tests: tests/test_checkify.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.control.loops.lanes import Lanes, extend, lane_shape, over_lanes
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.layout.axes import broadcast_in_dim
from gpuflow.transforms.checking import (
    Categories,
    State,
    blank,
    checked_jaxpr,
    first_failure,
    merged,
    of_mapped,
    shifted_code,
)

Bind = Callable[..., list[Any]]


def check_while(
    bind: Bind, categories: Categories, operands: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State | None]:
    """Bind the loop with the first failure as additional carries, one for each batch element."""
    lanes: Lanes = params.get("lanes", ())
    first, second = params["num_condition_consts"], params["num_body_consts"]
    condition, after_test = checked_jaxpr(params["condition"], categories)
    body, in_body = checked_jaxpr(params["body"], categories)
    count, sites = len(params["body"].out_avals), (*in_body, *after_test)
    avals = [ShapedArray((), np.int32), *body.out_avals[count + 1 :], *condition.out_avals[2:]]
    avals = avals if sites else []
    consts, init = list(operands[:first]), list(operands[first + second :])

    def goes_on(*values: Any) -> list[Any]:
        return condition(*values[:first], *values[first + len(avals) :])[:1]

    def step(*values: Any) -> list[Any]:
        passed = values[first + second : first + second + len(avals)]
        results = body(*values[first : first + second], *values[first + second + len(avals) :])
        outs = results[:count]
        states = [State(tuple(results[count:]), in_body)] if in_body else []
        if after_test:
            tested = condition(*values[:first], *outs)
            states.append(State(tuple(tested[1:]), after_test))
        state = merged(states)
        return outs if state is None else [*first_failure(passed, state.values), *outs]

    def make() -> list[ClosedJaxpr]:
        carry_avals = [*avals, *body.in_avals[second:]]
        before = condition.in_avals[:first]
        test = trace_to_jaxpr(goes_on, [*before, *carry_avals])
        looped = trace_to_jaxpr(step, [*before, *body.in_avals[:second], *carry_avals])
        return [ClosedJaxpr(jaxpr, tuple(closed)) for jaxpr, closed in (test, looped)]

    key = ("checked while", condition.jaxpr, first, second)
    programs = body.jaxpr.memo(key, make)
    start = [_in_lanes(value, lanes) for value in blank(avals)]
    if after_test:
        sources = [*range(first), *[-1] * count]
        tested = over_lanes(condition, lanes, sources)(*consts, *init)[1:]
        start[0] = shifted_code(tested[0], len(in_body))
        start[len(start) - len(tested) + 1 :] = tested[1:]
    const_positions, carry_positions = range(first + second), range(first + second, len(operands))
    sources = [*range(first), *const_positions, *[-1] * len(avals), *carry_positions]
    results = bind(
        *programs,
        consts,
        list(operands[: first + second]),
        [*start, *init],
        extend(lanes, sources),
    )
    outs, values = results[len(avals) :], results[: len(avals)]
    return outs, of_mapped(State(tuple(values), sites)) if sites else None


def _in_lanes(value: Any, lanes: Lanes) -> Any:
    sizes, shape = lane_shape(lanes), aval_of(value).shape
    dims = range(len(sizes), len(sizes) + len(shape))
    return broadcast_in_dim(value, (*sizes, *shape), dims) if sizes else value
