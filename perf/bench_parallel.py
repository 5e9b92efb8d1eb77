"""What many devices have to show: eight virtual devices, and all-reduce between processes.

Run it with compare.py. All frameworks are told by XLA_FLAGS to make eight CPU devices. Groups of
processes are started for each measurement, by mpiexec and by `gpuflow launch`; rank 0 prints the
figures. The rival of both is the all-reduce of mpi4py on the same data in the same run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workload import Check, CheckGroup, Workload

RANKS = Path(__file__).resolve().with_name("parallel_ranks.py")
LIMIT = 120  # seconds for a group

# This file is loaded before any framework is started, which inherits the setting.
EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = EIGHT_DEVICES


def make_psum(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The sum of a number over eight devices, whose result goes in again."""
    total = jax.pmap(lambda x: jax.lax.psum(x, "devices"), axis_name="devices")
    x = total(jnp.zeros(8))
    return lambda: total(x)


def make_cosine(jax: Any, jnp: Any) -> Callable[[], Any]:
    """The cosine of 8M numbers on eight devices."""
    cosine = jax.pmap(jnp.cos)
    x = cosine(jnp.asarray(np.random.default_rng(0).random((8, 1 << 20), np.float32)))
    return lambda: cosine(x)


def make_training_step(jax: Any, jnp: Any) -> Callable[[], Any]:
    """A step of data-parallel training: 64-256-10, batch 32 for each device, gradients averaged."""
    rng = np.random.default_rng(0)
    shapes = [(64, 256), (256, 10)]
    weights = [np.tile(rng.standard_normal(s, np.float32) / 8, (8, 1, 1)) for s in shapes]
    inputs = rng.standard_normal((8, 32, 64), np.float32)
    labels = rng.integers(0, 10, (8, 32)).astype(np.int32)

    def loss(weights: Any, inputs: Any, labels: Any) -> Any:
        logits = jnp.tanh(inputs @ weights[0]) @ weights[1]
        chosen = jax.nn.log_softmax(logits)[jnp.arange(32), labels]
        return -chosen.mean()

    def step(weights: Any, inputs: Any, labels: Any) -> Any:
        grads = jax.lax.pmean(jax.grad(loss)(weights, inputs, labels), "devices")
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]

    step = jax.pmap(step, axis_name="devices")
    state = [jnp.asarray(w) for w in weights]
    data = jnp.asarray(inputs), jnp.asarray(labels)
    state = step(state, *data)
    return lambda: step(state, *data)[0]


WORKLOADS = [
    Workload("psum of a number, 8 virtual devices", make_psum, target=0.5),
    Workload("cos of 8M numbers, 8 virtual devices", make_cosine, target=0.5),
    Workload("data-parallel step, 8 virtual devices", make_training_step, target=1.0),
]


def figures(*launcher: str) -> dict[str, float]:
    """Seconds of each case in a group of two processes."""
    alone = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "2", *launcher, str(RANKS)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, env=alone, check=False
    )
    lines = [line for line in done.stdout.splitlines() if '{"all-reduce' in line]
    if done.returncode or not lines:
        raise ValueError(f"the group ended with status {done.returncode}: {done.stderr[-500:]}")
    return json.loads(lines[0][lines[0].index("{") :])


def measure_all_reduce(gf: Any, jnp: Any) -> list[Check]:
    """4 MB over two processes, against mpi4py's Allreduce into memory that is there."""
    del gf, jnp
    if importlib.util.find_spec("mpi4py") is None:
        raise ValueError("mpi4py is not installed")
    mpi, sockets = figures("--mpi"), figures()
    raw = mpi["all-reduce of mpi4py"]

    def row(name: str, seconds: float, target: float) -> Check:
        note = f"{1e3 * seconds:.2f} ms; mpi4py {1e3 * raw:.2f} ms"
        return Check(name, target, seconds / raw, "x mpi4py", note)

    return [
        row("all-reduce of 4 MB, 2 processes, MPI", mpi["all-reduce"], 1.3),
        row("all-reduce of 4 MB, 2 processes, sockets", sockets["all-reduce"], 2.0),
        row("jitted psum of 4 MB, 2 processes, MPI", mpi["all-reduce in a program"], 1.6),
    ]


CHECKS = [CheckGroup("all-reduce between processes", measure_all_reduce)]
