"""Library calls that kernels written by hand make, as instructions of native programs."""

from __future__ import annotations

from gpuflow.compiler.lowering.lower import NO_BUFFER, KernelCall
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.lowering import Launch, Launches, Library


def launches_of(step: CallStep) -> Launches | None:
    """The launches that make a library call, or None: there are none."""
    rule = step.eqn.primitive.lower
    if not isinstance(rule, Library) or rule.kernels is None:
        return None
    if any(operand.buffer == NO_BUFFER for operand in step.operands):
        return None
    outs = [var.aval for var in step.eqn.outputs]
    return rule.kernels([operand.lies for operand in step.operands], outs, step.eqn.params)


def numbered(launch: Launch, step: CallStep) -> KernelCall:
    """A launch as a call of its kernel on the buffers of a step."""
    buffers = [*(operand.buffer for operand in step.operands), *step.outputs]
    if step.workspace is not None:
        buffers.append(step.workspace)
    arrays = [NO_BUFFER if k is None else buffers[k] for k in launch.arrays]
    return KernelCall(launch.kernel, launch.words, tuple(arrays), launch.extent, launch.points)
