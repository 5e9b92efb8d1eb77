"""The CPU target: its schedules, library providers and kernel printer in one object."""

from __future__ import annotations

from gpuflow.compiler.planning.plan import CallStep, Choice, KernelStep, kernels_of
from gpuflow.compiler.target import PlainTarget, chosen
from gpuflow.core.lowering import block_of
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_REWRITES, CPU_SCHEDULES
from gpuflow.targets.cpu.library.table import PROVIDERS
from gpuflow.targets.cpu.runtime.kernels import print_cpu


class NativeTarget(PlainTarget):
    """The target of native programs; it rounds each 16-bit result to its dtype."""

    schedules = CPU_SCHEDULES
    rewrites = CPU_REWRITES

    def choice_of(self, step: CallStep) -> Choice | None:
        """Return the native implementation of a library call; None if Python calls it."""
        return chosen(PROVIDERS, block_of(step.eqn), step, self)

    def texts_of(self, step: KernelStep) -> list[str]:
        """Return the printed loop program of each of a step's kernels."""
        return [print_cpu(kernel).text for kernel in kernels_of(step)]


NATIVE_TARGET = NativeTarget()
