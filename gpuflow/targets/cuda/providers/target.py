"""What the compiler asks of GPUs: how kernels are launched, and what library calls need."""

from __future__ import annotations

from functools import cache

from gpuflow.base.config import config
from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.compiler.schedules.schedule import KernelRewrites
from gpuflow.compiler.target import PlainTarget
from gpuflow.core.lowering import Convolution
from gpuflow.targets.cuda.dnn.calls import Convolutions
from gpuflow.targets.cuda.driver.launch import launched_kernel
from gpuflow.targets.cuda.printing.printers import print_cuda
from gpuflow.targets.cuda.providers.handwritten_calls import block_of, schedule_of
from gpuflow.targets.cuda.providers.library_convolutions import LibraryPlan, planned
from gpuflow.targets.cuda.schedules.pipeline import CUDA_SCHEDULES


class GpuTarget(PlainTarget):
    """Some reductions are split; library calls that are handwritten kernels need workspaces.

    Args:
        atomic_sums, excess_precision: as ``Target`` says.
        convolutions: a library of them; None: all are handwritten kernels.
    """

    on_gpu = True
    schedules = CUDA_SCHEDULES
    rewrites: KernelRewrites = ()

    def __init__(
        self, atomic_sums: bool = False, excess_precision: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:  # fmt: skip
        self.atomic_sums, self.excess_precision = atomic_sums, excess_precision
        self._convolutions = convolutions

    def choice_of(self, step: CallStep) -> LibraryPlan | None:
        """How a library makes a convolution."""
        what = None if self._convolutions is None else block_of(step)
        if not isinstance(what, Convolution) or self._convolutions is None:
            return None
        left, right = step.operands
        if left.aval.dtype != right.aval.dtype:
            return None
        return planned(
            what, [left.lies, right.lies], left.aval.dtype, step.eqn.outputs[0].aval,
            self._convolutions, not self.atomic_sums,
        )  # fmt: skip

    def workspace_bytes(self, step: CallStep) -> int:
        """Memory that a library call needs besides its operands and outputs."""
        schedule = schedule_of(step)
        return 0 if schedule is None else schedule.workspace_bytes

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        return [print_cuda(*launched_kernel(step, calls)).text for calls in step.launches]


def chosen_gpu_target(convolutions: Convolutions | None = None) -> GpuTarget:
    """The target of programs with this thread's settings; devices of one model have one."""
    settings = config.trace_context()
    return gpu_target(settings.atomic_sums, settings.excess_precision, convolutions)


@cache
def gpu_target(
    atomic_sums: bool = False, excess_precision: bool = False,
    convolutions: Convolutions | None = None,
) -> GpuTarget:  # fmt: skip
    """The target of programs with these settings, one object for each."""
    return GpuTarget(atomic_sums, excess_precision, convolutions)
