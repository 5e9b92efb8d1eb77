"""Workloads of bench_compiler.py in fresh processes: builds, warm starts, many sizes, memory.

A cold process has an empty cache folder. Warm rows stand twice beside JAX: as installed, where it
keeps no cache across processes, and with its compilation cache switched on and filled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_slice import batch_sizes
from compiler_steps import MLP, TRANSFORMER, Model
from models import device_tree, mlp_batch
from workload import ProcessWorkload

JAX_CACHE = {
    "JAX_COMPILATION_CACHE_DIR": "{cache}",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
STEPS = 5


def first_call(model: Model) -> Callable[[Any, Any], float]:
    """Seconds of the first step, its arguments being there."""

    def measure(jax: Any, jnp: Any) -> float:
        step, state, data = model.jitted(jax, jnp)
        jax.block_until_ready((state, data))
        start = time.perf_counter()
        jax.block_until_ready(step(state, *data))
        return time.perf_counter() - start

    return measure


def all_batch_sizes(jax: Any, jnp: Any) -> float:
    """Seconds of one step of the perceptron at each size, none of which was seen before."""
    step, state, _ = MLP.jitted(jax, jnp)
    batches = [device_tree(jax, jnp, list(mlp_batch(size))) for size in batch_sizes()]
    jax.block_until_ready((state, batches))
    start = time.perf_counter()
    for images, labels in batches:
        state, _ = step(state, images, labels)
        jax.block_until_ready(state)
    return time.perf_counter() - start


def memory_growth(jax: Any, jnp: Any) -> float:
    """Bytes by which five steps, the first one's build included, raise the peak of the process."""
    step, state, data = TRANSFORMER.jitted(jax, jnp)
    jax.block_until_ready((state, data))
    before = _status_bytes("VmRSS")
    for _ in range(STEPS):
        state, loss = step(state, *data)
        jax.block_until_ready((state, loss))
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> float:
    """A figure of Linux about this process; unlike getrusage's, the peak is not inherited."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}")


def planned_memory(jax: Any, jnp: Any) -> float:
    """Bytes of arguments, results and temporaries that the compiled step states.

    Donated arguments are in the results.
    """
    step, state, data = TRANSFORMER.jitted(jax, jnp)
    memory = step.lower(state, *data).compile().memory_analysis()
    kept = sum(value.nbytes for value in data)
    return memory.output_size_in_bytes + memory.temp_size_in_bytes + kept


def _warm(name: str, model: Model, cached: bool) -> ProcessWorkload:
    return ProcessWorkload(
        f"warm process to first result, {name}, JAX {'with' if cached else 'without'} its cache",
        first_call(model),
        {"jax": 1.0},
        ("jax",),
        from_start=True,
        warm=True,
        environment=JAX_CACHE if cached else {},
    )


def _memory(name: str, warm: bool) -> ProcessWorkload:
    environment = JAX_CACHE if warm else {}
    return ProcessWorkload(
        f"peak memory of the transformer step, {name}",
        memory_growth,
        {"jax": 1.0},
        ("jax",),
        unit="MB",
        warm=warm,
        environment=environment,
    )


PROCESS_ROWS = [
    ProcessWorkload("cold build, MLP step", first_call(MLP), {"jax": 1.5}, ("jax",)),
    ProcessWorkload(
        "cold build, transformer step", first_call(TRANSFORMER), {"jax": 1.5}, ("jax",)
    ),
    _warm("MLP step", MLP, cached=False),
    _warm("MLP step", MLP, cached=True),
    _warm("transformer step", TRANSFORMER, cached=False),
    _warm("transformer step", TRANSFORMER, cached=True),
    ProcessWorkload(
        "50 batch sizes through the MLP step, empty cache",
        all_batch_sizes,
        {"jax": 0.1},
        ("jax",),
        samples=3,
    ),
    _memory("build included", warm=False),
    _memory("caches filled", warm=True),
    ProcessWorkload(
        "peak memory of the transformer step, as planned",
        planned_memory,
        {"jax": 1.0},
        ("jax",),
        unit="MB",
        samples=1,
    ),
]
