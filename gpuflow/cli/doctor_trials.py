"""Trials of `gpuflow doctor` on a GPU: a product, a transform, a solve and a sum of one rank.

Each runs in a separate process, so that a crash or a hang is a line of the report: ``python -m
gpuflow.cli.doctor_trials NAME [PLATFORM]`` prints that line, and ends with status 1 if the trial
failed.

Tests: tests/cli/test_doctor_gpu.py, tests/parallel/test_nccl_streams.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.cli.doctor_checks import first_nonempty
from gpuflow.parallel.collectives import nccl_connect
from gpuflow.scipy import linalg

_SIZE = 64  # smaller matrices are solved by kernels of our own
# Sums of 64 products of numbers around 1, with mantissas of 10 bits on GPUs (TF32).
_TOLERANCE = 1e-2


class TrialError(Exception):
    """A trial failed; the text is the reason."""


def _inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((2, _SIZE, _SIZE)).astype(np.float32))


def _product(device: gf.Device) -> tuple[Any, np.ndarray]:
    x, y = _inputs()
    got = gf.jit(jnp.matmul)(gf.device_put(x, device), gf.device_put(y, device))
    return got, np.matmul(x.astype(np.float64), y)


def _transform(device: gf.Device) -> tuple[Any, np.ndarray]:
    x, _ = _inputs()
    return gf.jit(jnp.fft.fft)(gf.device_put(x, device)), np.fft.fft(x)


def _solve(device: gf.Device) -> tuple[Any, np.ndarray]:
    x, y = _inputs()
    matrix = x @ x.T / _SIZE + np.eye(_SIZE, dtype=np.float32)  # positive definite

    def solve(a: Any, b: Any) -> Any:
        return linalg.cho_solve(linalg.cho_factor(a, lower=True), b)

    got = gf.jit(solve)(gf.device_put(matrix, device), gf.device_put(y, device))
    return got, np.linalg.solve(matrix.astype(np.float64), y)


def _sum(device: gf.Device) -> tuple[Any, np.ndarray]:
    """Makes a communicator of one rank; the sum of one operand is the operand."""
    x, _ = _inputs()
    driver: Any = device.driver
    xp = driver.api.xp
    (comm,) = nccl_connect.connect_gpus([device])
    try:
        with driver.api.library(driver.compute):
            total = comm.all_reduce(xp.asarray(x), "sum")
            comm.barrier()
            return xp.asnumpy(total), x
    finally:
        nccl_connect.leave_group(failed=False)


Trial = Callable[[gf.Device], tuple[Any, np.ndarray]]
# Programs of one device, and those that need NCCL.
PROGRAMS: dict[str, Trial] = {
    "matrix product": _product,
    "FFT": _transform,
    "Cholesky solve": _solve,
}
TRIALS: dict[str, Trial] = {**PROGRAMS, "NCCL all-reduce": _sum}


def try_on(device: gf.Device, name: str) -> str:
    """Run a trial and compare it with NumPy; returns where it ran.

    Raises:
        TrialError: the result is wrong.
        Exception: whatever the libraries raise.
    """
    host_calls: dict[str, str] = device.driver.host_calls  # pyright: ignore
    before = set(host_calls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the result reports it
        got, want = TRIALS[name](device)
    error = np.max(np.abs(np.asarray(got) - want)) / np.max(np.abs(want))
    if not error <= _TOLERANCE:  # nan is wrong too
        raise TrialError(f"wrong: it differs from NumPy by {error:.1e} of the largest value")
    on_host = [f"{call}: {why}" for call, why in host_calls.items() if call not in before]
    if on_host:
        return f"right, but on the host: {first_nonempty('; '.join(on_host))}"
    return "right, on the device"


def main(arguments: Sequence[str]) -> int:
    """Prints the line of one trial."""
    name, *platform = arguments
    try:
        result = try_on(gf.devices(*(platform or ["cuda"]))[0], name)
    except TrialError as error:
        print(error)
    except Exception as error:
        print(f"failed: {type(error).__name__}: {first_nonempty(str(error))}")
    else:
        print(result)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
