"""What the surface of gpuflow has to show: NumPy functions, linear algebra, a stax network.

Run it with compare.py. Every workload is written once against a JAX-like and a NumPy-like module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workload import Workload

_FLAT = 1 << 20


def _floats(jnp: Any, *shape: int) -> Any:
    generator = np.random.default_rng(len(shape))
    return jnp.asarray(generator.standard_normal(shape, dtype=np.float32))


def _indices(jnp: Any, high: int) -> Any:
    generator = np.random.default_rng(high)
    return jnp.asarray(generator.integers(0, high, _FLAT, dtype=np.int32))


def make_cumsum(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Running sums of 1M float32."""
    x, cumsum = _floats(jnp, _FLAT), jax.jit(jnp.cumsum)
    return lambda: cumsum(x)


def make_scatter_add(jax: Any, jnp: Any) -> Callable[[], Any]:
    """1M float32 added to 1000 places."""
    values, places = _floats(jnp, _FLAT), _indices(jnp, 1000)
    add = jax.jit(lambda places, values: jnp.zeros(1000).at[places].add(values))
    return lambda: add(places, values)


def make_gather(jax: Any, jnp: Any) -> Callable[[], Any]:
    """1M float32 taken from 1M places."""
    values, places = _floats(jnp, _FLAT), _indices(jnp, _FLAT)
    take = jax.jit(lambda values, places: values[places])
    return lambda: take(values, places)


def make_fft(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The Fourier transform of 2^16 complex64."""
    x = _floats(jnp, 1 << 16) + 1j * _floats(jnp, 1 << 16, 1)[:, 0]
    fft = jax.jit(jnp.fft.fft)
    return lambda: fft(x)


def _positive(jnp: Any) -> Any:
    a = np.asarray(_floats(jnp, 256, 256))
    return jnp.asarray(a @ a.T / 256 + np.eye(256, dtype=np.float32))


def make_cholesky(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The Cholesky factor of a matrix 256 x 256."""
    a, cholesky = _positive(jnp), jax.jit(jnp.linalg.cholesky)
    return lambda: cholesky(a)


def make_solve(jax: Any, jnp: Any) -> Callable[[], Any]:
    """A linear system of 256 equations with 256 right-hand sides."""
    a, b, solve = _positive(jnp), _floats(jnp, 256, 256), jax.jit(jnp.linalg.solve)
    return lambda: solve(a, b)


def make_spectral_radius(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The largest absolute eigenvalue of each of 128 matrices 3 x 3."""
    matrices = _floats(jnp, 128, 3, 3)
    radius = jax.jit(lambda a: jnp.abs(jnp.linalg.eigvals(a)).max(axis=-1))
    return lambda: radius(matrices)


def make_stax_step(jax: Any, jnp: Any) -> Callable[[], Any]:
    """One Adam step of the network of docs/examples/spectral_radius.py."""
    stax = importlib.import_module(f"{jax.__name__}.example_libraries.stax")
    optimizers = importlib.import_module(f"{jax.__name__}.example_libraries.optimizers")
    weights = jax.nn.initializers.glorot_normal(dtype=jnp.complex64)
    bias = jax.nn.initializers.normal(dtype=jnp.complex64)

    def dense(size: int) -> Any:
        return stax.Dense(size, weights, bias)

    layers = [stax.Flatten]
    for _ in range(3):
        layers += [dense(64), stax.Relu]
    init, apply = stax.serial(*layers, dense(1))
    start, update, params_of = optimizers.adam(3e-4)
    _, params = init(jax.random.PRNGKey(0), (-1, 2, 2))
    state = start(params)
    matrices = (_floats(jnp, 64, 2, 2) + 1j * _floats(jnp, 64, 2, 2, 1)[..., 0]) / 1.4
    radii = jnp.abs(jnp.linalg.eigvals(matrices)).max(axis=-1)

    def loss(params: Any) -> Any:
        return jnp.mean(jnp.abs(apply(params, matrices)[:, 0] - radii) ** 2)

    @jax.jit
    def step(state: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params_of(state))
        grads = jax.tree_util.tree_map(jnp.conj, grads)
        return value, update(0, grads, state)

    return lambda: step(state)[0]


def make_indexing(jax: Any, jnp: Any) -> Callable[[], Any]:
    """100 slices x[3:10] of a small array, op by op."""
    x = _floats(jnp, 20)

    def slices() -> Any:
        for _ in range(99):
            x[3:10]
        return x[3:10]

    return slices


def make_distances(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Distances between 2048 points in space."""
    points = _floats(jnp, 2048, 3)
    distances = jax.jit(lambda p: jnp.sqrt(((p[:, None] - p[None]) ** 2).sum(-1)))
    return lambda: distances(points)


def make_small_products(jax: Any, jnp: Any) -> Callable[[], Any]:
    """10,000 products of matrices 3 x 3."""
    a, b = _floats(jnp, 10000, 3, 3), _floats(jnp, 10000, 3, 3, 1)[..., 0]
    product = jax.jit(jnp.matmul)
    return lambda: product(a, b)


WORKLOADS = [
    Workload("cumsum of 1M", make_cumsum, target=0.3),
    Workload("scatter-add of 1M into 1000", make_scatter_add, target=0.8),
    Workload("gather of 1M from 1M", make_gather, target=1.0),
    Workload("FFT of 2^16", make_fft, target=1.0),
    Workload("Cholesky factor, 256 x 256", make_cholesky, target=1.0),
    Workload("solve, 256 x 256 with 256 right-hand sides", make_solve, target=1.0),
    Workload("spectral radius of 128 matrices 3 x 3", make_spectral_radius, target=0.4),
    Workload("stax: Adam step of the spectral-radius network", make_stax_step, target=0.5),
    Workload("100 eager slices x[3:10]", make_indexing, target=0.2),
    Workload("distances of 2048 points in space", make_distances, target=1.0),
    Workload("10,000 products of matrices 3 x 3", make_small_products, target=1.0),
]
CHECKS: list[Any] = []
