"""The CPU target: its schedules, library providers and kernel printer in one object.

Tests: tests/targets/cpu/test_native_products.py, tests/compiler/test_explain.py.
"""

from __future__ import annotations

from gpuflow.compiler.planning.plan import CallImplementation, CallStep, KernelStep, kernels_of
from gpuflow.compiler.target import PlainTarget, choose_implementation
from gpuflow.core.lowering import block_of
from gpuflow.targets.cpu.codegen.schedules.pipeline import CPU_REWRITES, CPU_SCHEDULES
from gpuflow.targets.cpu.library.table import PROVIDERS
from gpuflow.targets.cpu.runtime.kernels import print_cpu


class NativeTarget(PlainTarget):
    """The target of native programs; it rounds each 16-bit result to its dtype."""

    schedules = CPU_SCHEDULES
    rewrites = CPU_REWRITES

    def implementation_of(self, step: CallStep) -> CallImplementation | None:
        """Return the native implementation of a library call; None if Python calls it."""
        return choose_implementation(PROVIDERS, block_of(step.eqn), step, self)

    def texts_of(self, step: KernelStep) -> list[str]:
        """Return the printed loop program of each of a step's kernels."""
        return [print_cpu(kernel).text for kernel in kernels_of(step)]


NATIVE_TARGET = NativeTarget()
