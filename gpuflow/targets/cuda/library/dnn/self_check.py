"""Self-check: compare cuDNN with NumPy on small calls of a kind before that kind is used.

A driver that does not match the library, or a mistake in our arguments, could give plausible but
wrong results. Each kind of call is checked once per process, with the plan that the library chooses
for the small calls.

Tests: tests/targets/cuda/test_cudnn.py, tests/targets/cuda/test_cudnn_attention.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.library.dnn.calls import CudnnCall, DnnLibrary, PlannedCall
from gpuflow.targets.cuda.library.dnn.frontend import CudnnError
from gpuflow.targets.cuda.runtime.driver.api import GpuApi
from gpuflow.targets.cuda.runtime.driver.faults import is_fault

Arrays = Sequence[np.ndarray]


class TrialArrays(NamedTuple):
    """The arrays of a small call.

    Attributes:
        operands: operands in the dtypes of the call, in the order of its addresses.
        results: output arrays filled with nan, to which results are copied.
        expected: the correct outputs, in float64.
    """

    operands: Arrays
    results: Arrays
    expected: Arrays


@record
class Trial:
    """The self-check for one class of calls.

    Attributes:
        kind_of: gives the kind of a call; calls of equal kinds share the result of a check.
        small_calls: gives the small calls to check for a call.
        make_arrays: gives the arrays of a small call.
        tolerance: gives the largest error of a small call, relative to the largest output.
        needs_all: whether the check fails if the library does not support a small call.
    """

    kind_of: Callable[[Any], Hashable]
    small_calls: Callable[[Any], Sequence[Any]]
    make_arrays: Callable[[Any], TrialArrays]
    tolerance: Callable[[Any], float]
    needs_all: bool = False


class CheckedLibrary:
    """A library restricted to calls whose kind passes its self-check; thread-safe.

    Args:
        library: the library on the device.
        device: the device.
        trials: self-checks by class of calls.
    """

    def __init__(self, library: DnnLibrary, device: GpuApi, trials: Mapping[type, Trial]) -> None:
        self._library, self._device, self._trials = library, device, trials
        self._stream: int | None = None
        self._passed: dict[Hashable, bool] = {}  # by key: whether its self-check passed
        self._lock = threading.RLock()

    def plan_call(self, call: CudnnCall, deterministic: bool) -> PlannedCall | None:
        """The library's plan, if small calls of this kind are correct; the first call checks."""
        planned_call = self._library.plan_call(call, deterministic)
        if planned_call is None:
            return None
        trial, key = self._trials[type(call)], self._key(call, deterministic)
        with self._lock:
            if key not in self._passed:
                self._passed[key] = all(
                    [self._agrees(trial, small, deterministic) for small in trial.small_calls(call)]
                )
            return planned_call if self._passed[key] else None

    def why_not(self, call: CudnnCall, deterministic: bool) -> str:
        """Explain why ``plan_call`` returned None; "" if it did not."""
        if self._library.plan_call(call, deterministic) is None:
            return self._library.why_not(call, deterministic)
        if self._passed.get(self._key(call, deterministic), True):
            return ""
        return "it was wrong about a small call of this kind, which was compared with NumPy"

    def _key(self, call: CudnnCall, deterministic: bool) -> Hashable:
        return type(call), self._trials[type(call)].kind_of(call), deterministic

    def version(self) -> str:
        """The version of the library."""
        return self._library.version()

    def bind(self, planned_call: PlannedCall, stream: int) -> Callable[..., None]:
        """As ``DnnLibrary.bind``."""
        return self._library.bind(planned_call, stream)

    def _agrees(self, trial: Trial, call: CudnnCall, deterministic: bool) -> bool:
        """Whether the library agrees with NumPy; warns if it does not."""
        planned_call = self._library.plan_call(call, deterministic)
        if planned_call is None:
            return not trial.needs_all
        operands, results, expected = trial.make_arrays(call)
        try:
            self._run(planned_call, operands, results)
        except CudnnError as error:
            if is_fault(error):
                raise
            warn(f"{error} gpuflow's kernels compute such calls.")
            return False
        tolerance = trial.tolerance(call)
        pairs = zip(results, expected, strict=True)
        agrees = all([is_near(result, correct, tolerance) for result, correct in pairs])
        if not agrees:
            warn(
                f"[cudnn] results must equal NumPy's on small arrays; got others for {call}, so "
                "gpuflow's kernels compute such calls. Fix: install a cuDNN for this driver, or "
                "set GPUFLOW_CUDNN=0."
            )
        return agrees

    def _run(self, planned_call: PlannedCall, operands: Arrays, results: Arrays) -> None:
        """Run a call on the device, and write its outputs to ``results``.

        ``results`` is copied to the device first, so that its nan shows where the library stores
        nothing.
        """
        device = self._device
        device.activate()
        if self._stream is None:
            self._stream = device.stream()
        stream, pool, arrays = self._stream, device.pool(), [*operands, *results]
        sizes = [*[array.nbytes for array in arrays], max(planned_call.workspace_bytes, 1)]
        memory = [pool.malloc(size) for size in sizes]  # owns the memory until this call returns
        pointers = [block.ptr for block in memory]
        for pointer, array in zip(pointers, arrays, strict=False):
            device.copy_in(pointer, address(array), array.nbytes, stream)
        self._library.bind(planned_call, stream)(*pointers)
        for pointer, array in zip(pointers[len(operands) : -1], results, strict=True):
            device.copy_out(address(array), pointer, array.nbytes, stream)
        device.synchronize(stream)


def is_near(result: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Whether all errors are within ``tolerance`` times the largest expected value; nan is not."""
    scale = np.abs(expected).max()
    return bool(np.all(np.abs(result.astype(np.float64) - expected) <= tolerance * scale))
