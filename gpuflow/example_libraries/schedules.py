"""Step sizes as functions of the number of the step, for optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuflow import numpy as jnp
from gpuflow.base.errors import check
from gpuflow.core.aval import is_value

Schedule = Callable[[Any], Any]


def make_schedule(scalar_or_schedule: float | Schedule) -> Schedule:
    """Return a schedule unchanged, or a constant schedule for a scalar.

    Raises:
        TypeError: if it is neither.
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    check(
        is_value(scalar_or_schedule) and jnp.ndim(scalar_or_schedule) == 0,
        lambda: (
            "[make_schedule] a step size must be a scalar or a function of the step's number; got "
            f"{type(scalar_or_schedule).__name__}. Fix: 1e-3, or optimizers.constant(1e-3)."
        ),
        TypeError,
    )
    return constant(scalar_or_schedule)


def constant(step_size: Any) -> Schedule:
    """Return a schedule that is always ``step_size``."""
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Return the schedule ``step_size * decay_rate ** (i / decay_steps)``."""
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(
    step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False
) -> Schedule:
    """Return the schedule ``step_size / (1 + decay_rate * i / decay_steps)``.

    Args:
        step_size: step size at step 0.
        decay_steps: number of steps per unit of time.
        decay_rate: rate of decay.
        staircase: whether time is rounded down to an integer.
    """

    def schedule(i: Any) -> Any:
        time = jnp.floor(i / decay_steps) if staircase else i / decay_steps
        return step_size / (1 + decay_rate * time)

    return schedule


def polynomial_decay(
    step_size: Any, decay_steps: Any, final_step_size: Any, power: float = 1.0
) -> Schedule:
    """Return a polynomial schedule from ``step_size`` to ``final_step_size``, then constant."""

    def schedule(i: Any) -> Any:
        remaining = 1 - jnp.minimum(i, decay_steps) / decay_steps
        return remaining**power * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """Return a schedule that is ``values[k]`` after the k-th boundary.

    Raises:
        ValueError: if the number of values is not the number of boundaries plus one.
    """
    edges, levels = jnp.array(boundaries), jnp.array(values)
    check(
        edges.ndim == levels.ndim == 1 and len(edges) == len(levels) - 1,
        lambda: (
            "[piecewise_constant] boundaries and values must be sequences, with one value more; "
            f"got shapes {edges.shape} and {levels.shape}. Fix: "
            "piecewise_constant([100], [1e-2, 1e-3])."
        ),
        ValueError,
    )
    return lambda i: levels[jnp.sum(i > edges)]
