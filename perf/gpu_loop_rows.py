"""Rows of the GPU acceptance whose loops belong into kernels: lanes that each run a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ode
from gpu_rows import F32, JAX, NO_BLOCKS, Goal, Row

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


def _matrices(rng: np.random.Generator, n: int) -> list[Any]:
    return [(rng.uniform(0, 1, (n, 48, 48)).astype(np.float32), F32)]


def _largest(jax: Any) -> Callable[..., Any]:
    """The largest eigenvalue of each of many matrices, one after the other: power iteration."""
    jnp, lax = jax.numpy, jax.lax

    def one(m: Any) -> Any:
        def turn(_: Any, v: Any) -> Any:
            v = m @ v
            return v / jnp.abs(v).max()

        v = lax.fori_loop(0, 20, turn, jnp.ones(48, F32))
        return (m @ v).max()

    return lambda matrices: lax.map(one, matrices)


def _sequence(rng: np.random.Generator, n: int) -> list[Any]:
    weights = [(0.1 * rng.standard_normal((64, 64)).astype(np.float32), F32) for _ in range(2)]
    return [(rng.standard_normal((n, 16, 64)).astype(np.float32), F32), *weights]


def _network(jax: Any) -> Callable[..., Any]:
    """A recurrent network of 64 units over sequences, 16 of them."""

    def states(x: Any, into: Any, along: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = jax.numpy.tanh(x @ into + h @ along)
            return h, h.sum(1)

        return jax.lax.scan(step, jax.numpy.zeros((16, 64), F32), x)

    return states


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
        Row(
            "lax.map of 1000 power iterations, 48 x 48", _matrices, _largest, 1000, 3,
            goal=Goal(times=1 / 20, rivals=(JAX,)), without=(NO_BLOCKS,), tolerance=1e-3,
        ),
        Row(
            "recurrent network, 1000 steps of 16 x 64", _sequence, _network, 1000, 4,
            goal=Goal(times=1, rivals=(JAX,)), without=(NO_BLOCKS,), tolerance=1e-3,
        ),
    ]  # fmt: skip
