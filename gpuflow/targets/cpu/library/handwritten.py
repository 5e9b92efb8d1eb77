"""Provider of handwritten kernels: a block returns the launches of its KernelIR kernels."""

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


def _choose(block: Scan | Sort | Kernels, step: CallStep, target: Any) -> NativeCall | None:
    del target
    if block.launches is None:
        return None
    if any(operand.buffer == NO_BUFFER for operand in step.operands):
        return None
    outs = [var.aval for var in step.eqn.outputs]
    views = [operand.layout for operand in step.operands]
    launches = block.launches(views, outs, step.eqn.params)
    if launches is None:
        return None
    return NativeCall(
        partial(_emit, launches),
        launches.workspace,
        lambda: [one.kernel for one in launches.launches],
    )


def _emit(
    launches: Launches, step: CallStep, services: NativeServices, code: Code, locations: Locations
) -> None:
    code.keep(*launches.owners)
    for one in launches.launches:
        launch([_numbered(one, step)], services, code, locations)


def _numbered(one: Launch, step: CallStep) -> KernelCall:
    """Bind a launch to the buffers of a step: operands, outputs, then the workspace."""
    buffers = [*(operand.buffer for operand in step.operands), *step.outputs]
    if step.workspace is not None:
        buffers.append(step.workspace)
    arrays = [NO_BUFFER if k is None else buffers[k] for k in one.arrays]
    return KernelCall(one.kernel, one.slots, tuple(arrays), one.extent, one.points)


PROVIDER = Provider("kernels of ours, written by hand", _choose)
