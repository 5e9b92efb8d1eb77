"""Methods and states of ``ensemble.solve``: the computation of one step.

Tests: tests/experimental/test_ensemble.py.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base.records import record
from gpuflow.core.aval import aval_of
from gpuflow.experimental.runge_kutta import (
    CLASSICAL,
    TSITOURAS,
    Tableau,
    error_of,
    first_step,
    mean_square_ratio,
    take_step,
)
from gpuflow.numpy.creation import astype
from gpuflow.ops.elementwise.convert import stop_gradient
from gpuflow.ops.elementwise.select import where
from gpuflow.tree_util import tree_map

# A step's length by its error and by that of the step before.
# Source: Gustafsson, ACM Trans. Math. Softw. 17 (1991), 533; the exponents, the margin and the
# limits are those of DOPRI5 in Hairer, Nørsett and Wanner, Solving Ordinary Differential
# Equations I (1993), II.4.
_BETA = 0.04
_ALPHA = 0.2 - 0.75 * _BETA
_MARGIN = 0.9
_SHRINK, _GROW = 0.2, 10.0
_LEAST_ERROR = 1e-4  # of the step before, as the formula sees it


class Status(enum.IntEnum):
    """Termination status of ``solve``."""

    DONE = 0  # at the last time
    EVENT = 1  # where the event's sign changed
    MAX_STEPS = 2  # before the last time, after max_steps steps
    # No step was small enough, equal steps led to a state that is not finite, the event was nan, or
    # times are not monotonic.
    FAILED = 3


@record
class RK4:
    """The classical Runge-Kutta method of order 4 with equal steps.

    States between steps are interpolated by the cubic through both ends and their slopes.

    Args:
        step: maximum step size. The span is divided into the smallest number of equal steps.

    Source: Kutta, Z. Math. Phys. 46 (1901), 435.
    """

    step: float


@record
class Tsit5:
    """Tsitouras' method of order 5 with adaptive or equal steps.

    States between steps are interpolated by the method's own interpolant of order 4.

    Args:
        rtol, atol: tolerated error of a step: ``atol + rtol * |y|``, as a mean over the elements of
            the state.
        first_step: size of the first step; None estimates it with one additional slope.
        step: maximum size of equal steps, without error control; None adapts the steps.

    Source: Tsitouras, Comput. Math. Appl. 62 (2011), 770.
    """

    rtol: float = 1e-5
    atol: float = 1e-6
    first_step: float | None = None
    step: float | None = None


class TimedState(NamedTuple):
    """A time, and the state at it."""

    t: Any
    y: Any


class State(NamedTuple):
    """The data that a step modifies. A field that a problem does not need is None.

    Attributes:
        here: start of the next step. before: start of the last accepted one.
        slope: at ``here``, where the method has it from the last step.
        length: of the next step, not negative. log_error: of the last step's mean square ratio.
        event: the event's value at ``here``.
        status: 0 as long as the solve may go on, EVENT or FAILED.
        steps: attempted so far.
    """

    here: TimedState
    before: TimedState | None
    slope: Any
    length: Any
    log_error: Any
    event: Any
    status: Any
    steps: Any


@record(eq=False)
class Problem:
    """The static parameters of a solve.

    Attributes:
        slope: ``(operands, t, y) -> dy/dt``. event: the same arguments, returns a scalar; or None.
        method: RK4 or Tsit5. max_steps: maximum number of attempted steps.
        is_span: whether there are two times, and only the state at the second is returned.
        count: number of equal steps, if the times are static; else None.
        is_ordered: whether the times are known to be monotonic.
    """

    slope: Callable[..., Any]
    event: Callable[..., Any] | None
    method: RK4 | Tsit5
    max_steps: int
    is_span: bool
    count: int | None
    is_ordered: bool

    @property
    def tableau(self) -> Tableau:
        return CLASSICAL if isinstance(self.method, RK4) else TSITOURAS

    @property
    def is_adaptive(self) -> bool:
        return self.method.step is None

    @property
    def most_steps(self) -> int:
        """The maximum number of steps."""
        return self.max_steps if self.count is None else min(self.count, self.max_steps)

    @property
    def looks_back(self) -> bool:
        """Whether states within steps are needed."""
        return not self.is_span or self.event is not None


def step_count(module: Any, span: Any, step: float, dtype: Any) -> Any:
    """Return the number of equal steps of a span; a rounding error does not add a step."""
    count = module.abs(span) / step * (1 - 8 * float(jnp.finfo(dtype).eps))
    # Only spans that are not finite have more than fit into 32 bits.
    return module.nan_to_num(module.minimum(module.ceil(count), 2.0**30), nan=2.0**30)


class Run:
    """A problem with its arrays.

    Args:
        problem: the problem.
        times: a vector of two or more. operands: additional arguments of its functions.

    Attributes:
        problem, times: as given. start, end: the first time and the last.
        direction: 1, or -1 for back in time.
        number: of equal steps. dt: their signed length.
    """

    def __init__(self, problem: Problem, times: Any, operands: Any) -> None:
        self.problem, self.times, self._operands = problem, times, operands
        self.start, self.end = times[0], times[-1]
        dtype = aval_of(times).dtype
        self.direction = astype(where(self.end < self.start, -1.0, 1.0), dtype)
        if problem.method.step is not None:
            self.number = problem.count
            if self.number is None:
                span = stop_gradient(self.end - self.start)
                count = step_count(jnp, span, problem.method.step, dtype)
                self.number = astype(count, np.int32)
            least_one = jnp.maximum(self.number, 1)
            self.dt = (self.end - self.start) / astype(least_one, dtype)

    def slope(self, t: Any, y: Any) -> Any:
        """The derivative of the state."""
        return self.problem.slope(self._operands, t, y)

    def event(self, t: Any, y: Any) -> Any:
        """The event's value; there must be one."""
        assert self.problem.event is not None
        return self.problem.event(self._operands, t, y)

    def goes_on(self, state: State, target: Any) -> Any:
        """Whether a solve has not reached a time yet, and may step."""
        if self.problem.is_adaptive or not self.problem.is_span:
            is_before = self.direction * (target - state.here.t) > 0
        else:
            is_before = state.steps < self.number
        going = is_before & (state.steps < self.problem.max_steps)
        if self.problem.is_adaptive or self.problem.event is not None:
            going = going & (state.status == 0)
        return going


def first_state(run: Run, y0: Any) -> State:
    """Before the first step."""
    problem = run.problem
    here = TimedState(run.start, y0)
    first = run.slope(run.start, y0) if problem.tableau.reuses_last else None
    length = log_error = None
    if problem.is_adaptive:
        method, dtype = problem.method, aval_of(run.times).dtype
        assert isinstance(method, Tsit5)
        if method.first_step is None:
            start, y, k = tree_map(stop_gradient, (run.start, y0, first))

            def along(passed: Any, y: Any) -> Any:
                # As if time went forwards.
                at = start + run.direction * passed
                return _scaled(run.slope(at, y), run.direction)

            k, zero = _scaled(k, run.direction), jnp.zeros((), dtype)
            length = first_step(along, zero, y, k, 4, method.rtol, method.atol)
            length = stop_gradient(length)
        else:
            length = jnp.asarray(method.first_step)
        length, log_error = astype(length, dtype), jnp.zeros((), dtype) + 2 * math.log(_LEAST_ERROR)
    return State(
        here,
        here if problem.looks_back else None,
        first,
        length,
        log_error,
        None if problem.event is None else run.event(run.start, y0),
        jnp.int32(0),
        jnp.int32(0),
    )


def _scaled(tree: Any, factor: Any) -> Any:
    return tree_map(lambda x: x * astype(factor, aval_of(x).dtype), tree)


def step(run: Run, state: State) -> State:
    """A step, which is taken if its error is tolerated."""
    problem = run.problem
    t, y = state.here
    steps = state.steps + 1
    if problem.is_adaptive:
        remaining = run.direction * (run.end - t)
        is_last = state.length >= remaining
        dt = run.direction * where(is_last, remaining, state.length)
    else:
        is_last, dt = steps >= run.number, run.dt
    first = run.slope(t, y) if state.slope is None else state.slope
    new_y, slopes = take_step(problem.tableau, run.slope, t, y, first, dt)
    next_t = t + dt if problem.is_adaptive else run.start + astype(steps, dt.dtype) * dt
    new = TimedState(where(is_last, run.end, next_t), new_y)
    last_slope = slopes[-1] if problem.tableau.reuses_last else None
    value = None if problem.event is None else run.event(*new)
    status = state.status
    taken = None
    length, log_error = state.length, state.log_error
    if problem.is_adaptive:
        taken, length, log_error = _controlled(problem, dt, slopes, y, new_y, log_error)
        # A step that does not move time is too short, and one that is nan moves nothing.
        is_stuck = ~taken & ~(run.direction * (t + run.direction * length - t) > 0)
        status = where(is_stuck, np.int32(Status.FAILED), status)
    if value is not None:
        # A value of 0 is an event unless the solve starts there.
        crosses = (state.event != 0) & (jnp.sign(value) * jnp.sign(state.event) <= 0)
        is_lost = jnp.isnan(value)
        if taken is not None:
            crosses, is_lost = crosses & taken, is_lost & taken
        status = where(crosses, np.int32(Status.EVENT), status)
        status = where(is_lost, np.int32(Status.FAILED), status)

    def accepted(new: Any, old: Any) -> Any:
        return new if taken is None else tree_map(lambda a, b: where(taken, a, b), new, old)

    before = None if state.before is None else accepted(state.here, state.before)
    return State(
        accepted(new, state.here),
        before,
        accepted(last_slope, state.slope),
        length,
        log_error,
        accepted(value, state.event),
        status,
        steps,
    )


def _controlled(
    problem: Problem, dt: Any, slopes: Any, y: Any, new_y: Any, log_error: Any
) -> tuple[Any, Any, Any]:
    """Whether a step is taken, the length of the next, and the logarithm of the error."""
    method = problem.method
    assert isinstance(method, Tsit5)
    dt, slopes, y, new_y = tree_map(stop_gradient, (dt, slopes, y, new_y))
    error = error_of(problem.tableau, dt, slopes)
    square = astype(mean_square_ratio(error, method.rtol, method.atol, y, new_y), dt.dtype)
    taken = square <= 1
    # An error that is not finite shortens the step as far as one step may.
    new_log = jnp.log(where(square < 1e30, square, 1e30))
    by_this = math.log(_MARGIN) - 0.5 * _ALPHA * new_log
    exponent = where(taken, by_this + 0.5 * _BETA * log_error, by_this)
    factor = jnp.clip(jnp.exp(exponent), _SHRINK, where(taken, _GROW, 1.0))
    least = 2 * math.log(_LEAST_ERROR)
    new_log = where(taken, jnp.maximum(new_log, least), log_error)
    return taken, jnp.abs(dt) * factor, new_log
