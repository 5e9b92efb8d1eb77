"""A step along a direction that satisfies the strong Wolfe conditions.

Tests: tests/scipy_surface/test_scipy_iterations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.api.derivatives import value_and_grad
from gpuflow.core.aval import aval_of
from gpuflow.numpy.creation import astype
from gpuflow.numpy.exact_products import exact_dot
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.linalg.algebra import real_dtype

# Required decrease of the value and of the slope, as fractions of the slope at the start.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Trial points are at least that fraction of the interval away from its ends.
_CUBIC_MARGIN, _QUADRATIC_MARGIN = 0.2, 0.1
_MAX_ZOOMS = 30
_FLAT, _TOO_MANY = 1, 3


class Point(NamedTuple):
    """A trial step: its length, and the value and slope of the function there."""

    length: Any
    value: Any
    slope: Any


class LineSearch(NamedTuple):
    """Result of ``line_search``.

    Args:
        step: the length. value, gradient: of the function there.
        failed: whether the conditions do not hold. status: 0; 1: no interval was left; 3: too many
            steps without an interval.
        count: how often the function was evaluated.
    """

    step: Any
    value: Any
    gradient: Any
    failed: Any
    status: Any
    count: Any


class _State(NamedTuple):
    """The interval from ``low``, the best point so far, to ``high``, which is on either side.

    While there is no bracket, ``high`` is infinitely far. ``last`` is the point that left the
    interval last. ``gradient`` is that at ``low``, or at the accepted point.
    """

    trial: Any
    low: Point
    high: Point
    last: Point
    gradient: Any
    done: Any
    steps: Any
    zooms: Any


def line_search(
    function: Callable[[Any], Any],
    x: Any,
    direction: Any,
    value: Any,
    gradient: Any,
    first: Any,
    most: int,
) -> LineSearch:
    """Line search: each iteration of one loop evaluates the function once.

    Args:
        function: from a vector to a number.
        x, direction: vectors.
        value, gradient: of the function at ``x``.
        first: the first length to try.
        most: how many lengths to try until an interval is found.

    Source: Nocedal and Wright, Numerical Optimization (2006), algorithms 3.5 and 3.6.
    """
    dtype = real_dtype(aval_of(x).dtype)
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    start = Point(zero, astype(value, dtype), _slope(gradient, direction, dtype))
    evaluate = value_and_grad(function)

    def goes_on(state: _State) -> Any:
        bracketed = jnp.isfinite(state.high.length)
        under_limit = jnp.where(bracketed, state.zooms < _MAX_ZOOMS, state.steps < most)
        return ~state.done & under_limit & (~bracketed | ~_is_narrow(state))

    def step(state: _State) -> _State:
        length = state.trial
        trial_value, slopes = evaluate(x + astype(length, aval_of(x).dtype) * direction)
        here = Point(length, astype(trial_value, dtype), _slope(slopes, direction, dtype))
        bracketed = jnp.isfinite(state.high.length)
        # nan does not count as a decrease.
        enough = here.value <= start.value + _DECREASE * length * start.slope
        better = (here.value < state.low.value) | (~bracketed & (state.steps == 0))
        shrinks = ~(enough & better)
        flat = ~shrinks & (jnp.abs(here.slope) <= -_CURVATURE * start.slope)
        # The slope decides whether the minimum is between the new point and the old low end.
        overshoots = ~shrinks & (here.slope * (state.high.length - state.low.length) >= 0)
        low = _select(shrinks, state.low, here)
        high = _select(shrinks, here, _select(overshoots, state.low, state.high))
        last = _select(shrinks | overshoots, state.high, state.low)
        low_gradient = jnp.where(shrinks, state.gradient, astype(slopes, aval_of(x).dtype))
        has_bracket = jnp.isfinite(high.length)
        trial = jnp.where(has_bracket, _between(low, high, last), 2 * length)
        return _State(
            trial,
            low,
            high,
            last,
            low_gradient,
            flat,
            state.steps + 1,
            state.zooms + jnp.where(bracketed, np.int32(1), np.int32(0)),
        )

    none = Point(one * np.inf, zero, zero)
    state = _State(
        astype(first, dtype),
        start,
        none,
        none,
        gradient,
        jnp.asarray(False),
        jnp.int32(0),
        jnp.int32(0),
    )
    end = lax.while_loop(goes_on, step, state)
    bracketed = jnp.isfinite(end.high.length)
    status = jnp.where(end.done, 0, jnp.where(bracketed, _FLAT, _TOO_MANY))
    return LineSearch(end.low.length, end.low.value, end.gradient, ~end.done, status, end.steps)


def _slope(gradient: Any, direction: Any, dtype: Any) -> Any:
    """Gradients of complex vectors are conjugates of the direction of steepest ascent."""
    return astype(jnp.real(exact_dot(gradient, direction)), dtype)


def _select(condition: Any, first: Point, second: Point) -> Point:
    return Point(*[where(condition, a, b) for a, b in zip(first, second, strict=True)])


def _is_narrow(state: _State) -> Any:
    """Whether rounding leaves nothing to find between the ends."""
    eps = float(jnp.finfo(aval_of(state.trial).dtype).eps)
    width = jnp.abs(state.high.length - state.low.length)
    return width <= eps * jnp.maximum(jnp.abs(state.low.length), jnp.abs(state.high.length))


def _between(low: Point, high: Point, last: Point) -> Any:
    """The minimum of a cubic through three points, else of a parabola through two, else the middle.

    All have the slope at ``low``.
    """
    width = high.length - low.length
    middle = low.length + width / 2
    rise = high.value - low.value - low.slope * width
    parabola = low.length - low.slope * width * width / (2 * rise)
    further = last.length - low.length
    other = last.value - low.value - low.slope * further
    scale = (width * further) ** 2 * (width - further)
    third = (further**2 * rise - width**2 * other) / scale
    second = (width**3 * other - further**3 * rise) / scale
    root = jnp.sqrt(second * second - 3 * third * low.slope)
    cubic = low.length + (root - second) / (3 * third)
    # Comparisons with nan are false, so an undefined minimum is not taken.
    by_two = where(_is_within(parabola, low, high, _QUADRATIC_MARGIN), parabola, middle)
    return where(_is_within(cubic, low, high, _CUBIC_MARGIN), cubic, by_two)


def _is_within(x: Any, low: Point, high: Point, margin: float) -> Any:
    fraction = (x - low.length) / (high.length - low.length)
    return (fraction > margin) & (fraction < 1 - margin)
