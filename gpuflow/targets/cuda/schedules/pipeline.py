"""The schedules of GPUs that rewrite calls when a plan is bound, in the order they are tried.

How a kernel is spread over blocks and threads (``spread``) and how wide its indices are
(``index_bits``) is decided at launch, by what prints it.
"""

from __future__ import annotations

from gpuflow.targets.cuda.schedules.row_phases import ROW_PHASES
from gpuflow.targets.cuda.schedules.splits import SPLIT_REDUCTIONS
from gpuflow.targets.cuda.schedules.tiled_maps import TILED_MAPS

CUDA_SCHEDULES = (ROW_PHASES, SPLIT_REDUCTIONS, TILED_MAPS)
