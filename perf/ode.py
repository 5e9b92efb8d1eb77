"""Lorenz's system and two solvers in JAX's names: bench_loops.py, gpu_loop_rows.py.

The state is a tuple of scalars; ensembles are vmaps of the solvers. References in NumPy stand with
the rows and share nothing with this file but the system's parameters.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

SIGMA, BETA = 10.0, 8.0 / 3.0
STEP = 0.01  # of RK4
# Below 13.9 a lane spirals into one fixed point, so that a result can be compared after any time.
RHO = (5.0, 13.0)
# Times that adaptive lanes end at, log-uniform: 10 to 1000 steps.
TIMES = (1.0, 220.0)
TOLERANCE = 1e-5  # relative and absolute, of each adaptive step
MAX_STEPS = 5000  # no lane needs as many

# Tsitouras 2011, table 1: the stages' coefficients, the solution's in the last row, which is also
# the first stage of the next step; and how the solution differs from the one of order 4.
_STAGES = (
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (
        5.86145544294642,
        -12.92096931784711,
        8.159367898576159,
        -0.071584973281401,
        -0.028269050394068383,
    ),
    (
        0.09646076681806523,
        0.01,
        0.4798896504144996,
        1.379008574103742,
        -3.290069515436081,
        2.324710524099774,
    ),
)
_ERROR = (
    -0.00178001105222577714,
    -0.0008164344596567469,
    0.007880878010261995,
    -0.1447110071732629,
    0.5823571654525552,
    -0.45808210592918697,
    1 / 66,
)


def lorenz(state: Any, parameters: Any) -> Any:
    """The slope at (x, y, z) for (sigma, rho, beta)."""
    (x, y, z), (sigma, rho, beta) = state, parameters
    return sigma * (y - x), x * (rho - z) - y, x * y - beta * z


def _moved(state: Any, h: Any, coefficients: Any, slopes: Any) -> Any:
    """The state plus h times the sum of slopes with their coefficients."""
    parts = zip(*slopes, strict=True)  # by component
    sums = [
        sum(a * k for a, k in zip(coefficients[1:], part[1:], strict=True))
        + coefficients[0] * part[0]
        for part in parts
    ]
    return tuple(x + h * total for x, total in zip(state, sums, strict=True))


def rk4_step(state: Any, parameters: Any) -> Any:
    """One step of the classical method, of length STEP."""
    first = lorenz(state, parameters)
    second = lorenz(_moved(state, STEP, (0.5,), (first,)), parameters)
    third = lorenz(_moved(state, STEP, (0.5,), (second,)), parameters)
    fourth = lorenz(_moved(state, STEP, (1.0,), (third,)), parameters)
    return _moved(state, STEP / 6, (1.0, 2.0, 2.0, 1.0), (first, second, third, fourth))


def rk4(jax: Any, steps: int, by_scan: bool = False) -> Callable[..., Any]:
    """From a start and parameters, scalars, to the state after so many steps."""

    def solve(x: Any, y: Any, z: Any, sigma: Any, rho: Any, beta: Any) -> Any:
        def step(state: Any) -> Any:
            return rk4_step(state, (sigma, rho, beta))

        start = (x, y, z)
        if by_scan:
            return jax.lax.scan(lambda state, _: (step(state), None), start, None, length=steps)[0]
        return jax.lax.fori_loop(0, steps, lambda _, state: step(state), start)

    return solve


def tsit5(jax: Any, state: Any, parameters: Any, end: Any) -> Any:
    """The state at the time `end` and the number of steps tried, by steps of adapted length.

    The algorithm of gpuflow.experimental.ensemble with its controller, as one writes it in JAX.
    """
    jnp = jax.numpy

    def unfinished(carry: Any) -> Any:
        t, _, _, _, _, count = carry
        return (t < end) & (count < MAX_STEPS)

    def step(carry: Any) -> Any:
        t, h, previous, state, slope, count = carry
        h = jnp.minimum(h, end - t)
        slopes = [slope]
        for coefficients in _STAGES:
            moved = _moved(state, h, coefficients, slopes)
            slopes.append(lorenz(moved, parameters))
        errors = _moved((0.0, 0.0, 0.0), h, _ERROR, slopes)
        total = 0.0
        for x, new, error in zip(state, moved, errors, strict=True):
            size = TOLERANCE + TOLERANCE * jnp.maximum(abs(x), abs(new))
            total = total + (error / size) ** 2
        norm = jnp.sqrt(total / 3)
        fits = norm <= 1
        state = tuple(jnp.where(fits, new, x) for x, new in zip(state, moved, strict=True))
        slope = tuple(jnp.where(fits, new, k) for k, new in zip(slope, slopes[-1], strict=True))
        t = jnp.where(fits, t + h, t)
        # Proportional and integral control, as in DOPRI5 of Hairer, Norsett and Wanner.
        factor = 0.9 * jnp.maximum(norm, 1e-10) ** -0.17 * jnp.where(fits, previous**0.04, 1.0)
        h = h * jnp.clip(factor, 0.2, jnp.where(fits, 10.0, 1.0))
        return t, h, jnp.where(fits, jnp.maximum(norm, 1e-4), previous), state, slope, count + 1

    zero = jnp.zeros_like(end)
    start = (zero, zero + 0.01, zero + 1e-4, state, lorenz(state, parameters), jnp.int32(0))
    _, _, _, state, _, count = jax.lax.while_loop(unfinished, step, start)
    return state, count


# --- ensembles ---------------------------------------------------------------------------------


def ensemble(generator: np.random.Generator, lanes: int) -> tuple[np.ndarray, ...]:
    """Starts x, y, z and a parameter rho for each lane, in float32."""
    starts = 1 + 0.1 * generator.standard_normal((3, lanes), dtype=np.float32)
    return (*starts, generator.uniform(*RHO, lanes).astype(np.float32))


def ends(generator: np.random.Generator, lanes: int, most: float = 1.0) -> np.ndarray:
    """A time for each lane to end at; ``most`` is the share of the longest one."""
    low, high = np.log(TIMES[0]), np.log(TIMES[1] * most)
    return np.exp(generator.uniform(low, high, lanes)).astype(np.float32)


def fixed_ensemble(jax: Any, steps: int, by_scan: bool = False) -> Callable[..., Any]:
    """States after so many steps of RK4, of arrays x, y, z, rho."""
    solve = rk4(jax, steps, by_scan)
    return jax.vmap(lambda x, y, z, rho: solve(x, y, z, SIGMA, rho, BETA))


def adaptive_ensemble(jax: Any) -> Callable[..., Any]:
    """States and step counts by Tsitouras' method, of arrays x, y, z, rho and last times.

    What users have: of gpuflow its solver, of JAX the loop that they write.
    """
    if jax.__name__ == "gpuflow":
        return jax.vmap(_by_solver(importlib.import_module("gpuflow.experimental.ensemble")))
    return jax.vmap(lambda x, y, z, rho, end: tsit5(jax, (x, y, z), (SIGMA, rho, BETA), end))


def _by_solver(ensemble: Any) -> Callable[..., Any]:
    method = ensemble.Tsit5(rtol=TOLERANCE, atol=TOLERANCE, first_step=0.01)

    def slope(t: Any, state: Any, rho: Any) -> Any:
        del t
        return lorenz(state, (SIGMA, rho, BETA))

    def solve(x: Any, y: Any, z: Any, rho: Any, end: Any) -> Any:
        out = ensemble.solve(slope, (x, y, z), (0.0, end), rho, method=method, max_steps=MAX_STEPS)
        return out.ys, out.steps

    return solve
