"""The CUDA target: from KernelIR to the text of a kernel and its launch.

``print_cuda`` selects the emitter; ``build.build_cuda`` compiles the text to a cubin, with or
without a GPU; ``cached.compile_cuda`` caches it. See schedules/launch_config.py for the
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
        signature: one type per parameter, as ``build_cuda`` takes them.
        launch: how grid and block follow from the extents.
    """

    text: str
    entry: str
    signature: tuple[str, ...]
    launch: LaunchConfig


def print_cuda(kernel: Kernel, vectorize: bool = True) -> CudaSource:
    """Print a kernel for CUDA.

    Args:
        kernel: a kernel that ``kir.verify`` accepts.
        vectorize: use wide accesses where the text allows them (``launch.width`` > 1 then);
            arguments must then pass ``launch_config.may_launch``, and for those that do not a
            second variant is printed without.

    Raises:
        CudaPrintError: a full reduction uses its result inside another loop over its axes, or
            loops over points do not agree in their axes.
    """
    return print_scheduled(kernel, schedule_cuda(kernel, vectorize))


def print_scheduled(kernel: Kernel, launch: LaunchConfig) -> CudaSource:
    """Print a kernel for one of its schedules; raises as ``print_cuda``."""
    printer = EMITTERS[launch.strategy](kernel, launch)
    source = printer.source()
    return CudaSource(source.text, source.entry, tuple(t for _, t in printer.parameters()), launch)
