"""Provider of handwritten kernels: a library call returns the launches of its KernelIR kernels.

Tests: tests/targets/cpu/test_native_sorts.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.compiler.target import Provider
from gpuflow.core.blocks import Kernels, Launch, Launches, Scan, Sort
from gpuflow.targets.cpu.runtime.native.calls import NativeCall, launch
from gpuflow.targets.cpu.runtime.native.copies import Locations
from gpuflow.targets.cpu.runtime.native.program_writer import Code
from gpuflow.targets.cpu.runtime.native.services import NativeServices


def _choose(library_call: Scan | Sort | Kernels, step: CallStep, target: Any) -> NativeCall | None:
    del target
    if library_call.launches is None:
        return None
    if any(operand.buffer == NO_BUFFER for operand in step.operands):
        return None
    outs = [var.aval for var in step.eqn.outputs]
    views = [operand.layout for operand in step.operands]
    launches = library_call.launches(views, outs, step.eqn.params)
    if launches is None:
        return None
    return NativeCall(
        partial(_emit, launches),
        launches.workspace,
        lambda: [kernel_launch.kernel for kernel_launch in launches.launches],
    )


def _emit(
    launches: Launches, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    code.keep_alive(*launches.owners)
    for kernel_launch in launches.launches:
        launch([_bind_launch(kernel_launch, step)], services, code, locations)


def _bind_launch(kernel_launch: Launch, step: CallStep) -> KernelCall:
    """Bind a launch to the buffers of a step: operands, outputs, then the workspace."""
    buffers = [*(operand.buffer for operand in step.operands), *step.outputs]
    if step.workspace is not None:
        buffers.append(step.workspace)
    bound = [NO_BUFFER if k is None else buffers[k] for k in kernel_launch.arrays]
    return KernelCall(
        kernel_launch.kernel,
        kernel_launch.slots,
        tuple(bound),
        kernel_launch.extent,
        kernel_launch.points,
    )


PROVIDER = Provider("kernels of ours, written by hand", _choose)
