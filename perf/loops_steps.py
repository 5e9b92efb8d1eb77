"""Workloads of bench_loops.py with one chain of steps, beside JAX and beside compiled C."""

from __future__ import annotations

import ctypes
import math
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from loops_lanes import Arrays, lane_row
from reference import as_array, check_close
from workload import Check, CheckGroup, Workload

# The logistic map's orbit has a period of 4 here, so that any number of steps can be compared.
RATE, START = np.float32(3.5), np.float32(0.4)
SHORT, LONG = 10_000, 10_000_000
DIMENSIONS, LEAPS, LEAP = 10, 1000, 0.1
UPDATED, UPDATES = 1_000_000, 1000
ROUNDS = 9  # beside C
C_SOURCE = """
float logistic(float rate, float x, long steps)
{
    for (long k = 0; k < steps; k++)
        x = rate * x * (1.0f - x);
    return x;
}
"""


# --- scans of scalars --------------------------------------------------------------------------


def _logistic(jax: Any, steps: int) -> Callable[..., Any]:
    def iterate(rate: Any, start: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return rate * x * (1.0 - x), None

        return jax.lax.scan(step, start, None, length=steps)[0]

    return iterate


def _check_logistic(result: Any, steps: int) -> None:
    rate, x = float(RATE), float(START)
    for _ in range(steps):
        x = rate * x * (1.0 - x)
    check_close("last number", result, x, 0.0, 1e-6)


def logistic_row(steps: int) -> Workload:
    """The last number of the orbit."""
    return lane_row(
        f"scan of {steps} scalar steps, logistic map",
        lambda: (np.asarray(RATE), np.asarray(START)),
        lambda jax: _logistic(jax, steps),
        0.5,
        lambda result, *_: _check_logistic(result, steps),
    )


class NoCompiler(Exception):
    """There is no cc, or it does not work; the message says which."""


def c_logistic(folder: str) -> Callable[[float, float, int], float]:
    """The same loop in C, compiled by `cc -O2` into a folder.

    Raises:
        NoCompiler: cc is not there or fails.
    """
    if (compiler := shutil.which("cc")) is None:
        raise NoCompiler("no cc")
    source, library = Path(folder, "logistic.c"), Path(folder, "logistic.so")
    source.write_text(C_SOURCE)
    command = [compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCompiler(f"cc fails: {done.stderr.strip()[-200:]}")
    function = ctypes.CDLL(str(library)).logistic
    function.argtypes = (ctypes.c_float, ctypes.c_float, ctypes.c_long)
    function.restype = ctypes.c_float
    return function


def _seconds(call: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def beside_c(steps: int) -> CheckGroup:
    """The scan's time over that of the C function, called through ctypes."""
    name = f"scan of {steps} scalar steps over C of cc -O2"

    def measure(gpuflow: Any, gnp: Any) -> list[Check]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                function = c_logistic(folder)
            except NoCompiler as error:
                return [Check(name, 1.2, math.nan, "x", skipped=str(error))]
            rate, start = gnp.asarray(RATE), gnp.asarray(START)
            jitted = gpuflow.jit(_logistic(gpuflow, steps))

            def ours() -> Any:
                return jitted(rate, start).block_until_ready()

            def theirs() -> float:
                return function(RATE, START, steps)

            for result in (ours(), theirs()):
                _check_logistic(result, steps)
            calls = max(1, LONG // steps // 10)
            # In turn, so that a change of the machine's speed meets both.
            pairs = [(_seconds(ours, calls), _seconds(theirs, calls)) for _ in range(ROUNDS)]
            ratio = statistics.median(a / b for a, b in pairs)
            mine, other = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
            return [Check(name, 1.2, ratio, "x", f"{mine:.4g} ms beside {other:.4g} ms")]

    return CheckGroup(name, measure)


# --- leapfrog steps ----------------------------------------------------------------------------


def _gaussian() -> Arrays:
    """A precision matrix whose eigenvalues are 0.5 to 4, a position and a momentum."""
    generator = np.random.default_rng(4)
    basis = np.linalg.qr(generator.standard_normal((DIMENSIONS, DIMENSIONS)))[0]
    precision = basis * np.linspace(0.5, 4, DIMENSIONS) @ basis.T
    state = generator.standard_normal((2, DIMENSIONS))
    return tuple(value.astype(np.float32) for value in (precision, *state))


def _leapfrog(jax: Any, steps: int) -> Callable[..., Any]:
    """A trajectory of Hamiltonian Monte Carlo, with the density's gradient by grad."""

    def trajectory(precision: Any, position: Any, momentum: Any) -> Any:
        slope = jax.grad(lambda q: -0.5 * (q @ (precision @ q)))

        def step(_: Any, state: Any) -> Any:
            q, p = state
            p = p + 0.5 * LEAP * slope(q)
            q = q + LEAP * p
            return q, p + 0.5 * LEAP * slope(q)

        return jax.lax.fori_loop(0, steps, step, (position, momentum))

    return trajectory


def _check_leapfrog(result: Any, steps: int, a: np.ndarray, q: np.ndarray, p: np.ndarray) -> None:
    # One step is a matrix of position and momentum; it turns, so that errors only add up.
    n, h = len(a), LEAP
    one, kick = np.eye(n), (a + a.T) / 2
    half = np.block([[one, 0 * one], [-h / 2 * kick, one]])
    drift = np.block([[one, h * one], [0 * one, one]])
    wanted = np.linalg.matrix_power(half @ drift @ half, steps) @ np.concatenate([q, p])
    check_close("state", np.concatenate([as_array(part) for part in result]), wanted, 0.0, 5e-5)


def leapfrog_row(steps: int) -> Workload:
    """One chain; the time is that of all steps."""
    return lane_row(
        f"fori_loop of {steps} leapfrog steps, Gaussian of {DIMENSIONS} dimensions",
        _gaussian,
        lambda jax: _leapfrog(jax, steps),
        0.5,
        lambda result, *inputs: _check_leapfrog(result, steps, *inputs),
    )


# --- updates in place --------------------------------------------------------------------------


def _updates(jax: Any, steps: int) -> Callable[..., Any]:
    """Each step changes one element, by the one before it."""

    def step(i: Any, x: Any) -> Any:
        return x.at[i + 1].set(0.5 * x[i] + x[i + 1])

    return lambda x: jax.lax.fori_loop(0, steps, step, x)


def _check_updates(result: Any, steps: int, x: np.ndarray) -> None:
    wanted = x.copy()
    for k in range(steps):
        wanted[k + 1] += 0.5 * wanted[k]
    check_close("updated array", result, wanted, 1e-6, 1e-6)


def updates_row(size: int, steps: int) -> Workload:
    """An array that is too large to be copied at each step."""
    return lane_row(
        f"fori_loop of {steps} x.at[i].set, {size} elements",
        lambda: (np.random.default_rng(5).standard_normal(size, dtype=np.float32),),
        lambda jax: _updates(jax, steps),
        1.1,
        lambda result, x: _check_updates(result, steps, x),
    )


ROWS = [
    logistic_row(SHORT),
    logistic_row(LONG),
    leapfrog_row(LEAPS),
    updates_row(UPDATED, UPDATES),
]
CHECKS = [beside_c(SHORT), beside_c(LONG)]
