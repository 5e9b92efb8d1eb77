"""Rows of the GPU acceptance whose loops belong into kernels: lanes that each run a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ode
from gpu_rows import F32, JAX, Goal, Row

_FEW = 4096  # lanes, or steps, below which a size is one for the simulator


def _lanes(rng: np.random.Generator, n: int) -> list[Any]:
    return [(array, F32) for array in ode.ensemble(rng, n)]


def _lanes_with_ends(rng: np.random.Generator, n: int) -> list[Any]:
    """Of 10 to 1000 steps, or of a few more than 10 in the simulator."""
    return [*_lanes(rng, n), (ode.ends(rng, n, 1.0 if n >= _FEW else 2 / ode.TIMES[1]), F32)]


def _fixed(jax: Any) -> Callable[..., Any]:
    def states(x: Any, y: Any, z: Any, rho: Any) -> Any:
        return ode.fixed_ensemble(jax, 100 if x.shape[0] >= _FEW else 3)(x, y, z, rho)

    return states


def _rates(rng: np.random.Generator, n: int) -> list[Any]:
    """Where the logistic map forgets how it began, so that frameworks can be compared."""
    return [(rng.uniform(3.48, 3.52, n).astype(np.float32), F32), (np.full((), 0.4, F32), F32)]


def _logistic(jax: Any) -> Callable[..., Any]:
    def step(x: Any, rate: Any) -> Any:
        return rate * x * (1.0 - x), None

    return lambda rates, start: jax.lax.scan(step, start, rates)[0]


def loop_rows() -> list[Row]:
    """All of them."""
    return [
        Row(
            "Lorenz by RK4, 10^6 lanes", _lanes, _fixed, 1_000_000, 64,
            goal=Goal(times=1 / 20, rivals=(JAX,)), tolerance=1e-3,
        ),
        Row(
            "Lorenz by adaptive Tsit5, 10^6 lanes", _lanes_with_ends, ode.adaptive_ensemble,
            1_000_000, 64, goal=Goal(times=1 / 100, rivals=(JAX,)), tolerance=1e-3,
        ),
        Row(
            "scan of 100k scalar steps", _rates, _logistic, 100_000, 64,
            goal=Goal(times=1 / 20, rivals=(JAX,)), tolerance=1e-3,
        ),
    ]  # fmt: skip
