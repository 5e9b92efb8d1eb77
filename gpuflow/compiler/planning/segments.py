"""Horizontal fusion: merge equal, independent kernels into one segmented step.

A segmented kernel runs over a table of argument blocks. An optimizer does the same to each
parameter, and a norm over all parameters sums the squares of each. Maps over one axis, and
reductions of one axis to a scalar, are merged if their kernel text is equal. Kernels of contiguous
arrays of any rank have equal texts, because lowering collapses their dimensions.

Tests: tests/compiler/test_segments.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.lowering.lower import KernelCall, can_be_segmented, segmented
from gpuflow.compiler.planning.symbolic_steps import SymbolicKernelStep, SymbolicStep
from gpuflow.kir.text import kernel_text


@record(frozen=False, eq=False)
class _MergedStep:
    """Equal steps that are merged, and run at the position of the last one.

    Attributes:
        text: the text of their kernel.
        steps: the steps, in order.
        position: position of the last one among all steps.
    """

    text: str
    steps: list[SymbolicKernelStep]
    position: int


class _MergedSteps:
    """Merged steps so far.

    Attributes:
        open: by kernel text, the merged step that a later equal step may join.
        writer: by buffer, the last merged step that writes it.
        readers: by buffer, the merged steps that read it.
    """

    def __init__(self) -> None:
        self.open: dict[str, _MergedStep] = {}
        self.writer: dict[int, _MergedStep] = {}
        self.readers: dict[int, list[_MergedStep]] = {}

    def close_before(self, step: SymbolicStep) -> None:
        """Close the merged steps that must be complete before ``step``; none may join later."""
        for buffer in (*step.reads, *step.overwrites):
            if buffer in self.writer:
                self._close(self.writer[buffer])
        for buffer in step.overwrites:
            for merged in self.readers.get(buffer, ()):
                self._close(merged)

    def _close(self, merged: _MergedStep) -> None:
        if self.open.get(merged.text) is merged:
            del self.open[merged.text]

    def add(self, step: SymbolicKernelStep, position: int) -> _MergedStep:
        """Merge a step into the open one of equal text, which moves to its position.

        Call ``close_before`` with the step first.
        """
        text = kernel_text(step.kernel)
        merged = self.open.get(text)
        if merged is None:
            merged = self.open[text] = _MergedStep(text, [], position)
        merged.steps.append(step)
        merged.position = position
        self.writer.update(dict.fromkeys(step.writes, merged))
        for buffer in step.reads:
            self.readers.setdefault(buffer, []).append(merged)
        return merged


def merge_equal_kernels(steps: Sequence[SymbolicStep]) -> list[SymbolicStep]:
    """Run equal kernels that do not depend on each other as one segmented step.

    Args:
        steps: the steps, in an order in which they can run.

    Returns:
        Fewer or as many steps. A step is merged with the previous one of its kind if nothing
        between them needs that one's results or overwrites its operands; both run at the later
        position.
    """
    merged_steps = _MergedSteps()
    unmerged: dict[int, SymbolicStep] = {}
    segmented_steps: dict[_MergedStep, None] = {}
    for position, step in enumerate(steps):
        merged_steps.close_before(step)
        if isinstance(step, SymbolicKernelStep) and can_be_segmented(step.kernel):
            segmented_steps[merged_steps.add(step, position)] = None
        else:
            unmerged[position] = step
    step_at = unmerged | {
        merged.position: _segmented_step(merged.steps) for merged in segmented_steps
    }
    return [step_at[position] for position in sorted(step_at)]


def _segmented_step(steps: Sequence[SymbolicKernelStep]) -> SymbolicKernelStep:
    """One segmented step for several steps; a single step remains as it was."""
    if len(steps) == 1:
        return steps[0]

    def concatenated(name: str) -> tuple[Any, ...]:
        return tuple(chain.from_iterable([getattr(step, name) for step in steps]))

    return SymbolicKernelStep(
        concatenated("calls"),
        segmented(steps[0].kernel),
        concatenated("members"),
        concatenated("reads"),
        concatenated("writes"),
        concatenated("overwrites"),
        all([step.is_plain for step in steps]),
    )


def group_by_kernel(launches: Sequence[KernelCall]) -> tuple[tuple[KernelCall, ...], ...]:
    """The launches of several calls, grouped by kernel, in the order of first launches.
    The launches of a call are the kernel itself, or for long reductions the partial sums and then
    their combination; their order is preserved.
    """
    groups: dict[str, list[KernelCall]] = {}
    for launch in launches:
        groups.setdefault(kernel_text(launch.kernel), []).append(launch)
    return tuple(map(tuple, groups.values()))
