"""What the language of gpuflow has to show: eager derivatives, tracing, loops; run it with
compare.py.

Every workload is written once against a JAX-like and a NumPy-like module and given to each
framework in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_slice import BATCH_SIZE, LAYER_SIZES, network_batch, network_state, train_step
from workload import Workload


def _floats(jnp: Any, *shape: int) -> Any:
    generator = np.random.default_rng(len(shape))
    return jnp.asarray(generator.standard_normal(shape, dtype=np.float32))


def make_eager_gradient(jax: Any, jnp: Any) -> Callable[[], Any]:
    """grad of a logistic loss of eight features and ten examples, op by op."""
    features, weights = _floats(jnp, 10, 8), _floats(jnp, 8)
    labels = jnp.asarray(np.arange(10, dtype=np.float32) % 2)

    def loss(weights: Any) -> Any:
        scores = jnp.tanh(features @ weights)
        wrong = jnp.log(1 + jnp.exp(-scores)) * labels + scores * (1 - labels)
        return jnp.mean(wrong) + 0.01 * jnp.sum(weights**2)

    gradient = jax.grad(loss)
    return lambda: gradient(weights)


def make_eager_jacobian(jax: Any, jnp: Any) -> Callable[[], Any]:
    """jacfwd of a function from ten numbers to ten, op by op."""
    x, matrix = _floats(jnp, 10), _floats(jnp, 10, 10)
    jacobian = jax.jacfwd(lambda x: jnp.sin(matrix @ x) * jnp.exp(-x) + x**2)
    return lambda: jacobian(x)


def make_tracing(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The jaxpr of the perceptron's Adam step with its gradient, traced anew each time."""
    state = network_state(jax, jnp, LAYER_SIZES)
    images, labels = network_batch(jnp, BATCH_SIZE)

    def trace() -> Any:
        jax.make_jaxpr(train_step(jax, jnp))(state, images, labels)
        return labels

    return trace


def make_recurrence(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Loss and gradient of a recurrent network: 128 steps, 128 units, batch 32, 64 features."""
    units = 128
    inside, outside = _floats(jnp, units, units) / 12, _floats(jnp, 64, units) / 8
    sequence = _floats(jnp, 128, 32, 64)

    def loss(weights: Any, sequence: Any) -> Any:
        inside, outside, bias = weights

        def step(hidden: Any, x: Any) -> Any:
            hidden = jnp.tanh(hidden @ inside + x @ outside + bias)
            return hidden, hidden

        _, states = jax.lax.scan(step, jnp.zeros((32, units)), sequence)
        return jnp.mean(states**2)

    gradient = jax.jit(jax.value_and_grad(loss))
    weights = (inside, outside, jnp.zeros(units))
    return lambda: gradient(weights, sequence)


def make_spectral_radius(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The largest absolute eigenvalue of each of 128 matrices 3 x 3."""
    matrices = _floats(jnp, 128, 3, 3)
    radius = jax.jit(jax.vmap(lambda a: jnp.max(jnp.abs(jnp.linalg.eigvals(a)))))
    return lambda: radius(matrices)


def make_sort(jax: Any, jnp: Any) -> Callable[[], Any]:
    """Sorting 1M float32."""
    x = _floats(jnp, 1 << 20)
    sort = jax.jit(jnp.sort)
    return lambda: sort(x)


def make_argmax(jax: Any, jnp: Any) -> Callable[[], Any]:
    """argmax over the rows of a matrix 4096 x 1024."""
    x = _floats(jnp, 4096, 1024)
    argmax = jax.jit(lambda x: jnp.argmax(x, axis=1))
    return lambda: argmax(x)


WORKLOADS = [
    Workload("grad of an eager function", make_eager_gradient, target=0.5),
    Workload("jacfwd of an eager function, n = 10", make_eager_jacobian, target=0.5),
    Workload("tracing the MLP Adam step", make_tracing, target=1.0),
    Workload("scan: RNN of 128 steps, loss and gradient", make_recurrence, target=1.2),
    Workload("spectral radius of 128 matrices 3 x 3, jit(vmap)", make_spectral_radius, target=1.0),
    Workload("sort 1M float32", make_sort, target=0.05),
    Workload("argmax over rows, 4096 x 1024", make_argmax, target=0.2),
]
CHECKS: list[Any] = []
