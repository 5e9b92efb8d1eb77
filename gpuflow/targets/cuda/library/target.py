"""The compilation target of GPUs: launches of kernels, and requirements of library calls."""

from __future__ import annotations

from math import prod
from typing import Any

from gpuflow.base.caches import cache
from gpuflow.base.config import config
from gpuflow.compiler.planning.plan import CallStep, KernelStep
from gpuflow.compiler.schedules.schedule import KernelRewrites
from gpuflow.compiler.target import PlainTarget, chosen, maker
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Eqn
from gpuflow.core.lowering import block_of
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.schedules.pipeline import CUDA_SCHEDULES
from gpuflow.targets.cuda.library.dnn.calls import DeepLibrary
from gpuflow.targets.cuda.library.launch_sequence import LaunchSequence
from gpuflow.targets.cuda.library.table import PROVIDERS
from gpuflow.targets.cuda.runtime.driver.api import Epilogues
from gpuflow.targets.cuda.runtime.driver.launch import launched_kernel

_COLUMNS = 8  # columns of a product with an epilogue are a multiple of it


class GpuTarget(PlainTarget):
    """Some reductions are split; library calls are implemented by providers.

    Args:
        atomic_sums, excess_precision: as in ``Target``.
        deep_library: of convolutions and attention; None: all are handwritten kernels.
        epilogues: a library of products with epilogues; None: products have none.
    """

    on_gpu = True
    schedules = CUDA_SCHEDULES
    rewrites: KernelRewrites = ()

    def __init__(
        self,
        atomic_sums: bool = False,
        excess_precision: bool = False,
        deep_library: DeepLibrary | None = None,
        epilogues: Epilogues | None = None,
    ) -> None:
        self._epilogues = epilogues
        self.atomic_sums, self.excess_precision = atomic_sums, excess_precision
        self.deep_library = deep_library

    def choice_of(self, step: CallStep) -> LaunchSequence | None:
        """The launches of a call; None if a library computes it."""
        block = block_of(step.eqn)
        if block is not None and not any([var.aval.size for var in step.eqn.outputs]):
            return LaunchSequence(len(step.operands) + len(step.outputs))
        choice: Any = chosen(PROVIDERS, block, step, self)
        return choice

    def maker_of(self, step: CallStep) -> str:
        """The provider, with a library's version, and the reasons against others."""
        return maker(PROVIDERS, block_of(step.eqn), step, self)

    def offers(self, call: Eqn) -> bool:
        """Whether the library has a product with an epilogue."""
        block = block_of(call)
        if self._epilogues is None or not isinstance(block, Product) or block.epilogue is None:
            return False
        out = call.outputs[0].aval
        columns = prod([call.inputs[1].aval.shape[d] for d in block.right[2]])
        return columns % _COLUMNS == 0 and self._epilogues.offers(
            block.epilogue, out.dtype, block.reduced
        )

    def texts_of(self, step: KernelStep) -> list[str]:
        """The printed text of each of a step's launches."""
        return [print_cuda(*launched_kernel(step, calls)).text for calls in step.launches]


def chosen_gpu_target(
    deep_library: DeepLibrary | None = None, epilogues: Epilogues | None = None
) -> GpuTarget:
    """The target of programs with this thread's settings; devices of one model have one."""
    settings = config.trace_context()
    if not config.environment.cuda_epilogues:
        epilogues = None
    return gpu_target(settings.atomic_sums, settings.excess_precision, deep_library, epilogues)


@cache
def gpu_target(
    atomic_sums: bool = False,
    excess_precision: bool = False,
    deep_library: DeepLibrary | None = None,
    epilogues: Epilogues | None = None,
) -> GpuTarget:
    """The target of programs with these settings, one object for each."""
    return GpuTarget(atomic_sums, excess_precision, deep_library, epilogues)
