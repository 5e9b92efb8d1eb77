"""What the first slice of gpuflow has to show; run it with compare.py.

Every workload is written once against a JAX-like and a NumPy-like module and given to each
framework in turn. Checks concern gpuflow alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from models import (
    BATCH_SIZE,
    LAYER_SIZES,
    device_tree,
    layernorm,
    mlp_batch,
    mlp_loss,
    mlp_params,
)
from optimizers import adam, adam_state, training_step
from workload import Check, CheckGroup, Workload

ELEMENTS = 4 * 1024 * 1024

# --- the training step -------------------------------------------------------------------------


def network_state(jax: Any, jnp: Any, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Parameters of a perceptron and Adam's moments, equal everywhere."""
    return device_tree(jax, jnp, adam_state(mlp_params(sizes)))


def network_batch(jnp: Any, count: int) -> tuple[Any, Any]:
    """Images f32[count, 784] and one-hot labels f32[count, 10]."""
    images, labels = mlp_batch(count)
    return jnp.asarray(images), jnp.asarray(labels)


def train_step(jax: Any, jnp: Any) -> Callable[..., Any]:
    """The step (state, images, labels) -> (state, loss), not yet compiled."""
    return training_step(jax, jnp, mlp_loss, adam)


def make_train_step(donate: bool) -> Callable[[Any, Any], Callable[[], Any]]:
    """A maker of the compiled step that carries its state from call to call."""

    def make(jax: Any, jnp: Any) -> Callable[[], Any]:
        donated = (0,) if donate else ()
        step = jax.jit(train_step(jax, jnp), donate_argnums=donated)
        state = network_state(jax, jnp, LAYER_SIZES)
        images, labels = network_batch(jnp, BATCH_SIZE)

        def call() -> Any:
            nonlocal state
            state, loss = step(state, images, labels)
            return state, loss

        return call

    return make


def make_chain(jax: Any, jnp: Any) -> Callable[[], Any]:
    """tanh(x*y) + exp(-x) + log(x+2) of 4M elements."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.random(ELEMENTS, dtype=np.float32))
    y = jnp.asarray(generator.random(ELEMENTS, dtype=np.float32))
    chain = jax.jit(lambda x, y: jnp.tanh(x * y) + jnp.exp(-x) + jnp.log(x + 2))
    return lambda: chain(x, y)


WORKLOADS = [
    Workload("tanh(x*y)+exp(-x)+log(x+2), 4M float32", make_chain, target=0.4),
    Workload("MLP 784-512-512-10 Adam step, batch 128, donated", make_train_step(True), 1.5),
    Workload("MLP 784-512-512-10 Adam step, batch 128, not donated", make_train_step(False), 1.5),
]

# --- plan steps --------------------------------------------------------------------------------


def plan_steps(jax: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """The steps of the plan: kernels, library calls, copies, callbacks."""
    return list(jax.jit(function).lower(*args).compile().steps)


def standardize(jnp: Any, x: Any) -> Any:
    return (x - jnp.mean(x, axis=1, keepdims=True)) / jnp.std(x, axis=1, keepdims=True)


def chained_matmuls(x: Any, weights: list[Any]) -> Any:
    """(f(x)*f(x) + f(x)*f(x)) / f(x) with f a chain of ten matmuls: fifty of them as written."""

    def f(x: Any) -> Any:
        for weight in weights:
            x = x @ weight
        return x

    return (f(x) * f(x) + f(x) * f(x)) / f(x)


def measure_plan_steps(jax: Any, jnp: Any) -> list[Check]:
    x = jnp.asarray(np.random.default_rng(0).random((64, 96), dtype=np.float32))
    row = jnp.ones(96)
    # Ten layers with weights and biases: twenty parameters.
    state = network_state(jax, jnp, (64, 96, 80, 64, 48, 40, 36, 32, 24, 20, 10))
    grads = jax.tree_util.tree_map(jnp.ones_like, state["params"])
    weights = [jnp.asarray(np.eye(96, dtype=np.float32)) for _ in range(10)]

    softmax = plan_steps(jax, jax.nn.softmax, x)
    norm = plan_steps(jax, lambda x, s, o: layernorm(jnp, x, s, o), x, row, row)
    standard = plan_steps(jax, lambda x: standardize(jnp, x), x)
    update = plan_steps(jax, lambda state, grads: adam(jax, jnp, state, grads), state, grads)
    matmuls = plan_steps(jax, chained_matmuls, x, weights)
    gemms = sum(is_library_call(step) for step in matmuls)
    total = f"of {len(matmuls)} steps"
    return [
        Check("plan steps: softmax", 1, len(softmax)),
        Check("plan steps: layernorm", 1, len(norm)),
        Check("plan steps: (x - mean) / std", 1, len(standard)),
        Check("plan steps: Adam update of 20 parameters", 2, len(update)),
        Check("GEMMs: (f*f + f*f) / f, f of ten matmuls", 10, gemms, note=total),
    ]


def is_library_call(step: Any) -> bool:
    """The only library that this program can call is GEMM."""
    return step.kind == "library"


# --- sizes and cache ---------------------------------------------------------------------------


def batch_sizes() -> list[int]:
    """Fifty different sizes in random order, 1, 2, 17 and further primes among them."""
    generator = np.random.default_rng(2024)
    chosen = [1, 2, 17, 31, 127, 257, 509]
    others = [int(n) for n in generator.permutation(np.arange(3, 700)) if n not in chosen]
    sizes = np.array(chosen + others[: 50 - len(chosen)])
    return [int(n) for n in generator.permutation(sizes)]


def measure_batch_sizes(jax: Any, jnp: Any) -> list[Check]:
    step = jax.jit(train_step(jax, jnp))
    state = network_state(jax, jnp, LAYER_SIZES)
    built, retraces = [], []
    for size in batch_sizes():
        images, labels = network_batch(jnp, size)
        start = time.perf_counter()
        jax.block_until_ready(step(state, images, labels))
        middle = time.perf_counter()
        jax.block_until_ready(step(state, images, labels))
        end = time.perf_counter()
        retraces.append(1e3 * ((middle - start) - (end - middle)))
        built.append(jax.cache_stats().built)
    later = retraces[4:]
    note = f"median of {len(later)}; the longest took {max(later):.4g} ms"
    return [
        Check(
            "50 batch sizes: kernels built after the fourth",
            0,
            built[-1] - built[3],
            note=f"{built[3]} before",
        ),
        Check("50 batch sizes: to retrace and bind one", 40, statistics.median(later), "ms", note),
    ]


def measure_warm_cache(jax: Any, jnp: Any) -> list[Check]:
    function = make_train_step(donate=True)(jax, jnp)
    jax.block_until_ready(function())
    stats = jax.cache_stats()
    numba_imported = int("numba" in sys.modules)
    return [
        Check("second process: kernels built", 0, stats.built, note=f"{stats.loaded} loaded"),
        Check("second process: Numba imported", 0, numba_imported, note="1 is yes"),
    ]


CHECKS = [
    CheckGroup("plan steps", measure_plan_steps),
    CheckGroup("batch sizes", measure_batch_sizes),
    CheckGroup("warm cache", measure_warm_cache, processes=2),
]
