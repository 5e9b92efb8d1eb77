"""Speculative iterations of while_loop on GPUs: which bodies may run once more than needed.

While the device runs an iteration, the host launches the next one, before it reads the condition.
See docs/design/0031-loops-on-gpus.md.

Tests: tests/targets/cuda/test_gpu_loops.py.
"""

from __future__ import annotations

from gpuflow.compiler.planning.plan import (
    CallStep,
    CopyStep,
    KernelStep,
    Plan,
    ProgramStep,
    Step,
    flops_of,
)
from gpuflow.core.jaxpr import Eqn

# The wasted iteration must not cost more than it saves: a wait for the flag in each iteration,
# 10 us on an H100. An H100 moves 4e11 elements a second, and does about 1e14 operations of products
# a second: an element takes as long as 256 operations, 2^24 elements about 40 us. Estimates.
_MAX_ELEMENTS = 1 << 24
_FLOPS_PER_ELEMENT = 256


def has_no_effect(eqn: Eqn) -> bool:
    """Whether an equation has no effect, and neither blocks the host nor may run forever.

    With the carries of a speculative iteration an inner loop may never end. A branch makes the host
    wait for its index, so nothing is gained.
    """
    lowering = eqn.primitive.lower
    may_wait = lowering.runs_programs or lowering.is_host_call or lowering.is_lane_program
    return not eqn.effects and not may_wait


def is_short(plan: Plan) -> bool:
    """Whether all steps are launches, and their estimated work is at most _MAX_ELEMENTS."""
    return sum([_work(plan, step) for step in plan.steps]) <= _MAX_ELEMENTS


def _work(plan: Plan, step: Step) -> float:
    """Estimated count of elements that a step processes; infinity for a call from Python."""
    if isinstance(step, KernelStep):
        return sum(call.points for call in step.calls)
    if isinstance(step, CopyStep):
        return step.source.aval.size
    if isinstance(step, ProgramStep) or step.implementation is None:
        return float("inf")
    return flops_of(step) / _FLOPS_PER_ELEMENT + _element_count(plan, step)


def _element_count(plan: Plan, step: CallStep) -> int:
    """Elements of the operands and outputs of a call."""
    outputs = sum(plan.aval(buffer).size for buffer in step.outputs)
    return outputs + sum(operand.aval.size for operand in step.operands)
