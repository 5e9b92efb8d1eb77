"""Bodies of a while_loop that may run one extra, speculative iteration, see 0031-loops-on-gpus.md.

While a device runs one iteration, the host launches the next, before it knows whether there is one.
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

# An extra iteration must not take longer than waiting for each flag, which is about 10 us
# on an H100. An H100 moves 4e11 elements in a second, and does some 1e14 operations of products
# in that time: so many elements, each as long as so many operations, are about 40 us. Estimates.
_MOST_ELEMENTS = 1 << 24
_OPERATIONS = 256


def has_no_effect(eqn: Eqn) -> bool:
    """Whether an equation has no observable effect, and certainly ends.

    With speculative carries, an inner loop may never end; a branch makes the host wait for its
    index, so that nothing is gained.
    """
    rule = eqn.primitive.lower
    may_wait = rule.runs_programs or rule.is_host_call or rule.is_lane_program
    return not eqn.effects and not may_wait


def is_short(plan: Plan) -> bool:
    """Whether all steps are launches, and take little longer than a wait of the host."""
    work = [_work(plan, step) for step in plan.steps]
    return sum(work) <= _MOST_ELEMENTS


def _work(plan: Plan, step: Step) -> float:
    """Estimated count of elements that a step processes; infinity for a call from Python."""
    if isinstance(step, KernelStep):
        return sum(call.points for call in step.calls)
    if isinstance(step, CopyStep):
        return step.source.aval.size
    if isinstance(step, ProgramStep) or step.choice is None:
        return float("inf")
    return flops_of(step) / _OPERATIONS + _sizes(plan, step)


def _sizes(plan: Plan, step: CallStep) -> int:
    outputs = sum(plan.aval(buffer).size for buffer in step.outputs)
    return outputs + sum(operand.aval.size for operand in step.operands)
