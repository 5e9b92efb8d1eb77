"""Self-check: compare cuDNN with NumPy on small calls of a kind before that kind is used.

A driver that does not match the library, or a mistake in our arguments, could give plausible but
wrong results. Each kind of call is checked once per process, with the plan that the library chooses
for the small calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuflow.base.records import record
from gpuflow.base.util import warn
from gpuflow.runtime.memory import address
from gpuflow.targets.cuda.library.dnn.calls import Call, DeepLibrary, PlannedCall
from gpuflow.targets.cuda.library.dnn.frontend import CudnnError
from gpuflow.targets.cuda.runtime.driver.api import GpuApi
from gpuflow.targets.cuda.runtime.driver.faults import is_fault

Arrays = Sequence[np.ndarray]


@record
class Trial:
    """The self-check for one class of calls.

    Attributes:
        kind: cache key of a call; calls of equal kinds share the result of a check.
        calls: gives the small calls to check for a call.
        arrays: gives operands of a small call, output arrays of nan, and expected outputs.
        tolerance: gives the largest error of a small call, relative to the largest output.
        needs_all: whether the check fails if the library does not support a small call.
    """

    kind: Callable[[Any], Hashable]
    calls: Callable[[Any], Sequence[Any]]
    arrays: Callable[[Any], tuple[Arrays, Arrays, Arrays]]
    tolerance: Callable[[Any], float]
    needs_all: bool = False


class CheckedLibrary:
    """A library restricted to calls whose kind passes its self-check; thread-safe.

    Args:
        library: the library on the device.
        device: the device.
        trials: self-checks by class of calls.
    """

    def __init__(self, library: DeepLibrary, device: GpuApi, trials: Mapping[type, Trial]) -> None:
        self._library, self._device, self._trials = library, device, trials
        self._stream: int | None = None
        self._is_right: dict[Hashable, bool] = {}
        self._lock = threading.RLock()

    def choose(self, call: Call, deterministic: bool) -> PlannedCall | None:
        """The library's plan, if small calls of this kind are correct; the first call checks."""
        planned = self._library.choose(call, deterministic)
        if planned is None:
            return None
        trial, key = self._trials[type(call)], self._key(call, deterministic)
        with self._lock:
            if key not in self._is_right:
                self._is_right[key] = all(
                    [self._agrees(trial, small, deterministic) for small in trial.calls(call)]
                )
            return planned if self._is_right[key] else None

    def why_not(self, call: Call, deterministic: bool) -> str:
        """Explain why ``choose`` returned None; "" if it did not."""
        if self._library.choose(call, deterministic) is None:
            return self._library.why_not(call, deterministic)
        if self._is_right.get(self._key(call, deterministic), True):
            return ""
        return "it was wrong about a small call of this kind, which was compared with NumPy"

    def _key(self, call: Call, deterministic: bool) -> Hashable:
        return type(call), self._trials[type(call)].kind(call), deterministic

    def version(self) -> str:
        """The version of the library."""
        return self._library.version()

    def bind(self, planned: PlannedCall, stream: int) -> Callable[..., None]:
        """As ``DeepLibrary.bind``."""
        return self._library.bind(planned, stream)

    def _agrees(self, trial: Trial, call: Call, deterministic: bool) -> bool:
        """Whether the library agrees with NumPy; warns if it does not."""
        planned = self._library.choose(call, deterministic)
        if planned is None:
            return not trial.needs_all
        operands, results, wants = trial.arrays(call)
        try:
            self._run(planned, operands, results)
        except CudnnError as error:
            if is_fault(error):
                raise
            warn(f"{error} gpuflow's kernels compute such calls.")
            return False
        tolerance = trial.tolerance(call)
        is_right = all(
            [is_near(got, want, tolerance) for got, want in zip(results, wants, strict=True)]
        )
        if not is_right:
            warn(
                f"[cudnn] results must equal NumPy's on small arrays; got others for {call}, so "
                "gpuflow's kernels compute such calls. Fix: install a cuDNN for this driver, or "
                "set GPUFLOW_CUDNN=0."
            )
        return is_right

    def _run(self, planned: PlannedCall, operands: Arrays, results: Arrays) -> None:
        """Run a call on the device, and write its outputs to ``results``.

        ``results`` is copied to the device first, so that its nan shows where the library stores
        nothing.
        """
        device = self._device
        device.activate()
        if self._stream is None:
            self._stream = device.stream()
        stream, pool, arrays = self._stream, device.pool(), [*operands, *results]
        counts = [*[array.nbytes for array in arrays], max(planned.workspace_bytes, 1)]
        memory = [pool.malloc(count) for count in counts]
        pointers = [one.ptr for one in memory]
        for pointer, array in zip(pointers, arrays, strict=False):
            device.copy_in(pointer, address(array), array.nbytes, stream)
        self._library.bind(planned, stream)(*pointers)
        for pointer, array in zip(pointers[len(operands) : -1], results, strict=True):
            device.copy_out(address(array), pointer, array.nbytes, stream)
        device.synchronize(stream)


def is_near(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    """Whether a result is within ``tolerance`` of the largest expected value; nan is not."""
    scale = np.abs(want).max()
    return bool(np.all(np.abs(got.astype(np.float64) - want) <= tolerance * scale))
