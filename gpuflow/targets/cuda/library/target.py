"""The compilation target of GPUs: its schedules, and its providers of library calls.

Tests: tests/targets/cuda/test_gpu_epilogues.py, tests/targets/cuda/test_cudnn_plans.py.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.compiler.schedules.schedule import KernelRewrites
from gpuflow.compiler.target import PlainTarget, choose_implementation, describe_provider
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import block_of
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.pipeline import CUDA_SCHEDULES
from gpuflow.targets.cuda.library.dnn.calls import DnnLibrary
from gpuflow.targets.cuda.library.launch_sequence import LaunchSequence
from gpuflow.targets.cuda.library.table import PROVIDERS
from gpuflow.targets.cuda.runtime.driver.api import Epilogues
from gpuflow.targets.cuda.runtime.driver.launch import launched_kernel

_COLUMN_MULTIPLE = 8  # cublasLt's epilogues are used if the number of columns is a multiple of it


class GpuTarget(PlainTarget):
    """The target of plans for GPUs of one model, with one thread's settings.

    Args:
        atomic_sums, excess_precision: as in ``Target``.
        dnn_library: the library of convolutions and attention; None: use handwritten kernels.
        epilogues: the library of products with epilogues; None: do not fuse epilogues.
    """

    on_gpu = True
    schedules = CUDA_SCHEDULES
    rewrites: KernelRewrites = ()

    def __init__(
        self,
        atomic_sums: bool = False,
        excess_precision: bool = False,
        dnn_library: DnnLibrary | None = None,
        epilogues: Epilogues | None = None,
    ) -> None:
        self._epilogues = epilogues
        self.atomic_sums, self.excess_precision = atomic_sums, excess_precision
        self.dnn_library = dnn_library

    def implementation_of(self, step: CallStep) -> LaunchSequence | None:
        """The launch sequence of a call; None if CuPy computes it. Empty if outputs are."""
        block = block_of(step.eqn)
        if block is not None and not any([var.aval.size for var in step.eqn.outputs]):
            return LaunchSequence(len(step.operands) + len(step.outputs))
        implementation: Any = choose_implementation(PROVIDERS, block, step, self)
        return implementation

    def describe_provider(self, step: CallStep) -> str:
        """The name of a call's provider, with its version, and why others do not apply."""
        return describe_provider(PROVIDERS, block_of(step.eqn), step, self)

    def supports(self, call: Eqn) -> bool:
        """Whether the library of epilogues supports ``call``, a product with an epilogue."""
        block = block_of(call)
        if self._epilogues is None or not isinstance(block, Product) or block.epilogue is None:
            return False
        out = call.outputs[0].aval
        columns = prod([call.inputs[1].aval.shape[d] for d in block.right[2]])
        return columns % _COLUMN_MULTIPLE == 0 and self._epilogues.supports(
            block.epilogue, out.dtype, block.reduced
        )

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        return [print_cuda(*launched_kernel(step, calls)).text for calls in step.launches]


def chosen_gpu_target(
    dnn_library: DnnLibrary | None = None, epilogues: Epilogues | None = None
) -> GpuTarget:
    """The target for this thread's settings; devices of one model share it, and so share plans."""
    settings = config.trace_context()
    if not config.environment.cuda_epilogues:
        epilogues = None
    return gpu_target(settings.atomic_sums, settings.excess_precision, dnn_library, epilogues)


@cache
def gpu_target(
    atomic_sums: bool = False,
    excess_precision: bool = False,
    dnn_library: DnnLibrary | None = None,
    epilogues: Epilogues | None = None,
) -> GpuTarget:
    """The target for these settings; the same object for equal arguments."""
    return GpuTarget(atomic_sums, excess_precision, dnn_library, epilogues)
