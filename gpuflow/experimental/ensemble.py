"""Ordinary differential equations for ensembles: solvers that run as loops inside kernels.

``solve`` solves one system. Its steps are one loop over a small state. Under ``vmap`` each batch
element runs the loop independently, with its own step sizes and number of steps. See
docs/design/0030-ensembles.md.

Tests: tests/experimental/test_ensemble.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.control.linear_transpose import closure_convert
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.trace import Tracer
from gpuflow.experimental.ensemble_programs import solve_problem
from gpuflow.experimental.ensemble_steps import RK4, Problem, Status, Tsit5, step_count
from gpuflow.numpy.creation import astype
from gpuflow.ops.linalg.algebra import real_dtype
from gpuflow.tree_util import tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten

__all__ = ["RK4", "Solution", "Status", "Tsit5", "solve"]


class Solution(NamedTuple):
    """The result of ``solve``, a pytree of arrays.

    Attributes:
        ts: the times of ``ys``: a float for a span, f[n] for n times. Times after an event are the
            time of the event.
        ys: a pytree like ``y0``, with a leading time axis for n times. After an event, the state at
            the event; nan at times that were not reached.
        status: i32, a ``Status``.
        steps: i32, number of attempted steps, including rejected ones.
        event_time: a float; nan without an event.
    """

    ts: Any
    ys: Any
    status: Any
    steps: Any
    event_time: Any


def solve(
    f: Callable[..., Any],
    y0: Any,
    ts: Any,
    *args: Any,
    method: RK4 | Tsit5 | None = None,
    event: Callable[..., Any] | None = None,
    max_steps: int = 4096,
) -> Solution:
    """Solve ``dy/dt = f(t, y, *args)`` from the initial state ``y0``.

    Under ``vmap`` each batch element has its own steps; for small states (up to 128 elements) all
    of them are one loop inside a kernel. Call it in a jitted function: otherwise each call traces
    ``f``.

    Args:
        f: ``(t, y, *args) -> dy/dt``, a tree like ``y``.
        y0: the state at the first time: a float or complex array, or a pytree of them. Scalars and
            integers are converted to floats.
        ts: a tuple ``(t0, t1)`` of real scalars, for the state at ``t1`` alone. Or a vector of at
            least two times, starting at that of ``y0``, ascending or descending.
        args: arrays, or pytrees of them.
        method: ``Tsit5(rtol=, atol=)``, ``Tsit5(step=)`` or ``RK4(step=)``; None means ``Tsit5()``.
        event: ``(t, y, *args) -> real scalar``. The solver stops where its sign changes, which is
            detected at the ends of steps and located on the interpolant. A value of 0 at the first
            time is not an event.
        max_steps: maximum number of attempted steps; also the memory of reverse mode, in states.

    Returns:
        A ``Solution``. Its ``status`` reports whether the last time was reached; states that were
        not reached are nan.

        Derivatives are those of the method with its actual steps: step sizes chosen by the
        tolerances are constants. Forward mode runs the loop with tangents. Reverse mode repeats it
        as a scan of ``max_steps`` steps, which stores the state at each and recomputes slopes.
        Times after the first and the event's time have derivatives too.

    Raises:
        TypeError: if ``f`` or ``event`` returns another type, the method is not a method, or
            ``args`` are not arrays.
        ValueError: if times are not a pair or vector or are not monotonic, or ``max_steps``,
            tolerances or steps are not positive.

    Source: see ``RK4`` and ``Tsit5``; the first step and the controller: Hairer, Nørsett and
        Wanner, Solving Ordinary Differential Equations I (1993), II.4.
    """
    method = Tsit5() if method is None else method
    _check_method(method)
    check(
        isinstance(max_steps, int | np.integer) and max_steps > 0,
        lambda: f"[solve] max_steps must be a positive int; got {max_steps!r}. Fix: 4096.",
        ValueError,
    )
    y0 = tree_map(_as_state, y0)
    structure = tree_structure(y0)
    check(
        structure.num_leaves > 0,
        lambda: f"[solve] y0 must have arrays; got {y0!r}. Fix: jnp.zeros(n).",
    )
    times, known_times, is_span = _times(ts, y0)
    count = None
    if known_times is not None and method.step is not None:
        span = known_times[-1] - known_times[0]
        count = int(step_count(np, span, method.step, known_times.dtype))
    leaves, args_structure = tree_flatten(args)
    leaves = [_as_argument(leaf) for leaf in leaves]

    def slope(t: Any, y: Any, *leaves: Any) -> Any:
        return _as_slope(f(t, y, *tree_unflatten(args_structure, leaves)), y)

    def event_value(t: Any, y: Any, *leaves: Any) -> Any:
        assert event is not None
        return _as_event(event(t, y, *tree_unflatten(args_structure, leaves)))

    # Closed-over values may have derivatives too.
    slope_of, slope_consts = closure_convert(slope, times[0], y0, *leaves)
    event_of, event_consts = None, []
    if event is not None:
        event_of, event_consts = closure_convert(event_value, times[0], y0, *leaves)

    def converted(function: Any, k: int) -> Callable[..., Any]:
        return lambda operands, t, y: function(t, y, *operands[0], *operands[k])

    problem = Problem(
        converted(slope_of, 1),
        None if event is None else converted(event_of, 2),
        method,
        int(max_steps),
        is_span,
        count,
        is_span or known_times is not None,
    )
    return Solution(*solve_problem(problem, y0, times, (leaves, slope_consts, event_consts)))


# --- arguments ---------------------------------------------------------------------------------


def _as_argument(leaf: Any) -> Any:
    check(
        is_value(leaf),
        lambda: (
            f"[solve] args must be arrays or numbers; got {type(leaf).__name__}. "
            "Fix: let f close over it."
        ),
    )
    return jnp.asarray(leaf)


def _check_method(method: Any) -> None:
    check(
        isinstance(method, RK4 | Tsit5),
        lambda: f"[solve] method must be a Tsit5 or an RK4; got {method!r}. Fix: Tsit5(rtol=1e-5).",
    )
    options = {"step": method.step}
    if isinstance(method, Tsit5):
        options |= {"first_step": method.first_step, "rtol": method.rtol, "atol": method.atol}
    for name, value in options.items():
        may_be_none = isinstance(method, Tsit5) and name in ("step", "first_step")
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        check(
            (value is None and may_be_none) or (is_number and 0 < value < math.inf),
            lambda name=name, value=value: (
                f"[solve] {name} of a method must be a positive number; got {value!r}. "
                f"Fix: {type(method).__name__}({name}=1e-3)."
            ),
            ValueError,
        )


def _as_state(leaf: Any) -> Any:
    check(
        is_value(leaf),
        lambda: f"[solve] y0 must be an array or a tree of them; got {leaf!r}. Fix: jnp.asarray.",
    )
    array = jnp.asarray(leaf)
    if dtypes.is_inexact(aval_of(array).dtype):
        return astype(array, aval_of(array).dtype)
    return astype(array, dtypes.canonicalize(float))


def _times(ts: Any, y0: Any) -> tuple[Any, Any, bool]:
    """A vector of times, the same as static values or None, and whether it is a span."""
    is_span = isinstance(ts, tuple)
    given = ts if is_span else (ts,)
    for time in given:
        check(
            is_value(time) or (not is_span and isinstance(time, list)),
            lambda time=time: (
                f"[solve] times must be real numbers; got {time!r}. Fix: (t0, t1), or jnp.linspace."
            ),
        )
    arrays = [jnp.asarray(time) for time in given]
    for array in arrays:
        check(
            not dtypes.is_complex(aval_of(array).dtype),
            lambda array=array: f"[solve] times must be real; got {aval_of(array)}. Fix: jnp.real.",
        )
    shapes = [aval_of(array).shape for array in arrays]
    fits = shapes == [(), ()] if is_span else len(shapes[0]) == 1 and shapes[0][0] >= 2
    check(
        fits,
        lambda: (
            "[solve] ts must be a tuple (t0, t1) of scalars, or a vector of two times or more; "
            "got "
            f"{'a tuple of shapes ' if is_span else 'shape '}{shapes if is_span else shapes[0]}. "
            "Fix: (t0, t1) for one state, jnp.linspace(t0, t1, n) for n of them."
        ),
        ValueError,
    )
    strong = [a for a in arrays if dtypes.is_inexact(aval_of(a).dtype) and not aval_of(a).weak_type]
    dtype = real_dtype(jnp.result_type(*[leaf.dtype for leaf in tree_leaves(y0)]))
    if strong:
        dtype = jnp.result_type(*[a.dtype for a in strong])
    arrays = [astype(array, dtype) for array in arrays]
    times = jnp.stack(arrays) if is_span else arrays[0]
    if any(isinstance(time, Tracer) for time in tree_leaves(given)):
        return times, None, is_span
    known = np.array([np.asarray(p) for p in given] if is_span else np.asarray(ts)).astype(dtype)
    steps = np.diff(known)
    check(
        not (np.any(steps > 0) and np.any(steps < 0)),
        lambda: f"[solve] times must ascend or descend; got {known}. Fix: jnp.sort(ts).",
        ValueError,
    )
    return times, known, is_span


def _as_slope(slope: Any, y: Any) -> Any:
    def leaf_of(k: Any, x: Any) -> Any:
        check(
            is_value(k) and aval_of(k).shape == aval_of(x).shape,
            lambda: (
                f"[solve] f must return an array of shape {aval_of(x).shape} for such a state; "
                f"got {aval_of(k) if is_value(k) else k!r}. Fix: reshape it."
            ),
        )
        check(
            dtypes.is_complex(aval_of(x).dtype) or not dtypes.is_complex(aval_of(k).dtype),
            lambda: (
                f"[solve] f must return reals for a real state; got {aval_of(k)}. "
                "Fix: a complex y0."
            ),
        )
        return astype(jnp.asarray(k), aval_of(x).dtype)

    check(
        tree_structure(slope) == tree_structure(y),
        lambda: (
            "[solve] f must return a tree like the state, "
            f"{tree_structure(y)}; got {tree_structure(slope)}. Fix: return one slope for each "
            "leaf."
        ),
    )
    return tree_map(leaf_of, slope, y)


def _as_event(value: Any) -> Any:
    check(
        is_value(value) and not aval_of(value).shape and dtypes.is_floating(aval_of(value).dtype),
        lambda: (
            "[solve] event must return a real scalar, whose sign changes; got "
            f"{aval_of(value) if is_value(value) else value!r}. Fix: for example y[0] - level."
        ),
    )
    return jnp.asarray(value)
