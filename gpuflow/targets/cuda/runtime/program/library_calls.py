"""Library calls without a provider, and host functions, in programs of GPUs.

They run ``impl`` or ``call`` of the primitive with the device's array module. If that module does
not support it (CuPy lacks parts of NumPy), the call runs on the host from then on, and copies
operands and results. If the primitive raises ``OnHost``, only that call does.
``GpuDevice.host_calls`` has the reasons. Collectives always stay on the device.

Tests: tests/targets/cuda/test_cuda_driver.py, tests/targets/cuda/test_on_cupy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.errors import CommunicationError
from gpuflow.base.installation import pip_install
from gpuflow.base.util import warn
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.effects import COMMUNICATION
from gpuflow.core.lowering import OnHost
from gpuflow.runtime.device_array import DeviceArray
from gpuflow.runtime.program_arrays import store_results
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault
from gpuflow.targets.cuda.runtime.driver.program_device import GpuDevice

# Parts of the messages of libraries that run out of memory.
_OUT_OF_MEMORY = ("STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "cudaErrorMemoryAllocation")

# A function of an array module, a list of output arrays, and operand arrays.
_ModuleCall = Callable[..., None]


class LibraryCall:
    """One library call of a program, as a function of output and operand arrays.

    Args:
        step: the step of the call.
        device: the device that runs it.
    """

    def __init__(self, step: CallStep, device: GpuDevice) -> None:
        operand_dtypes = ", ".join(str(operand.aval.dtype) for operand in step.operands)
        self._name, self._device = f"{step.name}({operand_dtypes})", device
        self._call = _call_of(step)
        # Communicators support only data on the device, and all ranks must make the same calls.
        self._is_collective = COMMUNICATION in step.eqn.effects
        self._on_host = step.kind == "host" or self._name in device.host_calls

    def __call__(self, outs: Sequence[DeviceArray], *operands: DeviceArray) -> None:
        if not self._on_host:
            try:
                self._on_device(outs, operands)
            except CommunicationError:
                raise
            except OnHost as reason:
                self._warn_on_host(reason)
            except Exception as error:
                translated = self._device.fault_of(error)
                if isinstance(translated, GpuFault):
                    raise translated from error
                if self._is_collective:
                    raise
                if _is_full(error):
                    self._retry(outs, operands)
                    return
                self._on_host = True
                self._warn_missing(error)
            else:
                return
        self._through_host(outs, operands)

    def _retry(self, outs: Sequence[DeviceArray], operands: Sequence[DeviceArray]) -> None:
        """Retry a call that ran out of memory, after freeing unused memory of our pools."""
        self._device.free_unused()
        try:
            self._on_device(outs, operands)
        except Exception as error:
            if isinstance(error, MemoryError) or not _is_full(error):
                raise
            raise MemoryError(
                f"[{self._name}] the library must have enough workspace memory for this call; got "
                f"{error}. Fix: a smaller batch, or delete unused arrays."
            ) from error

    def _warn_missing(self, error: Exception) -> None:
        """Warn once that the library lacks the call, which runs on the host from now on."""
        self._warn_once(
            self._name,
            f"{type(error).__name__}: {error}",
            "from now on, with copies of what it reads and writes, as the device's library cannot "
            "do it",
            "where a library is missing, as gpuflow doctor reports, "
            f"{pip_install('cuda13')} "
            "(cuda12 for CUDA 12); else keep such calls out of what is to be fast",
        )

    def _warn_on_host(self, reason: OnHost) -> None:
        """Warn once that such calls run on the host."""
        self._warn_once(
            f"{self._name} {reason.which}".rstrip(),
            str(reason),
            "each time, with copies of what it reads and writes",
            "keep such calls out of what is to be fast",
        )

    def _warn_once(self, calls: str, reason: str, manner: str, fix: str) -> None:
        """Warn once per device that ``calls``, an op with dtypes, run on the host."""
        if calls not in self._device.host_calls:
            self._device.host_calls[calls] = reason
            warn(f"[{calls}] it runs on the host {manner}; got {reason}. Fix: {fix}.")

    def _on_device(self, outs: Sequence[DeviceArray], operands: Sequence[DeviceArray]) -> None:
        device = self._device
        view = device.api.view
        with device.api.library(device.compute):
            self._call(device.api.xp, [view(out) for out in outs], *[view(x) for x in operands])

    def _through_host(self, outs: Sequence[DeviceArray], operands: Sequence[DeviceArray]) -> None:
        device = self._device
        inputs = [device.to_host(x) for x in operands]
        results = [np.empty(out.shape, out.dtype) for out in outs]
        self._call(np, results, *inputs)
        device.api.activate()  # a function of the user may have activated another device
        for out, result in zip(outs, results, strict=True):
            device.copy_into(out, device.from_host(result))


def _is_full(error: Exception) -> bool:
    """Whether an error means that the device's memory is full."""
    return isinstance(error, MemoryError) or any(name in str(error) for name in _OUT_OF_MEMORY)


def _call_of(step: CallStep) -> _ModuleCall:
    """The call of a step, as a function of the array module, outputs and operands."""
    primitive, params = step.eqn.primitive, step.eqn.params
    rule = primitive.lower
    if rule.prepare is not None:
        avals = [operand.aval for operand in step.operands]
        return rule.prepare(avals, [var.aval for var in step.eqn.outputs], params)
    if rule.call is not None:
        return partial(_with_params, rule.call, params)
    return partial(_through_impl, primitive, params, step.kind == "host")


def _with_params(
    call: _ModuleCall, params: dict[str, Any], xp: Any, outs: list[Any], *operands: Any
) -> None:
    call(xp, outs, *operands, **params)


def _through_impl(
    primitive: Any,
    params: dict[str, Any],
    may_retain: bool,
    xp: Any,
    outs: list[Any],
    *operands: Any,
) -> None:
    """Call ``impl`` and copy its results.

    Operands are passed row-major, as copies if necessary. A host function gets copies in any case,
    which it may retain (``may_retain``).
    """
    inputs = operands
    if not may_retain:
        inputs = tuple([xp.ascontiguousarray(x).reshape(x.shape) for x in operands])
    store_results(primitive, xp, outs, primitive.impl(xp, *inputs, **params))
