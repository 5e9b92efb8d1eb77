"""Programs of bench_compiler.py that are short to run and long to build: their first calls.

Each is a function of a JAX-like and a NumPy-like module, and gives a function of arrays, and those.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from workload import ProcessWorkload

Program = tuple[Callable[..., Any], tuple[Any, ...]]
LIMIT = 1.5


def _normal(jnp: Any, *shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def _lax(jax: Any) -> Any:
    return importlib.import_module(f"{jax.__name__}.lax")


def newton(jax: Any, jnp: Any) -> Program:
    """20 steps of Newton's method for 1000 roots, with a derivative by grad."""

    def function(x: Any) -> Any:
        return x**3 - 2 * x - 5 + jnp.sin(x)

    def step(_: Any, x: Any) -> Any:
        return x - function(x) / jax.vmap(jax.grad(function))(x)

    return lambda x: _lax(jax).fori_loop(0, 20, step, x), (_normal(jnp, 1000) + 2,)


def physics_informed(jax: Any, jnp: Any) -> Program:
    """Loss and gradient of Burgers' equation at 256 points: second derivatives of a network."""
    sizes = (2, 32, 32, 32, 1)
    layers = [
        (_normal(jnp, rows, columns) * 0.3, jnp.zeros(columns, "float32"))
        for rows, columns in itertools.pairwise(sizes)
    ]

    def solution(layers: Any, point: Any) -> Any:
        hidden = point
        for weights, bias in layers[:-1]:
            hidden = jnp.tanh(hidden @ weights + bias)
        weights, bias = layers[-1]
        return (hidden @ weights + bias)[0]

    def residual(layers: Any, point: Any) -> Any:
        first = jax.grad(solution, 1)(layers, point)
        second = jax.hessian(solution, 1)(layers, point)
        return first[1] + solution(layers, point) * first[0] - 0.01 * second[0, 0]

    def loss(layers: Any, points: Any) -> Any:
        return jnp.mean(jax.vmap(lambda point: residual(layers, point))(points) ** 2)

    points = jnp.asarray(np.random.default_rng(1).random((256, 2), dtype=np.float32))
    return jax.value_and_grad(loss), (layers, points)


def sinkhorn(jax: Any, jnp: Any) -> Program:
    """50 steps of optimal transport between 200 points and 200 others."""
    weight, width = float(np.log(1 / 200)), 0.05

    def step(carry: Any, _: Any) -> Any:
        cost, _, g = carry
        f = width * (weight - jax.nn.logsumexp((g[None] - cost) / width, axis=1))
        g = width * (weight - jax.nn.logsumexp((f[:, None] - cost) / width, axis=0))
        return (cost, f, g), None

    def run(cost: Any) -> Any:
        start = (cost, jnp.zeros(200, "float32"), jnp.zeros(200, "float32"))
        return _lax(jax).scan(step, start, None, length=50)[0]

    return run, (jnp.abs(_normal(jnp, 200, 200)),)


def k_means(jax: Any, jnp: Any) -> Program:
    """20 steps of k-means: 2000 points, 10 centers."""

    def run(points: Any) -> Any:
        def step(centers: Any, _: Any) -> Any:
            distances = ((points[:, None] - centers[None]) ** 2).sum(-1)
            members = jax.nn.one_hot(distances.argmin(1), 10)
            centers = (members.T @ points) / (members.sum(0)[:, None] + 1e-6)
            return centers, distances.min(1).sum()

        return _lax(jax).scan(step, points[:10], None, length=20)

    return run, (_normal(jnp, 2000, 8),)


def heat_equation(jax: Any, jnp: Any) -> Program:
    """20 spectral steps of the heat equation on a grid of 64 x 64."""

    def run(field: Any) -> Any:
        numbers = jnp.fft.fftfreq(64)
        decay = jnp.exp(-0.1 * (numbers[:, None] ** 2 + numbers[None] ** 2))

        def step(field: Any, _: Any) -> Any:
            return jnp.fft.ifft2(jnp.fft.fft2(field) * decay).real, None

        return _lax(jax).scan(step, field, None, length=20)[0]

    return run, (_normal(jnp, 64, 64),)


def hundred_functions(jax: Any, jnp: Any) -> Program:
    """A chain of 100 sines and hyperbolic tangents."""

    def run(x: Any) -> Any:
        for k in range(100):
            x = jnp.sin(x) * 1.01 + 0.1 * k if k % 3 else jnp.tanh(x) - x * 0.5
        return x

    return run, (jnp.ones(1000, "float32"),)


def _first_call(program: Callable[[Any, Any], Program]) -> Callable[[Any, Any], float]:
    """Seconds of the first call, its arguments being there."""

    def measure(jax: Any, jnp: Any) -> float:
        function, arguments = program(jax, jnp)
        jax.block_until_ready(arguments)
        start = time.perf_counter()
        jax.block_until_ready(jax.jit(function)(*arguments))
        return time.perf_counter() - start

    return measure


NAMES = {
    "Newton's method": newton,
    "physics-informed network": physics_informed,
    "optimal transport": sinkhorn,
    "k-means": k_means,
    "spectral heat equation": heat_equation,
    "100 sines and tangents": hundred_functions,
}
BUILD_ROWS = [
    ProcessWorkload(f"cold build, {name}", _first_call(program), {"jax": LIMIT}, ("jax",))
    for name, program in NAMES.items()
]
