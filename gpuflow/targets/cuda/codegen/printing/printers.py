"""Print KernelIR kernels as Python source for CUDA, with their launch configuration.

``print_cuda`` selects the printer by strategy. ``build.build_cuda`` compiles the text to a cubin,
with or without a GPU, and ``cached.compile_cuda`` caches it. schedules/launch_config.py defines the
distribution of points over threads.
"""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.kir.nodes import Kernel
from gpuflow.targets.cuda.codegen.printing.columns import ColumnPrinter
from gpuflow.targets.cuda.codegen.printing.full import FullPrinter
from gpuflow.targets.cuda.codegen.printing.groups import GroupPrinter
from gpuflow.targets.cuda.codegen.printing.points import PointPrinter
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig, schedule_cuda

EMITTERS = {
    "point": PointPrinter,
    "row": GroupPrinter,
    "column": ColumnPrinter,
    "full": FullPrinter,
}


@record
class CudaSource:
    """A printed kernel.

    Attributes:
        text: a Python module that ``build.build_cuda`` compiles.
        entry: name of the kernel function.
        signature: one type per parameter, in the notation of ``build_cuda``.
        launch: the distribution of points, from which grid and block follow at each launch.
    """

    text: str
    entry: str
    signature: tuple[str, ...]
    launch: LaunchConfig


def print_cuda(kernel: Kernel, vectorize: bool = True) -> CudaSource:
    """Print a kernel for CUDA.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        vectorize: use vector accesses if the kernel allows them; ``launch.width`` > 1 then. Such
            a variant must only be launched if ``launch_config.may_launch`` accepts the arguments;
            the caller prints a second variant, without vectors, for all others.

    Raises:
        CudaPrintError: a full reduction uses its result inside another loop over its axes, or
            loops over points do not agree in their axes.
    """
    return print_scheduled(kernel, schedule_cuda(kernel, vectorize))


def print_scheduled(kernel: Kernel, launch: LaunchConfig) -> CudaSource:
    """Print a kernel for one of its launch configurations; raises as ``print_cuda``."""
    printer = EMITTERS[launch.strategy](kernel, launch)
    source = printer.source()
    return CudaSource(source.text, source.entry, tuple(t for _, t in printer.parameters()), launch)
