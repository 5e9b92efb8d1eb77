"""The schedules of GPUs that rewrite calls when a plan is bound, in the order they are tried.

The launch configuration of a kernel (``launch_config``) and the width of its indices
(``index_bits``) are decided at launch, by its printer.
"""

from __future__ import annotations

from gpuflow.targets.cuda.codegen.schedules.row_phases import ROW_PHASES
from gpuflow.targets.cuda.codegen.schedules.splits import SPLIT_REDUCTIONS
from gpuflow.targets.cuda.codegen.schedules.tiled_maps import TILED_MAPS

CUDA_SCHEDULES = (ROW_PHASES, SPLIT_REDUCTIONS, TILED_MAPS)
