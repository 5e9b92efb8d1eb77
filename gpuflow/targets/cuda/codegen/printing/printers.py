"""Print KernelIR kernels as Python source for CUDA, with their launch configuration.

``print_cuda`` selects the printer by strategy. ``build.build_cuda`` compiles the text to a cubin,
with or without a GPU, and ``cached_builds.compile_cuda`` caches it. schedules/launch_config.py
defines the distribution of points over threads.

Tests: tests/targets/cuda/test_cuda_schedule.py.
"""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.kir.nodes import Kernel
from gpuflow.targets.cuda.codegen.printing.columns import ColumnPrinter
from gpuflow.targets.cuda.codegen.printing.full_reductions import FullReductionPrinter
from gpuflow.targets.cuda.codegen.printing.points import PointPrinter
from gpuflow.targets.cuda.codegen.printing.rows import RowPrinter
from gpuflow.targets.cuda.codegen.schedules.launch_config import LaunchConfig, schedule_cuda

# The printer of each ``LaunchConfig.strategy``.
PRINTERS = {
    "point": PointPrinter,
    "row": RowPrinter,
    "column": ColumnPrinter,
    "full": FullReductionPrinter,
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
        vectorize: whether to use vector accesses if the kernel allows them. Then
            ``launch.vector_width`` > 1, and the caller must launch the kernel only with arguments
            that ``launch_config.may_launch`` accepts. For all others, it prints a second variant.

    Raises:
        CudaPrintError: if a full reduction uses its result in another loop over its axes, or
            loops over points have different axes.
    """
    return print_scheduled(kernel, schedule_cuda(kernel, vectorize))


def print_scheduled(kernel: Kernel, launch: LaunchConfig) -> CudaSource:
    """Print a kernel for one of its launch configurations; raises as ``print_cuda``."""
    printer = PRINTERS[launch.strategy](kernel, launch)
    source = printer.source()
    return CudaSource(source.text, source.entry, tuple(t for _, t in printer.parameters()), launch)
