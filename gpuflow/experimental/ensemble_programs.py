"""The two programs of ``ensemble.solve``, interpolation within steps, and derivatives.

Tests: tests/experimental/test_ensemble.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import jvp, vjp
from gpuflow.api.vmap import vmap
from gpuflow.base import dtypes
from gpuflow.control.checkpoint import checkpoint
from gpuflow.control.custom.calls import SymbolicZero
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.custom.linear_call import linear_call
from gpuflow.core.aval import aval_of
from gpuflow.experimental.ensemble_steps import (
    RK4,
    Problem,
    Run,
    State,
    Status,
    TimedState,
    first_state,
    step,
)
from gpuflow.experimental.runge_kutta import moved, take_step, tsitouras_weights
from gpuflow.numpy.creation import astype
from gpuflow.ops.elementwise.convert import stop_gradient
from gpuflow.ops.elementwise.select import where
from gpuflow.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten


def by_loop(problem: Problem, y0: Any, times: Any, operands: Any) -> tuple[Any, ...]:
    """One loop; with several times, a loop up to each of them in a scan."""
    run = Run(problem, times, operands)

    def until(target: Any, state: State) -> State:
        return lax.while_loop(lambda s: run.goes_on(s, target), lambda s: step(run, s), state)

    state = first_state(run, y0)
    if problem.is_span and problem.event is None and problem.count is not None:
        # A static number of steps needs no condition.
        state, _ = lax.scan(lambda s, _: (step(run, s), None), state, None, problem.most_steps)
        return finished(run, y0, state, None)
    if problem.is_span:
        return finished(run, y0, until(run.end, state), None)

    def body(state: State, target: Any) -> tuple[State, Any]:
        state = until(target, state)
        return state, row_of(run, state.before, state.here, target)

    state, rows = lax.scan(body, state, times[1:])
    return finished(run, y0, state, rows)


def by_scan(problem: Problem, y0: Any, times: Any, operands: Any) -> tuple[Any, ...]:
    """The same steps in a scan, which reverse mode can differentiate."""
    run = Run(problem, times, operands)

    def body(state: State, _: Any) -> tuple[State, Any]:
        going = run.goes_on(state, run.end)
        state = lax.cond(going, lambda s: step(run, s), lambda s: s, state)
        return state, None if problem.is_span else (state.before, state.here)

    state = first_state(run, y0)
    length = max(problem.most_steps, 1)  # rows are looked up among the iterations
    state, states = lax.scan(checkpoint(body, prevent_cse=False), state, None, length)
    if problem.is_span:
        return finished(run, y0, state, None)

    def row(target: Any) -> Any:
        before, here = states
        passed = run.direction * (target - here.t) > 0
        which = jnp.minimum(jnp.sum(passed), length - 1)
        before, here = tree_map(lambda x: x[which], (before, here))
        return row_of(run, before, here, target)

    return finished(run, y0, state, vmap(row)(times[1:]))


# --- states within a step ----------------------------------------------------------------------


def _interpolant(run: Run, before: TimedState, here: TimedState) -> Callable[[Any], Any]:
    """Map a fraction of a step, 0 to 1, to the state there; recomputes the step's slopes."""
    dt = here.t - before.t
    if isinstance(run.problem.method, RK4):
        ends = [run.slope(*before), run.slope(*here)]

        def cubic(theta: Any) -> Any:
            # Hermite's.
            rise = theta * theta * (3 - 2 * theta)
            bends = theta * (1 - theta) * (1 - theta), theta * theta * (theta - 1)
            through = tree_map(
                lambda a, b: a + astype(rise, aval_of(a).dtype) * (b - a), before.y, here.y
            )
            return moved(through, dt, bends, ends)

        return cubic
    first = run.slope(*before)
    _, slopes = take_step(run.problem.tableau, run.slope, before.t, before.y, first, dt)
    return lambda theta: moved(before.y, dt, tsitouras_weights(theta), slopes)


def row_of(run: Run, before: TimedState, here: TimedState, target: Any) -> Any:
    """The state at a time within a step; nan if the step does not have it."""
    dt = here.t - before.t
    is_end = target == here.t
    theta = where(is_end, 1.0, (target - before.t) / where(dt == 0, 1.0, dt))
    within = _interpolant(run, before, here)(theta)
    is_inside = (run.direction * (target - before.t) >= 0) & (
        run.direction * (here.t - target) >= 0
    )
    return tree_map(lambda x: where(is_inside, x, np.nan), within)


def finished(run: Run, y0: Any, state: State, rows: Any) -> tuple[Any, ...]:
    """The fields of a Solution.

    Args:
        y0: the first state; state: after the last step.
        rows: the states at all times but the first; None returns the last one.
    """
    problem = run.problem
    end, y = state.here
    is_at_end = end == run.end
    if not problem.is_adaptive and problem.is_span:
        is_at_end = state.steps >= run.number
    # A time that is nan ends a solve as well.
    is_spent = state.steps >= problem.max_steps
    status = where(is_spent, np.int32(Status.MAX_STEPS), np.int32(Status.FAILED))
    status = where(is_at_end, np.int32(Status.DONE), status)
    status = where(state.status != 0, state.status, status)
    if not problem.is_ordered:
        is_ordered = jnp.all(run.direction * jnp.diff(run.times) >= 0)
        status = where(is_ordered, status, np.int32(Status.FAILED))
    if not problem.is_adaptive:
        for leaf in tree_leaves(y):
            status = where(jnp.all(jnp.isfinite(leaf)), status, np.int32(Status.FAILED))
    event_time = jnp.full_like(run.end, np.nan)
    is_event = None
    if problem.event is not None:
        assert state.before is not None
        is_event = status == Status.EVENT
        located = _located(run, state.before, state.here)
        event_time = where(is_event, located.t, event_time)
        y = tree_map(lambda a, b: where(is_event, a, b), located.y, y)
    if rows is None:
        is_known = status <= Status.EVENT
        ys = tree_map(lambda x: where(is_known, x, np.nan), y)
        ts = run.end if is_event is None else where(is_event, event_time, run.end)
        return ts, ys, status, state.steps, event_time
    ts, later = run.times, run.times[1:]
    if is_event is not None:
        is_behind = is_event & (run.direction * (later - event_time) > 0)
        rows = tree_map(
            lambda r, x: where(is_behind.reshape((-1, *[1] * aval_of(x).ndim)), x[None], r),
            rows,
            y,
        )
        ts = jnp.concatenate([ts[:1], where(is_behind, event_time, later)])
    ys = tree_map(lambda x, r: jnp.concatenate([x[None], r]), y0, rows)
    return ts, ys, status, state.steps, event_time


def _located(run: Run, before: TimedState, here: TimedState) -> TimedState:
    """Locate the event's sign change in a step by bisection; its derivative is that of a root."""
    within, dt = _interpolant(run, before, here), here.t - before.t

    def value(theta: Any) -> Any:
        return astype(run.event(before.t + theta * dt, within(theta)), dt.dtype)

    def halved(value: Any, zero: Any) -> Any:
        sign = jnp.sign(value(zero))

        def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
            low, high = ends
            middle = 0.5 * (low + high)
            is_before = jnp.sign(value(middle)) == sign
            return where(is_before, middle, low), where(is_before, high, middle)

        halvings = jnp.finfo(aval_of(zero).dtype).nmant + 1
        return lax.fori_loop(0, halvings, halve, (zero, zero + 1))[1]

    def solved(linear: Any, y: Any) -> Any:
        rate = linear(jnp.ones_like(y))
        # Batch elements without an event may have no slope there.
        return where(rate == 0, 0.0, y / where(rate == 0, 1.0, rate))

    zero = jnp.zeros_like(stop_gradient(dt))
    theta = lax.custom_root(value, zero, halved, solved)
    return TimedState(before.t + theta * dt, within(theta))


# --- derivatives -------------------------------------------------------------------------------


@partial(custom_jvp, nondiff_argnums=(0,))
def solve_problem(problem: Problem, y0: Any, times: Any, operands: Any) -> tuple[Any, ...]:
    return by_loop(problem, y0, times, operands)


def solve_problem_jvp(problem: Problem, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The tangents are a linear call: forwards the loop with tangents, transposed the scan's."""
    outs = solve_problem(problem, *primals)
    leaves, structure = tree_flatten(primals)
    tangent_leaves = tree_leaves(tangents, is_leaf=lambda x: isinstance(x, SymbolicZero))
    positions = [k for k, t in enumerate(tangent_leaves) if not isinstance(t, SymbolicZero)]
    positions = [k for k in positions if dtypes.is_inexact(aval_of(leaves[k]).dtype)]

    def floats(run: Callable[..., Any], values: Sequence[Any]) -> tuple[Callable[..., Any], Any]:
        def function(*moving: Any) -> Any:
            full = list(values)
            for k, value in zip(positions, moving, strict=True):
                full[k] = value
            ts, ys, _, _, event_time = run(problem, *tree_unflatten(structure, full))
            return ts, ys, event_time

        return function, tuple(values[k] for k in positions)

    def forward(values: Sequence[Any], moving: Any) -> Any:
        function, points = floats(by_loop, values)
        return jvp(function, points, tuple(moving))[1]

    def backward(values: Sequence[Any], cotangents: Any) -> Any:
        function, points = floats(by_scan, values)
        return list(vjp(function, *points)[1](cotangents))

    ts, ys, event_time = linear_call(
        forward, backward, leaves, [tangent_leaves[k] for k in positions]
    )
    none = [np.zeros(aval_of(count).shape, dtypes.float0) for count in outs[2:4]]
    return outs, (ts, ys, *none, event_time)


solve_problem.defjvp(solve_problem_jvp, symbolic_zeros=True)
